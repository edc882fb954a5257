"""The sweep's own process, its owner: what it starts ends with it, whatever ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import psutil

from speedmatrix import processes
from speedmatrix.serverstate import server_state

_POLL_S = 0.1


def claim() -> bool:
    """Make this process the owner of what is started, unless a living process is named already. For the Snakefile.

    True for the sweep's own process, False for those of its jobs.
    """
    if not processes.is_alive(os.environ.get(processes.OWNER_ENV)):
        os.environ[processes.OWNER_ENV] = processes.identity()
    return os.environ[processes.OWNER_ENV] == processes.identity()


def end_jobs_on_signals() -> None:
    """Let SIGTERM and SIGINT end the job under way too, as Ctrl-C in a terminal does; Snakemake would wait for it.

    For the sweep's own process, once Snakemake has set its handlers.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ending_jobs(signal.getsignal(number)))


def _ending_jobs(previous: Any) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.terminate()
        if callable(previous):
            previous(number, frame)

    return handle


def end_with_owner() -> None:
    """End this process, whatever it does, as soon as the owner is gone. For the jobs' processes."""
    owner = os.environ.get(processes.OWNER_ENV)

    def watch() -> None:
        while processes.is_alive(owner):
            time.sleep(_POLL_S)
        _end_what_nobody_watches()
        os._exit(1)

    if owner:
        threading.Thread(target=watch, daemon=True).start()


def _end_what_nobody_watches() -> None:
    """End what is left of the server whose supervisor was killed as well: workers in sessions of their own."""
    state = server_state()
    if state and state.owner == os.environ[processes.OWNER_ENV] and not processes.is_alive(state.boot_id):
        processes.end_tagged(state.boot_id, 0)
