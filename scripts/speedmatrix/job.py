"""What surrounds every job's call: its log, one line to the person on failure, and an end with the sweep's own."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from speedmatrix import explain, owner, redact

log = logging.getLogger(__name__)


@contextlib.contextmanager
def job(log_file: str) -> Iterator[None]:
    """Run a job: log to `log_file`, end when the sweep's process is gone, and on failure print one line and exit 1."""
    Path(log_file).parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(log_file, mode="w", encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(_Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.raiseExceptions = False  # a log that can't be written must not hide the line that says why
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_at_once)
    owner.end_with_owner()
    try:
        yield
    except Exception as error:
        log.exception("the job failed")
        line = redact.redact_text(explain.line(error))
        print(f"error: {line} (more in {log_file})", file=sys.stderr, flush=True)
        sys.exit(1)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    """Ctrl-C reaches every process of the terminal. Files are whole or absent, so that there is nothing to tidy up;
    the sweep's own last line speaks for all."""
    log.warning("interrupted")
    logging.shutdown()
    os._exit(130)


class _Redacting(logging.Formatter):
    """Log lines, tracebacks included, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        line: str = super().format(record)
        return redact.redact_text(line)
