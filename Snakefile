# speed-matrix: how fast an inference server is, at every context length and concurrency.
#
#   snakemake --cores 1 results/report.html      measure what is missing, failed or changed; write the page
#   snakemake --cores 1 partial                  write results/report.partial.html from what is there
#   snakemake --cores 1 check                    hold all that lies under results/ against itself; exit 1 if anything is off
#
# config/config.yaml says what is measured; --configfile other.yaml (after the target) replaces it.


include: "rules/common.smk"
include: "rules/server.smk"
include: "rules/measure.smk"
include: "rules/report.smk"


localrules:
    merge,
    charts,
    runtime,
    page,
    partial,
    check,


rule all:
    default_target: True
    input:
        "results/report.html",


onstart:
    history.adopt(CELLS)
    owner.end_jobs_on_signals()


onsuccess:
    supervisor.stop_server()


onerror:
    supervisor.stop_server()
    # At exit, since Snakemake has some words of its own after this, and the last line is the one that is read.
    atexit.register(print, last_line(), file=sys.stderr, flush=True)
