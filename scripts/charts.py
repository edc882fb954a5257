"""Rule charts: every chart as spec, SVG and PNG."""

from pathlib import Path

from speedmatrix import job

with job.job(snakemake.log[0]):
    from speedmatrix import charts, merge

    data = charts.data(merge.read_csv(Path(snakemake.input.table)), Path("results/cells"))
    for name, kind in charts.CHARTS.items():
        charts.write(kind.draw(data), Path("results/charts"), name)
