"""`ingot serve` and the limit of open files."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.processes import started
from tests.system.programs import PYTHON_INGOT


def serve_with(folder: Path, limits: str) -> tuple[list[str], str]:
    """Start a server under these limits. Return its log lines and its resulting limit."""
    command = ["sh", "-c", f'{limits}; exec "$@"', "sh", *PYTHON_INGOT, "serve", "--data", str(folder), "--port", "0"]
    with started(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        log_lines: list[str] = []
        for line in process.stderr:
            log_lines.append(line)
            if '"message":"serving"' in line:
                limits_of_process = Path(f"/proc/{process.pid}/limits").read_text(encoding="utf-8")
                match = re.search(r"Max open files\s+(\d+)", limits_of_process)
                assert match is not None
                return log_lines, match[1]
        pytest.fail("".join(log_lines))


def test_serve_raises_the_limit_of_open_files_to_the_hard_limit(tmp_path: Path) -> None:
    log_lines, limit = serve_with(tmp_path, "ulimit -Sn 300; ulimit -Hn 2000")
    assert limit == "2000"
    assert json.loads(log_lines[0])["message"] == "open_files_limited"
    assert (json.loads(log_lines[0])["enough_for"], json.loads(log_lines[0])["connections_max"]) == (1800, 10000)


def test_serve_logs_nothing_if_the_limit_of_open_files_is_enough(tmp_path: Path) -> None:
    log_lines, limit = serve_with(tmp_path, "ulimit -n 2000; export INGOT_CONNECTIONS_MAX=1500")
    assert limit == "2000"
    assert "open_files" not in "".join(log_lines)
