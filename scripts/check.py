"""Rule check: hold everything under results/ against itself; a line for each finding, exit 1 if anything is off."""

import sys

from speedmatrix import job

with job.job(snakemake.log[0]):
    from speedmatrix import config, cost, inspection

    settings = config.from_environment()
    looking = inspection.Inspection(settings.cells(), cost.prices(settings))
    for finding in looking.look():
        print(finding.line)
    print(looking.summary, flush=True)
sys.exit(any(finding.off for finding in looking.findings))
