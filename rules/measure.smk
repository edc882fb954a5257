# health.json      -> results/cells/<server>/prefill-8K.json        one prefill cell
# health.json      -> results/cells/<server>/decode-8K-x16.json     one sustained-decode cell


rule prefill:
    input:
        health=health_of,
    output:
        "results/cells/{server}/prefill-{context}.json",
    params:
        cell=cell_params("prefill"),
    log:
        "logs/{server}/prefill-{context}.log",
    priority: cell_priority("prefill")
    resources:
        measuring=1,
    script:
        "../scripts/cell.py"


rule decode:
    input:
        health=health_of,
    output:
        "results/cells/{server}/decode-{context}-x{concurrency}{repeat}.json",
    params:
        cell=cell_params("decode"),
    log:
        "logs/{server}/decode-{context}-x{concurrency}{repeat}.log",
    priority: cell_priority("decode")
    resources:
        measuring=1,
    script:
        "../scripts/cell.py"
