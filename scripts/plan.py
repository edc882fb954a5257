"""`make plan`: which jobs `snakemake` would run now, and how long their cells take. Measures nothing."""

import os
import re
import subprocess
import sys

from snakemake.cli import get_argument_parser, parse_config

from speedmatrix import config, estimate, explain, progress, store

TARGET = "results/report.html"
TRIGGERS = ["mtime", "params", "input"]
OUTPUT = re.compile(r"^\s*output: (results/cells/\S+\.json)", re.M)


def main(arguments: list[str]) -> int:
    """Arguments are passed on to snakemake; returns its exit code."""
    try:
        given, _ = get_argument_parser().parse_known_args(arguments)
        files = [str(file) for file in given.configfile or ["config/config.yaml"]]
        settings = config.read(files, parse_config(given.config))
    except config.ConfigError as error:
        print(f"config: {error}", file=sys.stderr)
        return 1
    # profiles/default without its `quiet`: the jobs' outputs are read here
    profile = ["--workflow-profile", "none", "--rerun-incomplete", "--rerun-triggers", *TRIGGERS]
    command = [sys.executable, "-m", "snakemake", "-n", TARGET, *profile, *arguments]
    dry = subprocess.run(command, capture_output=True, text=True)
    if dry.returncode:
        said = (dry.stdout + dry.stderr).strip()
        ours = [line for line in said.splitlines() if line.startswith(("config: ", "error: "))]
        print("\n".join(ours) or said, file=sys.stderr)
        return dry.returncode
    planned = set(OUTPUT.findall(dry.stdout + dry.stderr))
    try:
        os.chdir(given.directory or ".")
        print(_stats(dry.stdout + dry.stderr))
        print(_summary(settings, [cell for cell in settings.cells() if cell.path in planned]))
    except (OSError, store.StoreError) as error:
        print(f"error: {explain.line(error)}", file=sys.stderr)
        return 1
    return 0


def _stats(text: str) -> str:
    """Snakemake's own table of jobs, or its word that there is nothing to do."""
    start = text.find("Job stats:")
    if start < 0:
        return "Nothing to be done: every cell is measured and the page is up to date."
    return text[start:].split("\n\n")[0]


def _summary(settings: config.Config, cells: list) -> str:
    if not cells:
        return "No cell would be measured."
    names = ", ".join(f"{cell.server}/{cell.name}" for cell in cells[:6]) + (", …" if len(cells) > 6 else "")
    there = progress.results(settings)
    failed = sum(result["status"] == "failed" for result in there)
    measured = any(result["phase"] == "prefill" and result["figures"] for result in there)
    basis = "the prefill speeds measured so far" if measured else "the config alone, the server's speed being unknown"
    again = f"\n{failed} failed so far and would be tried again." if failed else ""
    if anew := sum(bool(result["figures"]) for result in progress.results_of(cells)):
        again += f"\n{anew} of them have figures already and would be measured anew; those stay in results/history."
    took = estimate.duration_text(progress.cells_s(settings, cells))
    return (
        f"{len(cells)} of {len(settings.cells())} cells would be measured ({names}).{again}\nAbout {took}, by {basis}."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
