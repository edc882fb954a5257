"""The README's table of faults, from the tests that do them: `python -m tests.faults` writes it anew.

A test carries `@pytest.mark.fault("what is done", "what holds")`, once for each fault that it does.
"""

import ast
from pathlib import Path

TESTS = Path(__file__).parent
README = TESTS.parent / "README.md"
BEGIN, END = "<!-- faults: begin -->\n", "<!-- faults: end -->\n"


def faults() -> list[tuple[str, str]]:
    """(what is done, what holds) of every mark in the tests, file by file."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py"), key=lambda path: ("unit" in path.parts, str(path))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault":
                done, holds = (ast.literal_eval(argument) for argument in node.args)
                found.append((node.lineno, str(path), done, holds))
    return [(done, holds) for _, _, done, holds in found]


def table() -> str:
    """The table in Markdown."""
    rows = [("what is done", "what holds"), ("---", "---"), *faults()]
    return "".join(f"| {done} | {holds} |\n" for done, holds in rows)


def with_table(text: str) -> str:
    """The README's text with the table between its two marks."""
    head, rest = text.split(BEGIN)
    return head + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
