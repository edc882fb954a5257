# cells            -> results/measurements.csv          all cells, a row each
# measurements.csv -> results/charts/<name>.json .svg .png
# (nothing)        -> results/charts/vega.js            what draws charts in a browser
# cells, facts     -> results/report.html report.md     the page, and the same in short
CHARTS = ["total-tok-s", "matrix", "request-vs-total", "ttft", "prefill", "tokens-per-joule", "power"]
LIBRARY = Path(workflow.basedir) / "scripts" / "speedmatrix"


rule merge:
    input:
        cells=[cell.path for cell in CELLS],
        directories=[f"results/cells/{name}" for name in SWEEP.servers],
        code=[LIBRARY / "merge.py", LIBRARY / "cost.py"],
    output:
        report("results/measurements.csv", category="Table", caption="../docs/captions/measurements.rst"),
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
        expand("results/charts/{name}.{kind}", name=CHARTS, kind=["json", "png"]),
        report(
            expand("results/charts/{name}.svg", name=CHARTS),
            category="Charts",
            caption="../docs/captions/chart.rst",
        ),
    log:
        "logs/charts.log",
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/charts.py"


rule runtime:
    input:
        Path(workflow.basedir) / "envs" / "report.yaml",  # whose version of vl-convert draws
    output:
        "results/charts/vega.js",
    log:
        "logs/runtime.log",
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/runtime.py"


rule page:
    input:
        cells=[cell.path for cell in CELLS],
        table="results/measurements.csv",
        servers=[servers.launch_dir(server) / "health.json" for server in SWEEP.servers.values()],
        charts=expand("results/charts/{name}.{kind}", name=CHARTS, kind=["svg", "json"]),
        runtime="results/charts/vega.js",
        code=[path for part in ("page", "findings") for path in sorted((LIBRARY / part).glob("*.*"))],
        words=[
            LIBRARY / name
            for name in ("charts.py", "cost.py", "formats.py", "matrix.py", "merge.py", "unusual.py", "validity.py")
        ],
    output:
        page=report("results/report.html", category="Page", caption="../docs/captions/page.rst"),
        summary=report("results/report.md", category="Page", caption="../docs/captions/summary.rst"),
    log:
        "logs/page.log",
    conda:
        "../envs/report.yaml"
    params:
        said=sweep_config.said(),
    script:
        "../scripts/page.py"


rule partial:
    log:
        "logs/partial.log",
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/page.py"


# Has no input: it looks at whatever lies there, while a sweep runs too, and measures nothing.
rule check:
    log:
        "logs/check.log",
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/check.py"
