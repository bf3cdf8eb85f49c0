"""The output of jobs as log lines, for the terminal of `ingot dev`."""

from __future__ import annotations

import threading
from typing import Final

import structlog

LINE_CHARS_MAX: Final = 4096  # A longer line is logged in pieces.
log = structlog.get_logger("ingot.worker")


class OutputLines:
    """Logs the output of a job line by line, as the event `job_output`. Thread-safe."""

    def __init__(self, job_id: str, job_type: str) -> None:
        self._fields = {"job_id": job_id, "job_type": job_type}
        self._lock = threading.Lock()
        self._incomplete_line = ""

    def write(self, text: str) -> None:
        """Log the lines that are complete with this text."""
        with self._lock:
            *lines, rest = (self._incomplete_line + text).split("\n")
            if len(rest) > LINE_CHARS_MAX:
                lines.append(rest)
                rest = ""
            self._incomplete_line = rest
        for line in lines:
            self._log_line(line)

    def flush(self) -> None:
        """Log the last line, if it is incomplete."""
        with self._lock:
            line, self._incomplete_line = self._incomplete_line, ""
        self._log_line(line)

    def _log_line(self, line: str) -> None:
        """Log a line as a terminal would show it: progress bars return to its start and overwrite it."""
        line = line.rstrip().rpartition("\r")[2]
        if line:
            log.info("job_output", text=line, output=line, **self._fields)
