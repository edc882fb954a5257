"""Rule launch: start the server, or find it."""

from pathlib import Path

from speedmatrix import config, job, servers

with job.job(snakemake.log[0]):
    servers.launch(config.from_environment(), snakemake.wildcards.server, Path(snakemake.output[0]))
