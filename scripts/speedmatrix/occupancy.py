"""One sweep at a time on a server: a lock that all sweeps of this host share, whatever directory they run in."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from speedmatrix import hosts, processes


class Occupied(Exception):
    """Another sweep measures this server; the message is one line."""


@contextlib.contextmanager
def sole_use(url: str) -> Iterator[None]:
    """Hold the lock of the server at `url`. Raises Occupied at once where another sweep has it.

    Between two of its cells a server is still the sweep's that used it last, as long as that sweep's own process lives:
    else another one would begin there, and the first would find the server busy.
    """
    with _opened(url) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _occupied(url) from None
        own, last = os.environ.get(processes.OWNER_ENV, ""), _owner(file)
        if last != own and processes.is_alive(last):
            raise _occupied(url)
        with contextlib.suppress(OSError):  # of another user, who may not let this one write: then the lock alone tells
            os.ftruncate(file, 0)
            os.pwrite(file, own.encode(), 0)
        yield


def _occupied(url: str) -> Occupied:
    return Occupied(f"another sweep is measuring {url} at this moment: let it end, then run again")


def _owner(file: int) -> str | None:
    text = os.pread(file, 100, 0).decode("ascii", "replace")
    return text if re.fullmatch(r"\d+:\d+", text) else None


@contextlib.contextmanager
def _opened(url: str) -> Iterator[int]:
    """The lock's file, which every user of this host may open."""
    name = f"speedmatrix-{hashlib.sha256(hosts.server_key(url).encode()).hexdigest()[:16]}.lock"
    path = Path(tempfile.gettempdir()) / name
    descriptor = _open(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        # Without O_CREAT: in a directory like /tmp the kernel refuses that for another user's file.
        return os.open(path, flags | os.O_RDWR)
    except PermissionError:
        return os.open(path, flags | os.O_RDONLY)  # enough for the lock
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o666)
        with contextlib.suppress(PermissionError):  # made by another user in this moment
            os.fchmod(descriptor, 0o666)
        return descriptor
