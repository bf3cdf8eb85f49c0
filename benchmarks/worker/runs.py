"""Starts a measured run in its own process, and kills everything that it leaves behind."""

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
    """A measured run failed or timed out."""


def run(request: RunRequest) -> RunResult:
    """Run a request in its own process and return the result. Raises `RunFailed`."""
    command = [sys.executable, "-m", "benchmarks.worker.measured_run", msgspec.json.encode(request).decode()]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, error_output = process.communicate(timeout=RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"the run took longer than {RUN_SECONDS_MAX:g} seconds") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # Also its worker, if it is still running.
    if process.returncode:
        log = Path(request.start_times).with_suffix(".log")
        log_end = log.read_text(errors="replace")[-500:] if log.exists() else ""
        raise RunFailed(f"{error_output.strip().rpartition(chr(10))[2]} {log_end}".strip())
    return msgspec.json.decode(output, type=RunResult)
