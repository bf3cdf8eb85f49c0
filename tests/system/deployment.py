"""A server and its workers as processes, which tests start, stop, kill and start again."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import httpx

from ingot.client import Client
from ingot.client.synchronous.job import SyncJob
from ingot.jobs.model import JobStatus
from tests.processes import end
from tests.system.programs import ROOT, start_ingot
from tests.waiting import SECONDS_MAX, until

HANDLERS = "tests.system.handlers:worker"


def all_of(jobs: Iterable[SyncJob], *, seconds: float = SECONDS_MAX) -> None:
    """Wait until these jobs are finished."""
    for job in jobs:
        until(partial(_finished, job), seconds=seconds, why=f"{job} is finished")


def _finished(job: SyncJob) -> bool:
    return job.refresh().finished


class Process:
    """One that we started, and what it said."""

    def __init__(self, *words: str, said: Path, environment: Mapping[str, str]) -> None:
        self._said = said
        with said.open("w", encoding="utf-8") as stream:
            self.process = start_ingot(*words, cwd=ROOT, env=environment, stdout=stream, stderr=stream)
        self.pid = self.process.pid

    def said(self) -> str:
        """What it wrote so far."""
        return self._said.read_text(encoding="utf-8", errors="replace")

    def tell(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self, seconds: float = 30.0) -> int:
        """Wait for its end, and answer how it ended."""
        return self.process.wait(timeout=seconds)

    @property
    def runs(self) -> bool:
        """Whether it still does."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it and everything that it started."""
        end(self.process)


class Crew:
    """A folder with a server's data, the server, and workers."""

    def __init__(self, folder: Path, *, lease_seconds: float) -> None:
        self.folder = folder
        self.notes = Path(mkdtemp())  # Where handlers without rights come to, too.
        self.notes.chmod(0o777)
        self._lease_seconds = lease_seconds
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._started: list[Process] = []
        try:
            self.serve()
        except BaseException:
            self._end()
            raise
        token = (folder / "data" / "operator.token").read_text(encoding="utf-8").strip()
        self.headers = {"authorization": f"Bearer {token}"}
        self.client = Client(self.url, token=token)

    def serve(self) -> Process:
        """Start the server, and wait until it answers."""
        words = ("serve", "--data", str(self.folder / "data"), "--port", str(self._port))
        self.server = self._start(*words, INGOT_LEASE_SECONDS=str(self._lease_seconds))
        until(self._answers, why="the server is up")
        return self.server

    def _answers(self) -> bool:
        assert self.server.runs, self.server.said()
        try:
            return httpx.get(f"{self.url}/healthz", verify=False).is_success
        except httpx.TransportError:
            return False

    def work(self, *options: str, app: str = HANDLERS, **environment: str) -> Process:
        """Start a worker."""
        known = {"INGOT_SERVER_URL": self.url, "INGOT_DATA": str(self.folder / "data"), **environment}
        return self._start("worker", "--app", app, *options, **known)

    def _start(self, *words: str, **environment: str) -> Process:
        said = self.folder / f"{words[0]}-{len(self._started)}.log"
        process = Process(*words, said=said, environment={**os.environ, **environment})
        self._started.append(process)
        return process

    def workers(self) -> dict[int, str]:
        """The status of the workers by their process."""
        return {int(one.id.split("/")[-1].rsplit("-", 2)[1]): str(one.status) for one in self.client.workers()}

    def online(self, *processes: Process) -> None:
        """Wait until these workers are there."""
        pids = {process.pid for process in processes}
        until(lambda: pids <= {pid for pid, status in self.workers().items() if status == "online"}, why="online")

    def events(self, name: str) -> list[Any]:
        """The events whose names begin so, all that there are."""
        found: list[Any] = []
        cursor: str | None = None
        while True:
            query = {"limit": "200"} | ({} if cursor is None else {"after": cursor})
            page = httpx.get(f"{self.url}/api/v1/events", params=query, headers=self.headers, verify=False).json()
            found += [event for event in page["items"] if event["name"].startswith(name)]
            cursor = page["next_cursor"]
            if not page["items"]:
                return found

    def credential(self, worker_id: str = "press", *types: str) -> dict[str, str]:
        """A worker credential, as a worker's environment."""
        body = {"id": worker_id, "types": types}
        made = httpx.post(f"{self.url}/api/v1/admin/workers", headers=self.headers, json=body, verify=False)
        assert made.status_code == 201, made.text
        return {"INGOT_WORKER_ID": worker_id, "INGOT_WORKER_SECRET": made.json()["secret"]}

    def noted(self, name: str = "all") -> list[list[str]]:
        """What handlers noted, line by line."""
        place = self.notes / name
        return [line.split() for line in place.read_text(encoding="utf-8").splitlines()] if place.exists() else []

    def ran(self, times: int) -> None:
        """Wait until so much was noted."""
        until(lambda: len(self.noted()) >= times, why=f"{times} ran")

    def place(self, name: str = "all") -> str:
        """Where handlers note something."""
        return str(self.notes / name)

    def close(self) -> None:
        """End all that was started."""
        self.client.close()
        self._end()

    def _end(self) -> None:
        for process in self._started:
            process.close()
        rmtree(self.notes)


@contextmanager
def crew(folder: Path, *, lease_seconds: float = 30.0) -> Iterator[Crew]:
    """A server without workers yet."""
    one = Crew(folder, lease_seconds=lease_seconds)
    try:
        yield one
    finally:
        one.close()


def running(job: SyncJob, *, attempt: int = 1) -> SyncJob:
    """Wait until an attempt of a job is under way."""
    until(lambda: job.refresh().status is JobStatus.RUNNING and job.data.attempts >= attempt, why=f"{job} runs")
    return job
