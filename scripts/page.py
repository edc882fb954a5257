"""Rules page and partial: the page from all cells, or from those that are there; the summary beside it."""

from pathlib import Path

from speedmatrix import job

with job.job(snakemake.log[0]):
    from speedmatrix import charts, config, cost, merge, page, progress, servers, store

    settings = config.from_environment()
    partial = snakemake.rule == "partial"
    cells = progress.results(settings) if partial else merge.read_cells([Path(path) for path in snakemake.input.cells])
    if settings.strict:
        merge.refuse_mixed(cells)
    table = merge.table(cells, cost.prices(settings))
    data = charts.data(table, Path("results/cells"))
    drawn = Path("results/charts")
    svgs, specs = charts.pictures(data, None if partial else drawn)
    inputs = page.PageInput(
        cells=cells,
        healths={name: servers.known_facts(server) for name, server in settings.servers.items()},
        planned=len(settings.cells()),
        charts=svgs,
        specs=specs,
        runtime=charts.runtime() if partial else (drawn / "vega.js").read_text(encoding="utf-8"),
        csv=merge.csv_text(table),
        config=config.resolved(),
        title=settings.title,
        author=settings.author,
        slo=settings.slo,
        prices=cost.prices(settings),
    )
    output = Path("results/report.partial.html" if partial else snakemake.output.page)
    store.write_text(output, page.render(inputs))
    if not partial:
        store.write_text(Path(snakemake.output.summary), page.summary(inputs))
    print(f"wrote {output}", flush=True)
