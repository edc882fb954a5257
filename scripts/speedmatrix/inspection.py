"""results/ as it lies there, held against itself: what `snakemake check` tells. Reads only."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import altair
import jsonschema

from speedmatrix import METHOD, arrivals, checking, history, merge, store
from speedmatrix.cells import Cell
from speedmatrix.checking import Finding
from speedmatrix.formats import counted

RESULTS = Path("results")
AGAIN = "run `snakemake --cores 1 results/report.html` again"
ANEW = "delete its JSON and run again to measure it anew"
ASIDE = "move it out of results/history: an attempt that can't be trusted counts for nothing"
_ATTEMPT = re.compile(r"(?P<cell>[a-z0-9.-]+?K?(?:-x\d+)?(?:\.r\d+)?)\.\d{8}T\d{6}\.\d+Z", re.I)

_KNOWN = ("cells/*/*.json", "history/*/*.json", "servers/*/*/launch.json", "servers/*/*/health.json", "charts/*.json")

Json = dict[str, Any]
Found = Iterator[Finding]


@dataclass
class Inspection:
    """A look at all of results/. `findings` after `look()`; `counts` says how much was looked at."""

    wanted: list[Cell]
    prices: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _cells: dict[str, Json] = field(default_factory=dict)  # whole ones, by path

    def look(self) -> list[Finding]:
        """Everything that is off or worth knowing, in the order of cells, history, servers, table and page."""
        if not any(RESULTS.glob("cells/*/*.json")):
            first = "run `snakemake --cores 1 results/report.html` first"
            self.findings = [Finding(f"{RESULTS}/cells", "no cell was measured here, so nothing is checked", first)]
            return self.findings
        parts = (self._of_cells, self._of_history, self._of_servers, self._of_charts, self._of_others)
        for part in (*parts, self._of_what_is_shown):
            self.findings += part()
        self.findings = _gathered(self.findings)
        return self.findings

    @property
    def summary(self) -> str:
        """One line: how much was checked, and how much of it is off."""
        off, counts = sum(one.off for one in self.findings), self.counts
        looked = f"{counted(counts['cells'], 'cell')}, {counts['again']} of them computed again from their arrivals"
        verdict = "nothing is off" if not off else "1 thing is off" if off == 1 else f"{off} things are off"
        return f"check: {looked}, {counted(counts['attempts'], 'attempt')} in the history: {verdict}"

    def _of_cells(self) -> Found:
        for path in sorted(RESULTS.glob("cells/*/*.json")):
            self.counts["cells"] += 1
            try:
                cell = self._cells[str(path)] = store.read_cell(path)
            except store.StoreError as error:
                yield Finding(str(path), error.what, "delete it and run again")
                continue
            yield from self._of_cell(path, cell)
        missing = sum(not Path(cell.path).exists() for cell in self.wanted)
        if missing:
            what = f"{missing} of the config's {len(self.wanted)} cells are not measured yet"
            yield Finding(f"{RESULTS}/cells", what, AGAIN, off=False)
        yield from self._of_fingerprints()

    def _of_cell(self, path: Path, cell: Json) -> Found:
        if cell["status"] == "failed":
            yield Finding(str(path), f"failed ({cell['reason']})", "run again: only failed cells are tried anew")
        for what in checking.contradictions(cell):
            yield Finding(str(path), what, ANEW)
        if cell["figures"]:
            yield from self._against(path, cell, path.with_name(f"{path.stem}.arrivals.npz"), ANEW)

    def _against(self, path: Path, cell: Json, kept: Path, advice: str) -> Found:
        """Findings of a cell or an attempt with figures against its arrivals at `kept`."""
        if cell.get("imported"):
            yield Finding(str(path), f"not computed again: imported ({cell['imported']})", off=False)
        elif not checking.is_comparable(cell):
            yield Finding(str(path), f"not computed again: measured by method {cell['method']}", AGAIN, off=False)
        elif not kept.exists():
            yield Finding(str(path), f"its arrivals ({kept.name}) are missing", advice)
        else:
            try:
                run = arrivals.load(kept)
                wrong = checking.differences(cell, run)
            except (OSError, ValueError, ArithmeticError) as error:
                yield Finding(str(kept), f"no arrivals that can be read ({error})", advice)
                return
            self.counts["again"] += 1
            if run.readings is None:
                what = "computed again in part: an older version kept less beside it"
                yield Finding(str(path), what, off=False)
            for what in wrong:
                yield Finding(str(path), what, advice)

    def _of_fingerprints(self) -> Found:
        for server, odd in merge.odd_fingerprints(self._wanted_cells()).items():
            for what, names in odd.items():
                told = f"{', '.join(names)} measured something else ({what}) than this server's other cells"
                yield Finding(f"{RESULTS}/cells/{server}", told, f"delete results/servers/{server} and run again")

    def _wanted_cells(self) -> list[Json]:
        return [self._cells[cell.path] for cell in self.wanted if cell.path in self._cells]

    def _of_history(self) -> Found:
        kept: dict[str, list[Json]] = {}  # attempts by the path of their cell
        beside: dict[str, int] = {}  # how many have no arrivals of their own, by cell
        for path in sorted(RESULTS.glob("history/*/*.json")):
            kind = "launch" if path.name.startswith("launch.") else "cell"
            self.counts["attempts"] += kind == "cell"
            try:
                attempt = store.read_valid(path, kind)
            except store.StoreError as error:
                yield _unusable_attempt(path, error.what)
                continue
            if kind == "launch":
                continue
            own = _cell_of(attempt)
            kept.setdefault(own.path, []).append(attempt)
            yield from self._of_attempt(path, attempt)
            if attempt["figures"] and history.arrivals_of(path).exists():
                again = self.counts["again"]
                yield from self._against(path, attempt, history.arrivals_of(path), ASIDE)
                self.counts["again"] = again
            elif attempt["figures"]:
                beside[own.path] = beside.get(own.path, 0) + 1
        # The last attempt's arrivals lie beside its cell.
        if without := sum(number - 1 for number in beside.values()):
            what = f"{counted(without, 'earlier attempt')} kept without arrivals: figures can't be computed again"
            yield Finding(f"{RESULTS}/history", what, off=False)
        for place, cell in self._cells.items():
            if cell not in kept.get(place, [cell]):
                yield Finding(place, "is like no attempt that results/history keeps", ANEW)

    def _of_attempt(self, path: Path, attempt: Json) -> Found:
        own = _cell_of(attempt)
        named = _ATTEMPT.fullmatch(path.stem)
        if path.parent.name != own.server or named is None or named["cell"] != own.name:
            yield Finding(str(path), f"holds an attempt at another cell ({own.server} {own.name})", ASIDE)
        for what in checking.contradictions(attempt):
            yield Finding(str(path), what, ASIDE)

    def _of_servers(self) -> Found:
        for kind in ("launch", "health"):
            for path in sorted(RESULTS.glob(f"servers/*/*/{kind}.json")):
                try:
                    store.read_valid(path, kind)
                except store.StoreError as error:
                    yield Finding(str(path), error.what, "delete its directory and run again")

    def _of_charts(self) -> Found:
        for path in sorted(RESULTS.glob("charts/*.json")):
            try:
                altair.Root.from_dict(store.read_json(path))
            except store.StoreError as error:
                yield Finding(str(path), error.what, f"delete it and {AGAIN}")
            except (jsonschema.ValidationError, TypeError, AttributeError):
                yield Finding(str(path), "is no Vega-Lite spec", f"delete it and {AGAIN}")

    def _of_others(self) -> Found:
        known = {path for pattern in _KNOWN for path in RESULTS.glob(pattern)}
        for path in sorted(set(RESULTS.rglob("*.json")) - known):
            yield Finding(str(path), "not checked: no file of this version", off=False)

    def _of_what_is_shown(self) -> Found:
        written = self._text(RESULTS / "measurements.csv")
        page = self._text(RESULTS / "report.html")
        for path, text in ((RESULTS / "measurements.csv", written), (RESULTS / "report.html", page)):
            if text is None:
                yield Finding(str(path), "not written yet", AGAIN, off=False)
        if written is not None:
            yield from self._of_table(RESULTS / "measurements.csv", written)
        if page is not None:
            yield from self._of_page(RESULTS / "report.html", page, written)

    def _of_table(self, path: Path, text: str) -> Found:
        for what in checking.table(text, list(self._cells.values()), self._wanted_cells(), self.prices):
            yield Finding(str(path), what, AGAIN)

    def _of_page(self, path: Path, page: str, written: str | None) -> Found:
        shown = checking.embedded_table(page)
        if shown is None:
            yield Finding(str(path), "not checked: the page is from an older version", AGAIN, off=False)
        elif shown != written:
            wrong = list(self._of_table(path, shown))
            if written is not None and not wrong:
                wrong = [Finding(str(path), "it holds another table than results/measurements.csv", AGAIN)]
            yield from wrong

    @staticmethod
    def _text(path: Path) -> str | None:
        return path.read_bytes().decode("utf-8", "replace") if path.exists() else None


def _cell_of(attempt: Json) -> Cell:
    return Cell(*(attempt[key] for key in ("server", "phase", "context_tokens", "concurrency", "repeat")))


def _unusable_attempt(path: Path, what: str) -> Finding:
    """An attempt that its schema refuses: of a version that kept other things, or damaged."""
    with contextlib.suppress(store.StoreError, AttributeError, TypeError):
        if store.read_json(path).get("method", METHOD) < METHOD:
            return Finding(str(path), "not checked: an attempt of an older version", off=False)
    return Finding(str(path), what, ASIDE)


def _gathered(findings: list[Finding]) -> list[Finding]:
    """`findings` with notes that say the same of several files of a directory told once."""

    def place(one: Finding) -> tuple[str, str]:
        return str(Path(one.where).parent), one.what

    times = Counter(place(one) for one in findings if not one.off)
    told: set[tuple[str, str]] = set()
    gathered = []
    for one in findings:
        if one.off or times[place(one)] == 1:
            gathered.append(one)
        elif place(one) not in told:
            told.add(place(one))
            where, what = place(one)
            gathered.append(replace(one, where=where, what=f"{times[place(one)]} files: {what}"))
    return gathered
