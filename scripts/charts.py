"""Rule charts: every chart as spec, SVG and PNG."""

from pathlib import Path

from speedmatrix import job

with job.job(snakemake.log[0]):
    from speedmatrix import charts, merge

    table = merge.read_csv(Path(snakemake.input.table))
    for name, kind in charts.CHARTS.items():
        charts.write(kind.draw(table), Path("results/charts"), name)
