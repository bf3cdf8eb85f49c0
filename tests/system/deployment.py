"""A server and its workers as processes, which tests start, stop, kill and restart."""

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


def wait_until_finished(jobs: Iterable[SyncJob], *, seconds: float = SECONDS_MAX) -> None:
    """Wait until all these jobs are finished."""
    for job in jobs:
        until(partial(_is_finished, job), seconds=seconds, why=f"{job} is finished")


def _is_finished(job: SyncJob) -> bool:
    return job.refresh().finished


class LoggedProcess:
    """A process whose output goes to a file."""

    def __init__(self, *arguments: str, output: Path, environment: Mapping[str, str]) -> None:
        self._output_file = output
        with output.open("w", encoding="utf-8") as stream:
            self.process = start_ingot(*arguments, cwd=ROOT, env=environment, stdout=stream, stderr=stream)
        self.pid = self.process.pid

    def output(self) -> str:
        """Return the output so far."""
        return self._output_file.read_text(encoding="utf-8", errors="replace")

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self, seconds: float = 30.0) -> int:
        """Wait until it ends, and return the exit code."""
        return self.process.wait(timeout=seconds)

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Kill the process and all its children."""
        end(self.process)


class Deployment:
    """A server with its data folder, and its workers."""

    def __init__(self, folder: Path, *, lease_seconds: float) -> None:
        self.folder = folder
        self.notes_folder = Path(mkdtemp())  # Unprivileged handlers can write there too.
        self.notes_folder.chmod(0o777)
        self._lease_seconds = lease_seconds
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._started: list[LoggedProcess] = []
        try:
            self.start_server()
        except BaseException:
            self._end()
            raise
        token = (folder / "data" / "operator.token").read_text(encoding="utf-8").strip()
        self.headers = {"authorization": f"Bearer {token}"}
        self.client = Client(self.url, token=token)

    def start_server(self) -> LoggedProcess:
        """Start the server, and wait until it responds."""
        arguments = ("serve", "--data", str(self.folder / "data"), "--port", str(self._port))
        self.server = self._start(*arguments, INGOT_LEASE_SECONDS=str(self._lease_seconds))
        until(self._answers, why="the server is up")
        return self.server

    def _answers(self) -> bool:
        assert self.server.is_running, self.server.output()
        try:
            return httpx.get(f"{self.url}/healthz", verify=False).is_success
        except httpx.TransportError:
            return False

    def start_worker(self, *options: str, app: str = HANDLERS, **environment: str) -> LoggedProcess:
        """Start a worker."""
        variables = {"INGOT_SERVER_URL": self.url, "INGOT_DATA": str(self.folder / "data")} | environment
        return self._start("worker", "--app", app, *options, **variables)

    def _start(self, *arguments: str, **environment: str) -> LoggedProcess:
        output = self.folder / f"{arguments[0]}-{len(self._started)}.log"
        process = LoggedProcess(*arguments, output=output, environment={**os.environ, **environment})
        self._started.append(process)
        return process

    def worker_statuses(self) -> dict[int, str]:
        """Return the status of each worker by its process ID."""
        return {int(worker.id.split("/")[-1].rsplit("-", 2)[1]): str(worker.status) for worker in self.client.workers()}

    def wait_until_online(self, *processes: LoggedProcess) -> None:
        """Wait until these workers are online."""
        pids = {process.pid for process in processes}
        until(
            lambda: pids <= {pid for pid, status in self.worker_statuses().items() if status == "online"}, why="online"
        )

    def events(self, name: str) -> list[Any]:
        """Return all events whose names begin with a prefix."""
        events: list[Any] = []
        cursor: str | None = None
        while True:
            query = {"limit": "200"} | ({} if cursor is None else {"after": cursor})
            page = httpx.get(f"{self.url}/api/v1/events", params=query, headers=self.headers, verify=False).json()
            events += [event for event in page["items"] if event["name"].startswith(name)]
            cursor = page["next_cursor"]
            if not page["items"]:
                return events

    def create_credential(self, worker_id: str = "press", *types: str) -> dict[str, str]:
        """Create a worker credential, and return it as environment variables."""
        body = {"id": worker_id, "types": types}
        response = httpx.post(f"{self.url}/api/v1/admin/workers", headers=self.headers, json=body, verify=False)
        assert response.status_code == 201, response.text
        return {"INGOT_WORKER_ID": worker_id, "INGOT_WORKER_SECRET": response.json()["secret"]}

    def notes(self, name: str = "all") -> list[list[str]]:
        """Return the lines that handlers have written to a note file, split into words."""
        note_file = self.notes_folder / name
        return (
            [line.split() for line in note_file.read_text(encoding="utf-8").splitlines()] if note_file.exists() else []
        )

    def wait_for_notes(self, times: int) -> None:
        """Wait until handlers have written a number of notes."""
        until(lambda: len(self.notes()) >= times, why=f"{times} ran")

    def note_file(self, name: str = "all") -> str:
        """Return the path of a note file."""
        return str(self.notes_folder / name)

    def close(self) -> None:
        """Stop the client and kill all processes."""
        self.client.close()
        self._end()

    def _end(self) -> None:
        for process in self._started:
            process.close()
        rmtree(self.notes_folder)


@contextmanager
def deploy(folder: Path, *, lease_seconds: float = 30.0) -> Iterator[Deployment]:
    """Start a server without workers."""
    deployment = Deployment(folder, lease_seconds=lease_seconds)
    try:
        yield deployment
    finally:
        deployment.close()


def wait_until_running(job: SyncJob, *, attempt: int = 1) -> SyncJob:
    """Wait until an attempt of a job is running, and return the job."""
    until(lambda: job.refresh().status is JobStatus.RUNNING and job.data.attempts >= attempt, why=f"{job} runs")
    return job
