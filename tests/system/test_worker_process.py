"""Workers as people run them: processes beside a server, told to go, killed, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ingot.client import Client
from ingot.jobs.model import JobStatus
from tests.system.test_serve import served

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
    for step in range(40):
        job.check()
        time.sleep(0.05)
    return job.attempt

@worker.handler("onward")
def onward(job):
    with Client() as client:
        return client.submit("greet", job.payload).wait("15s").result, os.environ.get("INGOT_TOKEN")
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
def at_work(folder: Path, url: str, *command: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A worker process, which is told to go in the end."""
    (folder / "app.py").write_text(APP, encoding="utf-8")
    (folder / "apart.py").write_text(APART, encoding="utf-8")
    environment = {**os.environ, "INGOT_SERVER_URL": url, "INGOT_DATA": str(folder / "data"), **variables}
    process = subprocess.Popen(
        [sys.executable, *(command or ("-m", "ingot", "worker", "--app", "app:worker"))],
        cwd=folder, env=environment, text=True, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


def start(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What a worker says that cannot start."""
    return subprocess.run(
        [sys.executable, "-m", "ingot", "worker", *options],
        cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, str, Client]]:
    with served(tmp_path / "data") as (_, url):
        token = (tmp_path / "data" / "operator.token").read_text(encoding="utf-8").strip()
        with Client(url, token=token) as client:
            yield tmp_path, url, client


def test_a_worker_does_what_is_asked_and_goes_when_told(place: tuple[Path, str, Client]) -> None:
    folder, url, client = place
    with at_work(folder, url) as process:
        jobs = client.submit_many("greet", ["Ada", "Grace", "Edsger"])
        assert [job.wait("15s").result for job in jobs] == ["Hello, Ada", "Hello, Grace", "Hello, Edsger"]
        slow = client.submit("slow")
        for now in slow.watch():
            if now.status is JobStatus.RUNNING:
                break
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=20)[1]
        assert process.returncode == 0
    assert slow.refresh().result == 1, "what ran was finished first"
    assert '"types":"greet, onward, slow"' in said, "it says what it is there for"


def test_a_worker_comes_to_the_server_that_is_said_and_so_do_the_clients_of_its_handlers(
    place: tuple[Path, str, Client],
) -> None:
    folder, url, client = place
    options = ("--server", url, "--token-file", str(folder / "data" / "operator.token"))
    with at_work(folder, "http://127.0.0.1:9", "-m", "ingot", "worker", *options):
        assert client.submit("onward", "Ada").wait("15s").result == ["Hello, Ada", None]


def test_a_worker_comes_with_its_credential_and_the_clients_of_its_handlers_with_the_token(
    place: tuple[Path, str, Client],
) -> None:
    folder, url, client = place
    headers = {"authorization": f"Bearer {(folder / 'data' / 'operator.token').read_text(encoding='utf-8').strip()}"}
    made = httpx.post(
        f"{url}/api/v1/admin/workers", headers=headers, json={"id": "press", "shared": True}, verify=False
    ).json()
    (folder / "token").write_text(headers["authorization"].removeprefix("Bearer "), encoding="utf-8-sig")
    known = {"INGOT_WORKER_ID": made["id"], "INGOT_WORKER_SECRET": made["secret"], "INGOT_DATA": str(folder / "none")}
    options = ("--server", url, "--token-file", "token", "--tenant", "default")
    with at_work(folder, "", "-m", "ingot", "worker", *options, **known):
        job = client.submit("onward", "Ada").wait("15s")
        assert job.result == ["Hello, Ada", None], "the token is not in the environment"
        assert job.attempts()[0].worker_id.startswith("press/")


@pytest.mark.parametrize("command", [["-m", "ingot", "worker", "--app", "apart:worker"], ["apart.py"]])
def test_an_isolated_handler_is_found_where_the_worker_found_it(
    place: tuple[Path, str, Client], command: list[str]
) -> None:
    folder, url, client = place
    with at_work(folder, url, *command) as process:
        one, other = [job.wait("15s").result for job in client.submit_many("apart", [1, 2])]
    assert one[1:] == other[1:] == [str(folder), "apart" if "-m" in command else "__mp_main__"]
    assert len({one[0], other[0], process.pid}) == 3


def test_what_a_killed_worker_held_is_done_by_another(place: tuple[Path, str, Client]) -> None:
    folder, url, client = place
    with at_work(folder, url) as process:
        job = client.submit("slow")
        for now in job.watch():
            if now.status is JobStatus.RUNNING:
                break
        process.kill()
        process.wait()
    assert job.refresh().status is JobStatus.RUNNING, "nobody knows yet"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--app", "nowhere:worker"], "there is no module nowhere here"),
        (["--app", "os:path"], "not a Worker"),
        (["--hours", "22-6"], "'22-6' are no hours"),
        (["--timezone", "Europe/Zurich"], "--hours is not"),
        (["--token-file", "nowhere"], "the file nowhere cannot be read"),
        (["--server", "nowhere"], "'nowhere' is no address of a server"),
        (["--tenant", "zürich"], "'zürich' is no slug of a tenant"),
        (["--tenant", ""], "it is empty"),
        (["--server", ""], "it is empty"),
    ],
)
def test_a_worker_that_cannot_start_says_what_is_wrong(tmp_path: Path, options: list[str], said: str) -> None:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    done = start(tmp_path, *options)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("text", [b"", b"ingot_a\0b", "ingot_ü".encode(), b"\xa6\xff", b"a" * 5000])
def test_a_file_without_a_token_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "token").write_bytes(text)
    done = start(tmp_path, "--token-file", "token")
    assert (done.returncode, "the file token" in done.stderr) == (2, True), done.stderr


def test_a_second_signal_ends_a_worker_at_once(place: tuple[Path, str, Client]) -> None:
    folder, url, client = place
    with at_work(folder, url) as process:
        job = client.submit("slow")
        for now in job.watch():
            if now.status is JobStatus.RUNNING:
                break
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=5) == 130
