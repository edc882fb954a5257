# cells            -> results/measurements.csv          all cells, a row each
# measurements.csv -> results/charts/<name>.json .svg .png
# cells, charts    -> results/report.html               the page
CHARTS = ["total-tok-s", "matrix", "request-vs-total", "ttft", "prefill"]
LIBRARY = Path(workflow.basedir) / "scripts" / "speedmatrix"


rule merge:
    input:
        cells=[cell.path for cell in CELLS],
        directories=[f"results/cells/{name}" for name in SWEEP.servers],
        code=[LIBRARY / "merge.py", LIBRARY / "cost.py"],
    output:
        "results/measurements.csv",
    log:
        "logs/merge.log",
    conda:
        "../envs/report.yaml"
    params:
        prices=cost.prices(SWEEP),
    script:
        "../scripts/merge.py"


rule charts:
    input:
        table="results/measurements.csv",
        code=LIBRARY / "charts.py",
    output:
        expand("results/charts/{name}.{kind}", name=CHARTS, kind=["json", "svg", "png"]),
    log:
        "logs/charts.log",
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/charts.py"


rule page:
    input:
        cells=[cell.path for cell in CELLS],
        table="results/measurements.csv",
        servers=[servers.launch_dir(server) / "health.json" for server in SWEEP.servers.values()],
        charts=expand("results/charts/{name}.svg", name=CHARTS),
        code=sorted(path for path in (LIBRARY / "page").iterdir() if path.is_file()),
    output:
        "results/report.html",
    log:
        "logs/page.log",
    conda:
        "../envs/report.yaml"
    params:
        head=[SWEEP.title, SWEEP.author],
    script:
        "../scripts/page.py"


rule partial:
    log:
        "logs/partial.log",
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/page.py"
