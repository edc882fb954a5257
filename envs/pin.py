"""Write requirements.txt's versions into envs/*.yaml: `python envs/pin.py` (part of `make lock`)."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def locked() -> dict[str, str]:
    """Version by package name, from requirements.txt."""
    lines = (HERE.parent / "requirements.txt").read_text().splitlines()
    return dict(match.groups() for line in lines if (match := re.match(r"([\w.-]+)==([^\s;]+)", line)))


def pinned(text: str, versions: dict[str, str]) -> str:
    """An environment's text with every `name==version` at the locked version. KeyError for a name not in the lock."""
    return re.sub(r"([\w.-]+)==\S+", lambda match: f"{match[1]}=={versions[match[1]]}", text)


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.yaml")):
        path.write_text(pinned(path.read_text(), locked()))
