# config/config.yaml -> SWEEP (typed), its cells, and what the other rule files ask of a cell.
import atexit
import re
import sys
from pathlib import Path

import snakemake.exceptions

sys.path.insert(0, str(Path(workflow.basedir) / "scripts"))

try:
    from speedmatrix import config as sweep_config
    from speedmatrix import cost, explain, history, owner, progress, servers, supervisor
except ImportError as error:
    sys.exit(f"error: Python 3.11 with all packages is needed ({error}): `make report` installs them into .venv")

DEFAULT_CONFIG = str(Path(workflow.basedir) / "config" / "config.yaml")

READS_ONLY = not {"check", "partial"}.isdisjoint(sys.argv)  # what measures nothing needs no keys and no server
DRY_RUN = not {"-n", "--dry-run", "--dryrun"}.isdisjoint(sys.argv)  # `workflow` does not know it yet here

try:
    if owner.claim():  # the sweep's own process: its jobs get the config as it was when the sweep began
        files = list(workflow.configfiles) or [DEFAULT_CONFIG]
        sweep_config.to_environment(files, workflow.config_settings.config)
    SWEEP = sweep_config.from_environment()
    if not (READS_ONLY or DRY_RUN) and (missing := SWEEP.missing_variables()):
        raise sweep_config.ConfigError(missing[0])
except sweep_config.ConfigError as error:
    sys.exit(f"config: {error}")

# Snakemake writes `config` into its temporary scripts and leaves them after a SIGKILL: launch specs stay out of it.
config.clear()

CELLS = SWEEP.cells()
if unwritable := explain.unwritable(explain.BY_SNAKEMAKE if READS_ONLY else explain.BY_A_SWEEP):
    sys.exit(f"error: {unwritable}")
# Snakemake's own words for a lock are many, and leave open which of two things to do.
snakemake.exceptions.LockException.__init__ = lambda self: WorkflowError.__init__(self, explain.locked())

PLACE = {cell.path: place for place, cell in enumerate(CELLS)}
if not READS_ONLY:
    for name in SWEEP.servers:  # merge has these as inputs, so that a deleted cell is noticed: they must exist at once
        Path("results/cells", name).mkdir(parents=True, exist_ok=True)


wildcard_constraints:
    server="|".join(map(re.escape, SWEEP.servers)),
    context=r"\d+K?",
    concurrency=r"\d+",
    repeat=r"(\.r\d+)?",


def health_of(wildcards):
    """The facts of the cell's server, launched exactly as the config says now."""
    return str(servers.launch_dir(SWEEP.servers[wildcards.server]) / "health.json")


def cell_of(path):
    """The config's cell whose JSON is at `path`."""
    return CELLS[PLACE[path]]


def cell_path(phase, wildcards):
    """The path of the cell that these wildcards name."""
    name = f"{phase}-{wildcards.context}"
    if phase == "decode":
        name += f"-x{wildcards.concurrency}{wildcards.repeat}"
    return f"results/cells/{wildcards.server}/{name}.json"


def cell_params(phase):
    """Everything that affects the cell's figures, as one string that Snakemake compares."""
    return lambda wildcards: SWEEP.params(cell_of(cell_path(phase, wildcards)))


def cell_priority(phase):
    """Cells run in the config's order: server by server, prefill first, small before large."""
    return lambda wildcards: len(CELLS) - PLACE[cell_path(phase, wildcards)]


def server_priority(wildcards):
    """A server is launched when its cells' turn comes: one is up at a time, and each start may take minutes."""
    return len(CELLS) - min((PLACE[cell.path] for cell in CELLS if cell.server == wildcards.server), default=len(CELLS))


def last_line():
    """What a run that did not end well says last."""
    if READS_ONLY:
        return "not all is well: each line above says what to do"
    return progress.interrupted_line(SWEEP)
