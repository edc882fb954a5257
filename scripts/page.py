"""Rules page and partial: the page from all cells, or from those that are there."""

from pathlib import Path

from speedmatrix import charts, config, job, merge, page, progress, servers, store

with job.job(snakemake.log[0]):
    settings = config.from_environment()
    partial = snakemake.rule == "partial"
    cells = progress.results(settings) if partial else merge.read_cells([Path(path) for path in snakemake.input.cells])
    table = merge.table(cells)
    drawn = {
        name: charts.svg(draw(table)) if partial else Path(f"results/charts/{name}.svg").read_text(encoding="utf-8")
        for name, draw in charts.CHARTS.items()
    }
    healths = {name: servers.known_facts(server) for name, server in settings.servers.items()}
    output = Path("results/report.partial.html" if partial else snakemake.output[0])
    inputs = page.PageInput(cells, healths, drawn, len(settings.cells()), settings.title, settings.author)
    store.write_text(output, page.render(inputs))
    print(f"wrote {output}", flush=True)
