"""SIGHUP: servers and workers continue, and `ingot dev` ends with its terminal."""

from __future__ import annotations

import os
import pty
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ingot.client import Client
from tests.processes import Process
from tests.system.programs import EXIT_SECONDS, ingot, served, worker

APP = """
from ingot import Worker

worker = Worker()

@worker.handler("greet")
def greet(job):
    return "hello"
"""


class Terminal:
    """A terminal with a program. Closing it sends SIGHUP to the program."""

    def __init__(self, process: Process, descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor

    def read_until(self, pattern: str) -> str:
        """Read the output until it matches the pattern, and return the first group."""
        output = ""
        while (match := re.search(pattern, output)) is None:
            output += os.read(self._descriptor, 65_536).decode(errors="replace")
        return match[1]

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def on_terminal(folder: Path, *arguments: str) -> Iterator[Terminal]:
    """Run a command on a terminal, which the caller closes."""
    ours, theirs = pty.openpty()
    with ingot(*arguments, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        yield Terminal(process, ours)


def wait_for_line(process: Process, text: str) -> str:
    """Read the log of a process until a line contains this text, and return the line."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    pytest.fail(f"the process ended without {text}")


def test_a_server_logs_a_hangup_and_continues(tmp_path: Path) -> None:
    with served(tmp_path / "data") as (process, url):
        process.send_signal(signal.SIGHUP)
        assert "SIGTERM" in wait_for_line(process, "hangup_ignored")
        assert httpx.get(f"{url}/healthz", verify=False).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=EXIT_SECONDS) == 0


def test_a_server_continues_when_its_terminal_is_closed(tmp_path: Path) -> None:
    with on_terminal(tmp_path, "serve", "--port", "0") as terminal:
        url = terminal.read_until(r"serving (http://\S+)")
        terminal.close()
        assert httpx.get(f"{url}/healthz", verify=False).status_code == 200
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(timeout=EXIT_SECONDS) == 0


def test_a_worker_logs_a_hangup_and_continues(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    with served(tmp_path / "data") as (_, url):
        token = (tmp_path / "data" / "operator.token").read_text(encoding="utf-8").strip()
        environment = {**os.environ, "INGOT_TOKEN": token}
        with Client(url, token=token) as client, worker(url=url, cwd=tmp_path, env=environment) as process:
            assert client.submit("greet").wait("60s").result == "hello"
            process.send_signal(signal.SIGHUP)
            wait_for_line(process, "hangup_ignored")
            assert client.submit("greet").wait("60s").result == "hello"


def test_dev_ends_when_its_terminal_is_closed(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    with on_terminal(tmp_path, "dev", "--port", "0") as terminal:
        terminal.read_until("(Running handlers)")
        terminal.process.send_signal(signal.SIGHUP)
        terminal.read_until("(hangup_ignored)")
        terminal.close()
        assert terminal.process.wait(timeout=EXIT_SECONDS) == 0
