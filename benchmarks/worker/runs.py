"""One measured run in a process of its own, which leaves no worker behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.queue.folders import REPOSITORY
from benchmarks.worker.adapter import RunRequest, RunResult

RUN_SECONDS_MAX: Final = 180.0


class RunFailed(Exception):
    """A run that did not come to its end."""


def run(order: RunRequest) -> RunResult:
    """What the run found. Raises `Failed`."""
    command = [sys.executable, "-m", "benchmarks.worker.measured_run", msgspec.json.encode(order).decode()]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        try:
            told, error = running.communicate(timeout=RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"it took longer than {RUN_SECONDS_MAX:g} seconds") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)  # Its worker too, when it could not end it itself.
    if running.returncode:
        log = Path(order.notes).with_suffix(".log")
        said = log.read_text(errors="replace")[-500:] if log.exists() else ""
        raise RunFailed(f"{error.strip().rpartition(chr(10))[2]} {said}".strip())
    return msgspec.json.decode(told, type=RunResult)
