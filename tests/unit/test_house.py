"""The house's rules that a machine can check: imports point one way, versions agree, no host names."""

import ast
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from speedmatrix import charts, configfile, validity
from speedmatrix.page import words
from tests import faults

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "scripts/speedmatrix"


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def own(path: Path) -> set[str]:
    """First-level names of the library that a module imports."""
    found = {name.split(".")[1] for name in imports(path) if name.startswith("speedmatrix.")}
    return found - {"METHOD", "VERSION"}


MODULES = sorted(path for path in LIBRARY.rglob("*.py"))
LOWEST = {
    "cells": set(),
    "sse": {"untrusted"},
    "untrusted": set(),
    "digests": set(),
    "corpus": set(),
    "redact": {"known"},
    "known": set(),
    "processes": set(),
}
LOWEST |= {"arrivals": set(), "cycles": set(), "dialect": set(), "sizing": set(), "retry": set()}
LOWEST |= {"lateness": set(), "readings": set(), "sensors": set(), "machine": set()}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(LIBRARY)))
def test_the_library_never_imports_snakemake_and_says_its_job_first(path):
    assert not any(name.split(".")[0] == "snakemake" for name in imports(path))
    assert (ast.get_docstring(ast.parse(path.read_text())) or "").strip()


@pytest.mark.parametrize("name", LOWEST)
def test_the_lowest_modules_import_nothing_of_ours(name):
    assert own(LIBRARY / f"{name}.py") == LOWEST[name]


def test_metrics_know_no_config_and_validity_no_network():
    assert own(LIBRARY / "metrics.py") == {"arrivals"}
    assert own(LIBRARY / "validity.py") == {"metrics", "arrivals", "cycles"}
    assert own(LIBRARY / "figures.py") == {"metrics", "arrivals"}
    assert own(LIBRARY / "prompts.py") == {"corpus", "sizing"}
    assert own(LIBRARY / "load.py") == {"sse", "arrivals", "lateness"}
    assert own(LIBRARY / "integration.py") == {"arrivals", "readings", "series"}
    assert own(LIBRARY / "series.py") == own(LIBRARY / "nvidia.py") == own(LIBRARY / "unusual.py") == {"readings"}


def loaded_by(statement: str) -> set[str]:
    program = f"import sys; {statement}; print(' '.join(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT / "scripts"
    )
    return set(ran.stdout.split())


def test_a_cells_process_loads_no_pandas_and_the_page_no_client():
    assert not {"pandas", "altair", "jinja2"} & loaded_by("from speedmatrix import job, progress, sweep")
    assert not {"aiohttp", "uvloop"} & loaded_by("from speedmatrix import page, charts, merge")


def test_a_sampler_is_at_work_at_once():
    assert not {"numpy", "jsonschema", "yaml", "requests"} & loaded_by("from speedmatrix import sampling")


def test_environments_hold_the_locks_versions():
    pin = runpy.run_path(str(ROOT / "envs/pin.py"))
    for path in (ROOT / "envs").glob("*.yaml"):
        assert pin["pinned"](path.read_text(), pin["locked"]()) == path.read_text(), f"{path}: run `make lock`"
        assert yaml.safe_load(path.read_text())["dependencies"][0] == "python=3.11"


def test_locks_pin_everything_and_name_no_host():
    for name in ("requirements.txt", "requirements-dev.txt"):
        text = (ROOT / name).read_text()
        assert "://" not in text and "--" not in text
        pinned = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
        assert all(re.match(r"[\w.\[\]-]+==\d", line) for line in pinned)


def test_every_direct_dependency_is_locked():
    lock = (ROOT / "requirements.txt").read_text()
    wanted = [
        re.match(r"[\w-]+", line)[0]
        for line in (ROOT / "requirements.in").read_text().splitlines()
        if line[:1].isalpha()
    ]
    assert len(wanted) > 10
    for name in wanted:
        assert re.search(rf"^{re.escape(name)}==", lock, re.M), name


def test_the_snakefile_draws_the_charts_that_there_are():
    named = re.search(r"^CHARTS = (\[.*?\])", (ROOT / "rules/report.smk").read_text(), re.M | re.S)
    assert json.loads(named[1]) == list(charts.CHARTS)
    assert set(words.CHART_CAPTIONS) == set(charts.CHARTS) - {"matrix"}  # the page has the decode matrix itself


def test_the_readmes_table_of_faults_is_that_of_the_tests():
    readme = faults.README.read_text(encoding="utf-8")
    assert faults.with_table(readme) == readme, "run `make faults`"
    assert len(faults.faults()) > 20 and len({done for done, _ in faults.faults()}) == len(faults.faults())


def test_the_snakefile_is_a_table_of_contents():
    assert len((ROOT / "Snakefile").read_text().splitlines()) <= 45


def test_every_config_key_is_described():
    def keys(schema: dict, name: str):
        for key, value in schema.get("properties", {}).items():
            yield f"{name}.{key}", value
            yield from keys(value, f"{name}.{key}")

    schema = json.loads((configfile.SCHEMAS / "config.schema.json").read_text())
    server = schema["properties"]["servers"]["additionalProperties"]
    missing = [
        name
        for name, value in [*keys(schema, "config"), *keys(server, "servers.*")]
        if "description" not in value and "properties" not in value
    ]
    assert missing == []


def test_every_flag_says_what_happened_and_what_to_do():
    for flag in validity.FLAGS.values():
        assert flag.happened.endswith(".") and flag.advice.endswith(".")


DISTRIBUTIONS = {
    "cpuinfo": "py-cpuinfo",
    "markupsafe": "jinja2",  # a part of it
    "prometheus_client": "prometheus-client",
    "pynvml": "nvidia-ml-py",
    "urllib3": "requests",
    "vl_convert": "vl-convert-python",
    "yaml": "pyyaml",
}
REPORTING = {"charts.py", "inspection.py", "merge.py", "page"}


@pytest.mark.parametrize("name", ["measure", "report"])
def test_an_environment_has_all_that_its_modules_import(name):
    modules = [path for path in MODULES if (path.relative_to(LIBRARY).parts[0] in REPORTING) == (name == "report")]
    used = {imported.split(".")[0] for path in modules for imported in imports(path)}
    packages = used - set(sys.stdlib_module_names) - {"speedmatrix"}
    text = (ROOT / f"envs/{name}.yaml").read_text()
    listed = set(re.findall(r"- ([\w.-]+)==", text))
    assert {DISTRIBUTIONS.get(package, package) for package in packages} <= listed


def closure(script: Path) -> set[str]:
    """Everything that a rule's script imports, our own modules' imports at their top included."""
    seen: set[str] = set()
    left = [script]
    while left:
        for name in imports(left.pop()) - seen:
            seen.add(name)
            place = LIBRARY.parent.joinpath(*name.split("."))
            left += [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.exists()]
    return seen


RULES_OF = {"measure": ["launch", "health", "cell"], "report": ["merge", "charts", "page", "check"]}
LATE = {"tokenizers", "xllamacpp", "gguf", "vl_convert"}  # imported inside functions, where they are needed


@pytest.mark.parametrize("name", RULES_OF)
def test_an_environment_has_all_that_its_rules_import(name):
    used = {imported.split(".")[0] for rule in RULES_OF[name] for imported in closure(ROOT / f"scripts/{rule}.py")}
    packages = used - set(sys.stdlib_module_names) - {"speedmatrix"} - LATE
    listed = set(re.findall(r"- ([\w.-]+)==", (ROOT / f"envs/{name}.yaml").read_text()))
    assert {DISTRIBUTIONS.get(package, package) for package in packages} <= listed
