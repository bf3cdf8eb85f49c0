"""Logs on standard error, without the values of local variables."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import structlog
from ingot.kernel.logs import configure_logs
configure_logs()
secret = "a secret value"
try:
    raise ValueError("no")
except ValueError:
    structlog.get_logger("x").exception("it_failed", job_id="j1")
"""


def test_a_logged_error_shows_its_traceback_but_no_local_variable() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=15)
    assert ran.stdout == ""
    assert "it_failed" in ran.stderr
    assert "ValueError: no" in ran.stderr
    assert "j1" in ran.stderr
    assert "a secret value" not in ran.stderr


def test_a_program_that_set_its_logs_up_keeps_them() -> None:
    program = "import structlog\nstructlog.configure(processors=[])\n" + PROGRAM.split("secret", maxsplit=1)[0]
    program += "print(structlog.get_config()['processors'])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=15)
    assert ran.stdout.strip() == "[]"
