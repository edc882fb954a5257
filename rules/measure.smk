# health.json      -> results/cells/<server>/prefill-8K.json        one prefill cell
# health.json      -> results/cells/<server>/decode-8K-x16.json     one sustained-decode cell


rule prefill:
    input:
        health=health_of,
    output:
        "results/cells/{server}/prefill-{context}.json",
    log:
        "logs/{server}/prefill-{context}.log",
    priority: cell_priority("prefill")
    conda:
        "../envs/measure.yaml"
    resources:
        measuring=1,
    params:
        cell=cell_params("prefill"),
    script:
        "../scripts/cell.py"


rule decode:
    input:
        health=health_of,
    output:
        "results/cells/{server}/decode-{context}-x{concurrency}{repeat}.json",
    log:
        "logs/{server}/decode-{context}-x{concurrency}{repeat}.log",
    priority: cell_priority("decode")
    conda:
        "../envs/measure.yaml"
    resources:
        measuring=1,
    params:
        cell=cell_params("decode"),
    script:
        "../scripts/cell.py"
