"""Rule runtime: the script that draws charts in a browser, once for all pages."""

from pathlib import Path

from speedmatrix import job

with job.job(snakemake.log[0]):
    from speedmatrix import charts, store

    store.write_text(Path(snakemake.output[0]), charts.runtime())
