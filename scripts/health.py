"""Rule health: read the server's facts."""

from pathlib import Path

from speedmatrix import job

with job.job(snakemake.log[0]):
    from speedmatrix import config, servers

    launched, output = Path(snakemake.input[0]), Path(snakemake.output[0])
    servers.health(config.from_environment(), snakemake.wildcards.server, launched, output)
