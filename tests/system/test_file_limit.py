"""Servers and workers raise the limit of open files, and warn of a limit that is too low."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.processes import started
from tests.system.programs import PYTHON_INGOT

APP = """
from ingot import Worker

worker = Worker()

@worker.handler("greet", concurrency=CONCURRENCY)
def greet(job):
    return "hello"
"""


def run_with(limits: str, *arguments: str, cwd: Path | None = None, until: str) -> tuple[list[str], str]:
    """Run a command under these limits until it logs this event. Return its log lines and its resulting limit."""
    command = ["sh", "-c", f'{limits}; exec "$@"', "sh", *PYTHON_INGOT, *arguments]
    with started(command, cwd=cwd, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        log_lines: list[str] = []
        for line in process.stderr:
            log_lines.append(line)
            if f'"message":"{until}"' in line:
                limits_of_process = Path(f"/proc/{process.pid}/limits").read_text(encoding="utf-8")
                match = re.search(r"Max open files\s+(\d+)", limits_of_process)
                assert match is not None
                return log_lines, match[1]
        pytest.fail("".join(log_lines))


def serve_with(folder: Path, limits: str) -> tuple[list[str], str]:
    """Start a server under these limits. Return its log lines and its resulting limit."""
    return run_with(limits, "serve", "--data", str(folder), "--port", "0", until="serving")


def test_serve_raises_the_limit_of_open_files_to_the_hard_limit(tmp_path: Path) -> None:
    log_lines, limit = serve_with(tmp_path, "ulimit -Sn 300; ulimit -Hn 2000")
    assert limit == "2000"
    warning = json.loads(log_lines[0])
    assert (warning["message"], warning["level"]) == ("open_files_limited", "warning")
    assert (warning["open_files_limit"], warning["enough_for"], warning["connections_max"]) == (2000, 1200, 10000)
    assert "Clients beyond 1200 connections get 503" in warning["detail"]


def test_serve_logs_nothing_if_the_limit_of_open_files_is_enough(tmp_path: Path) -> None:
    log_lines, limit = serve_with(tmp_path, "ulimit -n 2000; export INGOT_CONNECTIONS_MAX=1200")
    assert limit == "2000"
    assert "open_files" not in "".join(log_lines)


def test_serve_accepts_connections_however_low_the_limit_of_open_files_is(tmp_path: Path) -> None:
    log_lines, _ = serve_with(tmp_path, "ulimit -n 150")
    assert json.loads(log_lines[0])["enough_for"] == 1


@pytest.mark.parametrize(("concurrency", "warns"), [(33, False), (34, True)])
def test_a_worker_raises_the_limit_of_open_files(tmp_path: Path, concurrency: int, warns: bool) -> None:
    (tmp_path / "app.py").write_text(APP.replace("CONCURRENCY", str(concurrency)), encoding="utf-8")
    log_lines, limit = run_with(
        "export INGOT_SERVER_URL=http://127.0.0.1:1 INGOT_TOKEN=none; ulimit -Sn 200; ulimit -Hn 400",
        "worker",
        cwd=tmp_path,
        until="waiting_for_server",
    )
    assert limit == "400"
    warnings = [line for line in map(json.loads, log_lines) if line["message"] == "open_files_limited"]
    assert [(line["level"], line["enough_for"], line["slots"]) for line in warnings] == [("warning", 33, 34)] * warns
