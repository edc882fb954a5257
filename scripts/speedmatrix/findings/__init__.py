"""What the figures mean: each finding in plain words with its own numbers, worst first."""

from __future__ import annotations

from speedmatrix.findings import capacity, machine, speed, trust
from speedmatrix.findings.finding import LEVELS, Finding
from speedmatrix.matrix import Results

__all__ = ["LEVELS", "RULES", "Finding", "find"]

RULES = [*trust.RULES, *speed.RULES, *capacity.RULES, *machine.RULES]


def find(results: Results) -> list[Finding]:
    """All findings on one server, worst first, those of one level in the order of RULES."""
    found = [finding for rule in RULES for finding in rule(results)]
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))
