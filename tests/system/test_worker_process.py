"""Worker processes beside a server: start, options, signals and kills."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ingot.client import Client
from ingot.jobs.model import JobStatus
from tests.processes import Process, started
from tests.system.programs import PYTHON_INGOT, run_ingot, served, worker
from tests.waiting import until

APP = """
import os
import time
from ingot import Client, Worker

worker = Worker()

@worker.handler("greet", concurrency=8)
def greet(job):
    print("hello", job.payload)
    return f"Hello, {job.payload}"

@worker.handler("slow", concurrency=8)
def slow(job):
    for step in range(job.payload or 40):
        job.check()
        time.sleep(0.05)
    return job.attempt

@worker.handler("onward")
def onward(job):
    with Client() as client:
        return client.submit("greet", job.payload).wait("45s").result, os.environ.get("INGOT_TOKEN")
"""
APART = """
import os
from ingot import Worker, run

worker = Worker()

@worker.handler("apart", isolate=True)
def apart(job):
    return [os.getpid(), os.getcwd(), __name__]

if __name__ == "__main__":
    run(worker)
"""


@contextmanager
def running_worker(folder: Path, url: str, *options: str, cold: bool = False, **variables: str) -> Iterator[Process]:
    """Run a worker process. It gets SIGTERM at the end of the block."""
    (folder / "app.py").write_text(APP, encoding="utf-8")
    environment = {**os.environ, "INGOT_DATA": str(folder / "data"), **variables}
    with worker(*(options or ("--app", "app:worker")), url=url, cwd=folder, env=environment, cold=cold) as process:
        yield process


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str, Client]]:
    with served(tmp_path / "data") as (_, url):
        token = (tmp_path / "data" / "operator.token").read_text(encoding="utf-8").strip()
        with Client(url, token=token) as client:
            yield tmp_path, url, client


def test_a_worker_runs_jobs_and_drains_on_sigterm(server: tuple[Path, str, Client]) -> None:
    folder, url, client = server
    with running_worker(folder, url, cold=True) as process:
        jobs = client.submit_many("greet", ["Ada", "Grace", "Edsger"])
        assert [job.wait("45s").result for job in jobs] == ["Hello, Ada", "Hello, Grace", "Hello, Edsger"]
        slow = client.submit("slow")
        for update in slow.watch():
            if update.status is JobStatus.RUNNING:
                break
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=20)[1]
        assert process.returncode == 0
    assert slow.refresh().result == 1, "the running job was not finished"
    assert '"types":"greet, onward, slow"' in output, "the log does not list the types"


def test_a_worker_and_clients_in_its_handlers_use_the_server_option(
    server: tuple[Path, str, Client],
) -> None:
    folder, url, client = server
    options = ("--server", url, "--token-file", str(folder / "data" / "operator.token"))
    with running_worker(folder, "http://127.0.0.1:9", *options):
        assert client.submit("onward", "Ada").wait("45s").result == ["Hello, Ada", None]


def test_a_worker_uses_its_credential_and_clients_in_its_handlers_use_the_token(
    server: tuple[Path, str, Client],
) -> None:
    folder, url, client = server
    headers = {"authorization": f"Bearer {(folder / 'data' / 'operator.token').read_text(encoding='utf-8').strip()}"}
    credential = httpx.post(
        f"{url}/api/v1/admin/workers", headers=headers, json={"id": "press", "shared": True}, verify=False
    ).json()
    (folder / "token").write_text(headers["authorization"].removeprefix("Bearer "), encoding="utf-8-sig")
    environment = {
        "INGOT_WORKER_ID": credential["id"],
        "INGOT_WORKER_SECRET": credential["secret"],
        "INGOT_DATA": str(folder / "none"),
    }
    options = ("--server", url, "--token-file", "token", "--tenant", "default")
    with running_worker(folder, "", *options, **environment):
        job = client.submit("onward", "Ada").wait("45s")
        assert job.result == ["Hello, Ada", None], "the handler sees the token in its environment"
        assert job.attempts()[0].worker_id.startswith("press/")


@pytest.mark.parametrize("as_module", [True, False])
def test_an_isolated_handler_is_imported_like_the_app(server: tuple[Path, str, Client], as_module: bool) -> None:
    folder, url, client = server
    (folder / "apart.py").write_text(APART, encoding="utf-8")
    environment = {**os.environ, "INGOT_SERVER_URL": url, "INGOT_DATA": str(folder / "data")}
    command = (*PYTHON_INGOT, "worker", "--app", "apart:worker") if as_module else (sys.executable, "apart.py")
    with started(command, cwd=folder, env=environment) as process:
        first, second = [job.wait("45s").result for job in client.submit_many("apart", [1, 2])]
    assert first[1:] == second[1:] == [str(folder), "apart" if as_module else "__mp_main__"]
    assert len({first[0], second[0], process.pid}) == 3


def test_the_job_of_a_killed_worker_is_running_until_its_lease_expires(server: tuple[Path, str, Client]) -> None:
    folder, url, client = server
    with running_worker(folder, url) as process:
        job = client.submit("slow")
        for update in job.watch():
            if update.status is JobStatus.RUNNING:
                break
        process.kill()
        process.wait()
    assert job.refresh().status is JobStatus.RUNNING, "the lease ended too early"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--app", "nowhere:worker"], "nowhere"),
        (["--app", "os:path"], "os:path"),
        (["--hours", "22-6"], "'22-6'"),
        (["--timezone", "Europe/Zurich"], "--hours"),
        (["--token-file", "nowhere"], "nowhere"),
        (["--server", "nowhere"], "'nowhere'"),
        (["--tenant", "zürich"], "'zürich'"),
        (["--tenant", ""], "--tenant"),
        (["--server", ""], "--server"),
    ],
)
def test_invalid_worker_options_are_reported(tmp_path: Path, options: list[str], message: str) -> None:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    done = run_ingot("worker", *options, cwd=tmp_path)
    assert (done.code, message in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("text", [b"", b"ingot_a\0b", "ingot_ü".encode(), b"\xa6\xff", b"a" * 5000])
def test_a_token_file_without_a_valid_token_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "token").write_bytes(text)
    done = run_ingot("worker", "--token-file", "token", cwd=tmp_path)
    assert (done.code, "token file" in done.stderr) == (2, True), done.stderr


def test_a_second_sigterm_ends_a_worker_at_once(server: tuple[Path, str, Client]) -> None:
    folder, url, client = server
    with running_worker(folder, url) as process:
        job = client.submit("slow", 1000)
        for update in job.watch():
            if update.status is JobStatus.RUNNING:
                break
        process.send_signal(signal.SIGTERM)
        until(lambda: [first.status for first in client.workers()] == ["draining"], why="the worker drains")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 130
