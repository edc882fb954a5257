"""Rule launch: start the server, or find it."""

from pathlib import Path

from speedmatrix import job

with job.job(snakemake.log[0]):
    from speedmatrix import config, servers

    servers.launch(config.from_environment(), snakemake.wildcards.server, Path(snakemake.output[0]))
