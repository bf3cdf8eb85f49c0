"""What worker processes log: output of handlers with their job, outages of the server, and signals."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ingot.client import Client
from tests.processes import Process
from tests.system.programs import served, worker
from tests.waiting import until

APP = """
import asyncio
import logging
import warnings

import structlog

from ingot import Worker

worker = Worker()
log = logging.getLogger("press")


@worker.handler("thread")
def thread(job):
    log.warning("in a thread")


@worker.handler("task", concurrency=4)
async def task(job):
    await asyncio.sleep(0)
    log.info("in a task")
    await asyncio.to_thread(structlog.get_logger().warning, "in_another_thread")


@worker.handler("apart", isolate=True)
def apart(job):
    print("printed")
    log.info("in a process")


@worker.handler("wait")
def wait(job):
    while not job.wait("50ms"):
        pass
    job.check()
"""
TYPES = ["thread", "task", "apart"]


class WorkerLog:
    """A running worker, and its log."""

    def __init__(self, process: Process, file: Path) -> None:
        self.process = process
        self._file = file

    def lines(self) -> list[dict[str, Any]]:
        """Return the complete log lines, each of which is a JSON object."""
        return [json.loads(line) for line in self._file.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()]

    def named(self, message: str) -> list[dict[str, Any]]:
        """Return the log lines with this message."""
        return [line for line in self.lines() if line["message"] == message]

    def wait_for(self, message: str) -> None:
        """Wait until a line has this message."""
        until(lambda: self.named(message), why=f"{message} in {self._file}")


@contextmanager
def logging_worker(folder: Path, url: str, **variables: str) -> Iterator[WorkerLog]:
    """Run a worker process that logs to a file."""
    (folder / "app.py").write_text(APP, encoding="utf-8")
    file = folder / "worker.log"
    environment = {**os.environ, "INGOT_DATA": str(folder / "data"), **variables}
    with (
        file.open("w", encoding="utf-8") as stderr,
        worker("--app", "app:worker", url=url, cwd=folder, env=environment, stderr=stderr) as process,
    ):
        yield WorkerLog(process, file)


@contextmanager
def client_of(folder: Path, url: str) -> Iterator[Client]:
    with Client(url, token=(folder / "data" / "operator.token").read_text(encoding="utf-8").strip()) as client:
        yield client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str, Client]]:
    with served(tmp_path / "data") as (_, url), client_of(tmp_path, url) as client:
        yield tmp_path, url, client


def test_log_lines_of_handlers_name_the_job(server: tuple[Path, str, Client]) -> None:
    folder, url, client = server
    with logging_worker(folder, url) as log:
        jobs = {type: client.submit(type) for type in TYPES}
        for job in jobs.values():
            job.wait("60s")
        until(lambda: len(log.named("job_succeeded")) == len(TYPES), why="every attempt is logged")
        assert jobs["apart"].log() == "printed\nINFO press: in a process\n"
        assert jobs["task"].log() == "INFO press: in a task\n"
    for message, type in (
        ("in a thread", "thread"),
        ("in a task", "task"),
        ("in_another_thread", "task"),
        ("job_succeeded", "apart"),
    ):
        (line,) = [line for line in log.named(message) if line["job_type"] == type]
        assert line["job_id"] == jobs[type].id


def test_the_log_level_applies_to_workers(server: tuple[Path, str, Client]) -> None:
    folder, url, client = server
    with logging_worker(folder, url, INGOT_LOG_LEVEL="warning") as log:
        for type in ("task", "thread"):
            client.submit(type).wait("60s")
        log.wait_for("in a thread")
    assert {line["level"] for line in log.lines()} == {"warning"}


def test_an_outage_of_the_server_and_a_signal_are_each_logged_once(tmp_path: Path) -> None:
    with (
        served(tmp_path / "data") as (process, url),
        logging_worker(tmp_path, url) as log,
        client_of(tmp_path, url) as client,
    ):
        client.submit("task").wait("60s")
        process.kill()
        process.wait()
        log.wait_for("server_lost")
        with served(tmp_path / "data", "--port", url.rpartition(":")[2]):
            log.wait_for("server_back")
            waiting = client.submit("wait")
            until(lambda: waiting.refresh().status == "running", why="the job runs")
            log.process.send_signal(signal.SIGTERM)
            log.wait_for("stopping")
            log.process.send_signal(signal.SIGKILL)
    (lost,), (back,), (stopping,) = (log.named(message) for message in ("server_lost", "server_back", "stopping"))
    assert (lost["level"], url in lost["detail"], back["level"]) == ("warning", True, "info")
    assert (stopping["signal"], stopping["running_jobs"], stopping["drain_seconds"]) == ("SIGTERM", 1, 30)
    assert log.named("claim_failed") + log.named("heartbeat_failed") == []
