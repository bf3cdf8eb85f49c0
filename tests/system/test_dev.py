"""`ingot dev`: files change while a real process runs, which keeps its process ID, its URL and its jobs."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingot.cli.dev import python_files, restart_arguments
from ingot.client import Client
from ingot.client.errors import JobDead
from ingot.jobs.model import JobStatus
from tests.processes import started
from tests.system.programs import PYTHON_INGOT, run_ingot
from tests.waiting import until

APP = """
from pathlib import Path
from ingot import Client, Worker

worker = Worker()

@worker.handler("greet")
def greet(job):
    return "VERSION"

@worker.handler("ask")
def ask(job):
    print("asking for another")
    with Client() as client:
        return client.submit("greet").id

@worker.handler("hello")
def hello(job):
    print("saying", "hello")
    return f"Hello, {job.payload['name']}"

@worker.handler("apart", isolate=True)
def apart(job):
    print("printed apart")
    return job.payload["name"]

@worker.handler("short")
def short(job):
    while not Path("go").exists():
        job.check()
        job.wait("20ms")
    return "VERSION"

@worker.handler("long")
def long(job):
    while "VERSION" == "one":
        job.check()
        job.wait("20ms")
    return "VERSION"
"""


CHANGED_SECOND = 1_800_000_000


class DevProcess:
    """A process of `ingot dev` in a folder with an app."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes = 0
        self.write("one")
        self.log = folder / "log"
        self.url = ""

    @contextmanager
    def running(self, *options: str) -> Iterator[None]:
        """Run the installed program, which replaces itself when a file changes."""
        environment = {**os.environ, "INGOT_LOG_FORMAT": "json"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [*PYTHON_INGOT, "dev", "--port", "0", *options]
        with (
            open(self.log, "w", encoding="utf-8") as log,
            started(command, cwd=self.folder, env=environment, stdout=log, stderr=log) as self.process,
        ):
            self.url = self.wait_for_log(r"\"url\":\s*\"(http://[^\"]+)\"")
            yield

    def write(self, version: str) -> None:
        self.write_text(APP.replace("VERSION", version))

    def write_text(self, text: str) -> None:
        """Write the app. All changes have modification times within one second."""
        app = self.folder / "app.py"
        app.write_text(text, encoding="utf-8")
        self.changes += 1
        os.utime(app, ns=(self.changes, CHANGED_SECOND * 1_000_000_000 + self.changes))

    def wait_for_log(self, pattern: str, times: int = 1) -> str:
        """Wait until the log matches a pattern a number of times, and return the last match."""

        def matches() -> list[str]:
            text = self.log.read_text(encoding="utf-8")
            found: list[str] = re.findall(pattern, text)
            assert len(found) >= times or self.process.poll() is None, text
            return found if len(found) >= times else []

        return str(until(matches, why=f"{pattern} in {self.log}")[-1])

    def lines(self, message: str) -> list[dict[str, Any]]:
        """Return the complete log lines with this message."""
        text = self.log.read_text(encoding="utf-8").rpartition("\n")[0]
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [line for line in lines if line["message"] == message]

    def client(self) -> Client:
        token = (self.folder / "data" / "operator.token").read_text(encoding="utf-8").strip()
        return Client(self.url, token=token)


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[DevProcess]:
    one = DevProcess(tmp_path)
    with one.running("--drain-seconds", "1"):
        yield one


def test_jobs_run_new_code_after_a_change_and_running_jobs_are_not_lost(dev: DevProcess) -> None:
    with dev.client() as client:
        first = client.submit("greet").wait("45s")
        assert first.result == "one"
        short, long = client.submit("short"), client.submit("long")
        for job in (short, long):
            for update in job.watch():
                if update.status is JobStatus.RUNNING:
                    break
        (dev.folder / "go").touch()
        dev.write("two")
        assert dev.wait_for_log(r"\"file\":\s*\"([^\"]+)\"") == "app.py"
        assert client.submit("greet").wait("30s").result in ("one", "two"), (
            "neither the old nor the new worker ran the job"
        )
        dev.wait_for_log('"working"', times=2)
        assert client.submit("greet").wait("30s").result == "two"
        assert (short.wait("45s").result, short.data.attempts) == ("one", 1), (
            "the short job was not finished by the old worker"
        )
        assert (long.wait("45s").result, long.data.attempts) == ("two", 2), "the long job was not released"
        assert (long.data.failures, long.data.crashes) == (0, 0)
        assert [one.pid for one in (first.attempts()[0], long.attempts()[1])] == [dev.process.pid] * 2
    dev.process.send_signal(signal.SIGINT)
    assert dev.process.wait(timeout=45) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{dev.url}/healthz", verify=False)


def test_an_app_that_fails_to_load_is_reported_until_the_next_change(dev: DevProcess) -> None:
    dev.wait_for_log('"working"')
    dev.write_text("x = 1\ndef (")
    dev.wait_for_log('"app_failed"')
    (broken,) = dev.lines("app_failed")
    assert (broken["level"], broken["file"], broken["line"]) == ("error", "app.py", 2)
    assert broken["error"] == "SyntaxError: invalid syntax"
    with dev.client() as client:
        job = client.submit("greet")
        assert job.status is JobStatus.QUEUED, "a job ran without a worker"
        dev.write_text("def wrong():\n    1 / 0\n\nwrong()\n")
        assert "in wrong" in dev.wait_for_log("ZeroDivisionError(.*)")
        assert (dev.lines("app_failed")[-1]["file"], dev.lines("app_failed")[-1]["line"]) == ("app.py", 2)
        dev.write_text("from ingot import Worker\nworker = Worker()\nworker.handler('!')(print)\n")
        dev.wait_for_log('"app_failed"', times=3)
        assert (dev.lines("app_failed")[-1]["file"], dev.lines("app_failed")[-1]["line"]) == ("app.py", 3)
        dev.write("three")
        assert job.wait("30s").result == "three"
    dev.process.send_signal(signal.SIGTERM)
    assert dev.process.wait(timeout=45) == 0


def test_handler_output_is_shown_and_clients_in_handlers_find_the_server(dev: DevProcess) -> None:
    with dev.client() as client:
        job = client.submit("ask").wait("45s")
        dev.wait_for_log("asking for another")
        assert job.log() == "asking for another\n"
        assert client.job(job.result).wait("45s").result == "one"


def test_a_handler_that_raises_is_shown_with_its_job_and_traceback(dev: DevProcess) -> None:
    with dev.client() as client:
        jobs = {type: client.submit(type, {"x": 1}, max_attempts=1) for type in ("hello", "apart")}
        for job in jobs.values():
            with pytest.raises(JobDead):
                job.wait("45s")
        until(lambda: len(dev.lines("job_dead")) == 2, why="both jobs are dead")
    for type, output in (("hello", "saying hello"), ("apart", "printed apart")):
        (dead,) = [line for line in dev.lines("job_dead") if line["job_type"] == type]
        (printed,) = [line for line in dev.lines("job_output") if line["job_type"] == type]
        assert (dead["level"], dead["job_id"], dead["error"]) == ("error", jobs[type].id, "KeyError: 'name'")
        assert (printed["output"], printed["job_id"]) == (output, jobs[type].id)
        first_frame = dead["traceback"].splitlines()[0]
        assert first_frame.startswith(f'  File "{dev.folder / "app.py"}", line ')
        assert first_frame.endswith(f", in {type}")


def test_a_busy_port_or_data_folder_is_reported(dev: DevProcess, tmp_path: Path) -> None:
    port = dev.url.rpartition(":")[2]
    for options, code, wait_for_log in (
        (["--port", port, "--data", "other"], 1, "Hint: Choose another port"),
        (["--port", "0"], 6, "holds the data folder"),
    ):
        done = run_ingot("dev", *options, cwd=tmp_path)
        assert (done.code, wait_for_log in done.stderr) == (code, True), done.stderr


def test_only_python_files_of_the_app_are_watched(tmp_path: Path) -> None:
    for name in ("app.py", "more/deep/part.py", "notes.txt", "env/pyvenv.cfg", "env/lib/other.py", ".git/hook.py",
                 "more/__pycache__/part.py", "node_modules/x/y.py"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    before = python_files(tmp_path)
    assert sorted(before) == [str(tmp_path / "app.py"), str(tmp_path / "more/deep/part.py")]
    (tmp_path / "app.py").write_text("1", encoding="utf-8")
    assert python_files(tmp_path) != before
    (tmp_path / "app.py").unlink()
    assert python_files(tmp_path).keys() < before.keys()


def test_a_restart_keeps_the_arguments_and_the_socket() -> None:
    arguments = ["-m", "ingot", "dev", "--app", "app:worker"]
    assert restart_arguments(arguments, 7) == [*arguments, "--listening", "7"]
    assert restart_arguments(restart_arguments(arguments, 7), 9) == [*arguments, "--listening", "9"]
