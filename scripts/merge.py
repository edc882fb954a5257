"""Rule merge: all cells into one CSV."""

from pathlib import Path

from speedmatrix import job

with job.job(snakemake.log[0]):
    from speedmatrix import merge

    cells = merge.read_cells([Path(path) for path in snakemake.input.cells])
    merge.write_csv(merge.table(cells, snakemake.params.prices), Path(snakemake.output[0]))
