"""Rule merge: all cells into one CSV."""

from pathlib import Path

from speedmatrix import job

with job.job(snakemake.log[0]):
    from speedmatrix import merge

    merge.write_csv(
        merge.table(merge.read_cells([Path(path) for path in snakemake.input.cells])), Path(snakemake.output[0])
    )
