"""Rules prefill and decode: measure one cell, and say so in one line."""

import sys
from pathlib import Path

from speedmatrix import job

with job.job(snakemake.log[0]):
    from speedmatrix import config, progress, sweep

    settings = config.from_environment()
    cell = next(cell for cell in settings.cells() if cell.path == snakemake.output[0])
    result = sweep.run_cell(settings, cell, Path(snakemake.input.health))
    print(progress.cell_line(settings, cell, result), file=sys.stderr, flush=True)
