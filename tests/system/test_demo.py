"""The demo: the processes that it leaves running, and how they are stopped."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import msgspec
import pytest

from examples.demo.processes import RECORD, DemoRecord, StartedProcess, read_record, start_time_of, stop_recorded
from tests.processes import started

HERE = Path(__file__).parents[2]


def command(data: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "examples.demo", "--data", str(data), *options]


def run(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the demo without a terminal. It returns, and the processes that it started keep running."""
    return subprocess.run(command(data, *options), cwd=HERE, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "demo"
    stop_recorded(tmp_path / "demo")


def golden(name: str) -> str:
    return (HERE / "samples" / "golden" / name).read_text(encoding="utf-8")


def alive(record: DemoRecord) -> list[bool]:
    return [start_time_of(process.pid) == process.start_time for process in record.processes]


@pytest.mark.long
def test_the_demo_leaves_a_server_and_two_workers_that_the_next_run_replaces(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        first = run(data, "--port", str(port))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "The result is as expected" in first.stdout
    assert "6 done, 2 failed" in first.stderr
    assert (data / "markdown/tables/tables.md").read_text(encoding="utf-8") == golden("tables.md")
    assert (data / "markdown/scanned/scanned.md").read_text(encoding="utf-8") == golden("scanned.md")
    record = read_record(data)
    assert record is not None
    assert [one.name for one in record.processes] == ["server", "worker-1", "worker-2"]
    assert alive(record) == [True, True, True]
    assert record.url != f"http://127.0.0.1:{port}", "the busy port was used"
    assert httpx.get(f"{record.url}/healthz", verify=False).json()["status"] == "ok"
    (link,) = re.findall(r"http://\S+/auth/link\?\S+", first.stdout)
    assert link.startswith(record.url)
    assert httpx.get(link, verify=False).status_code == 200

    second = run(data, "--port", str(port))
    assert second.returncode == 0, second.stdout + second.stderr
    assert second.stdout.startswith("Stopped the earlier demo (PIDs ")
    assert "The result is as expected" in second.stdout, "the second run did not overwrite the outputs of the first"
    assert alive(record) == [False, False, False]

    again = read_record(data)
    assert again is not None
    stopped = run(data, "--stop")
    assert stopped.stdout.startswith(f"Stopped the demo at {again.url} (PIDs ")
    assert alive(again) == [False, False, False]
    assert run(data, "--stop").stdout == "No demo is running.\n"


@pytest.mark.long
def test_the_demo_on_a_terminal_runs_until_ctrl_c(data: Path) -> None:
    ours, theirs = pty.openpty()
    with started(command(data), cwd=HERE, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = ""
        record: DemoRecord | None = None
        with suppress(OSError):  # Raised when the other side of the terminal is closed.
            while text := os.read(ours, 65_536):
                shown += text.decode(errors="replace")  # A character may arrive in two parts.
                if record is None and "Press Ctrl-C to stop them." in shown:
                    record = read_record(data)
                    assert record is not None
                    assert alive(record) == [True, True, True]
                    process.send_signal(signal.SIGINT)
        os.close(ours)
        process.wait(timeout=30)
    assert "The result is as expected" in shown
    assert "━" in shown, "no progress bar was shown"
    assert shown.rstrip().endswith("Stopped.")
    assert process.returncode == 0
    assert record is not None
    assert alive(record) == [False, False, False]
    assert read_record(data) is None


def test_a_demo_that_cannot_start_reports_the_error_and_leaves_no_process(data: Path) -> None:
    data.mkdir()
    (data / "ingot.db").write_text("no database", encoding="utf-8")
    done = run(data)
    assert done.returncode == 1
    assert done.stderr.startswith("demo: the server did not start:")
    assert read_record(data) is None


def test_a_process_that_reuses_a_recorded_pid_is_not_stopped(tmp_path: Path) -> None:
    with started(["sleep", "60"]) as other, started(["sleep", "60"]) as ours:
        start_time = start_time_of(ours.pid)
        assert start_time is not None
        record = DemoRecord(
            "http://127.0.0.1:1",
            [StartedProcess("server", ours.pid, start_time), StartedProcess("worker-1", other.pid, "x")],
        )
        (tmp_path / RECORD).write_bytes(msgspec.json.encode(record))
        assert stop_recorded(tmp_path) == [ours.pid]
        assert ours.wait(timeout=30) == -signal.SIGTERM
        assert other.poll() is None
        assert stop_recorded(tmp_path) == []
