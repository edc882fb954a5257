"""What a cell's window cost the machine: a sampler process beside the measurement, and its figures.

Nothing here fails or delays a cell: a sampler that can't start, crashes, hangs or finds nothing means no data, and why.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, Any

from speedmatrix import hardware, hosts, integration, processes, readings, redact
from speedmatrix.config import Server
from speedmatrix.integration import Taken
from speedmatrix.readings import Reading
from speedmatrix.series import Window

_END_S = 1.0  # that a sampler has for its last sample, before it is killed
log = logging.getLogger(__name__)


def sampler(server: Server, boot_id: str | None) -> list[str]:
    """The command of the process that samples beside this server. `boot_id`: the tag of one that was launched."""
    tag = ["--tag", boot_id] if boot_id else []
    return [sys.executable, "-m", "speedmatrix.sampling", "--port", str(hosts.port_of(server.url)), *tag]


@dataclass
class Recording:
    """A series that is being taken; `taken` holds it once it has ended."""

    taken: Taken

    def telemetry(self, window: Window | None) -> dict[str, Any] | None:
        """The cell's `telemetry` over the window; None where there is no window."""
        if window is None:
            return None
        try:
            return integration.summary(self.taken, window)
        except Exception:
            log.exception("telemetry could not be worked out")
            return integration.summary(Taken(failed="what the sampler wrote could not be worked out"), window)

    def csv(self, window: Window | None) -> str | None:
        """The series around the window; None where nothing was read, or nothing that makes sense."""
        if window is None or not self.taken.readings:
            return None
        counted = {readings.HOST, *(f"gpu{index}" for index in self.taken.gpus)}
        try:
            own = [one for one in self.taken.readings if one.device in counted]
            return readings.to_csv(own, window.t0_ns, window.t1_ns)
        except TypeError:
            log.exception("telemetry could not be written down")
            return None


@contextlib.contextmanager
def recording(server: Server, boot_id: str | None) -> Iterator[Recording]:
    """Sample beside what is measured inside."""
    why = hardware.elsewhere(server.hardware, server.url)
    with running(None if why else sampler(server, boot_id), why) as taking:
        yield taking


@contextlib.contextmanager
def running(command: list[str] | None, why: str | None = None) -> Iterator[Recording]:
    """A sampler's process, started now and ended at the end; None: none, for the reason `why`."""
    result = Recording(Taken(failed=why))
    process = None
    with contextlib.ExitStack() as files:
        if command:
            try:
                # Files without a name: nothing of them is left, whatever ends this process.
                out = files.enter_context(tempfile.TemporaryFile())
                process = _Process(command, out, files.enter_context(tempfile.TemporaryFile()))
            except OSError as error:
                result.taken = Taken(failed=f"the sampler could not be started: {error.strerror}")
        try:
            yield result
        finally:
            if process:
                result.taken = process.ended()


class _Process:
    """A sampler at work. Raises OSError where it can't be started."""

    def __init__(self, command: list[str], out: IO[bytes], errors: IO[bytes]) -> None:
        self._out, self._errors = out, errors
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its end is the sign to end, also when this process is killed
            stdout=out,
            stderr=errors,
            env=processes.importable(os.environ),
        )

    def ended(self) -> Taken:
        """End it, by force where it does not end by itself, and read what it left."""
        crashed = self._process.poll() is not None
        try:
            hung = not crashed and not _end(self._process)
            taken = parse(_text(self._out))
            if crashed:
                lines = _text(self._errors).strip().splitlines() or [f"code {self._process.returncode}"]
                taken = replace(taken, failed=f"the sampler crashed: {redact.redact_text(lines[-1][:200])}")
            elif hung:
                taken = replace(taken, failed="the sampler hung")
        except Exception as error:
            log.exception("the sampler's samples could not be read")
            return Taken(failed=f"the sampler's samples could not be read: {type(error).__name__}")
        if taken.failed:
            log.warning("no telemetry: %s", taken.failed)
        return taken


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> bool:
    """Ask it to end, kill it where it does not; whether it ended by itself. One that a driver holds is left behind."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_END_S)
        return True
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        return False


def parse(text: str) -> Taken:
    """What a sampler wrote; a line that was cut off by its end is left out."""
    known: dict[str, Any] = {}
    series = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError, TypeError):
            item = json.loads(line)
            if isinstance(item, dict):
                known = item
            else:
                series.append(Reading(*item))
    if not series:
        return Taken(failed="the sampler read nothing")
    return Taken(
        readings=series,
        source=known.get("source"),
        gpus=tuple(known.get("gpus", ())),
        by=known.get("by"),
        sliced=tuple(known.get("sliced", ())),
        why=known.get("why", {}),
    )
