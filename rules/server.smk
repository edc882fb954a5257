# config           -> results/servers/<server>/<hash of launch>/launch.json   the server was started (or found)
# launch.json      -> results/servers/<server>/<hash of launch>/health.json   its facts, capacity, hardware


rule launch:
    output:
        "results/servers/{server}/{digest}/launch.json",
    log:
        "logs/{server}/launch-{digest}.log",
    priority: server_priority
    conda:
        "../envs/measure.yaml"
    resources:
        measuring=1,
    params:
        failed=lambda wildcards: servers.failed_launches(wildcards.server, wildcards.digest),
    script:
        "../scripts/launch.py"


rule health:
    input:
        "results/servers/{server}/{digest}/launch.json",
    output:
        "results/servers/{server}/{digest}/health.json",
    log:
        "logs/{server}/health-{digest}.log",
    priority: server_priority
    conda:
        "../envs/measure.yaml"
    resources:
        measuring=1,
    params:
        stated=lambda wildcards: SWEEP.servers[wildcards.server].stated,
    script:
        "../scripts/health.py"
