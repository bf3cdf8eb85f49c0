"""Workers report bad results, settings, servers and credentials in messages that say what to do."""

from __future__ import annotations

import http.server
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ingot.client.errors import JobDead
from ingot.jobs.model import JobStatus
from tests.system.deployment import deploy, wait_until_running
from tests.system.programs import run_ingot
from tests.waiting import until

pytestmark = pytest.mark.long

BAD_HANDLERS = """
import os, sys
from ingot import Worker

worker = Worker()
KEPT = []
KEPT.append(KEPT)

class Untold(Exception):
    def __str__(self):
        raise ValueError("no words")

def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value

def do(what, job):
    match what:
        case "object": return object()
        case "circular": return KEPT
        case "large": return "x" * 70_000
        case "deep": return deep(300)
        case "surrogate": return "\\udcff"
        case "exit": sys.exit(3)
        case "interrupt": raise KeyboardInterrupt
        case "base": raise BaseException("base")
        case "untold": raise Untold
        case "stop iteration": return next(iter([]))
        case "odd name": raise FileNotFoundError(2, "No such file", "caf\\udce9.txt")
        case "snooze": job.snooze(-1)
        case "set": return sorted([*{1}, *{2}]) and {1}
        case "nan": return [float("nan"), b"ab"]
        case "prints":
            print("nul \\x00 and half a letter \\udce9")
            sys.stdout.buffer.write(b"bytes \\xff\\n")
            sys.stdout.buffer.flush()
            sys.stderr.writelines(["lines\\n"])
            job.progress(float("nan"), "s" * 1000 + "\\udce9")
            job.progress(10, 7)
            return "printed"

@worker.handler("plain", concurrency=4)
def plain(job):
    return do(job.payload, job)

@worker.handler("async", concurrency=4)
async def awaited(job):
    return do(job.payload, job)

@worker.handler("isolated", isolate=True, concurrency=4)
def apart(job):
    if job.payload == "die":
        os._exit(7)
    if job.payload == "prints":
        os.write(1, b"raw \\xfe\\n")
    return do(job.payload, job)
"""
ERRORS = {
    "object": "Encoding objects of type object is unsupported",
    "circular": "the result contains itself",
    "large": "70002",
    "deep": "200 levels",
    "surrogate": "'utf-8' codec can't encode",
    "untold": "Untold",
    "odd name": "FileNotFoundError: [Errno 2] No such file: 'caf\\udce9.txt'",
    "snooze": "got -1.0 seconds",
}
ERRORS_IN_WORKER = {
    "exit": "SystemExit: 3 (",
    "interrupt": "KeyboardInterrupt",
    "base": "BaseException: base",
    "stop iteration": "StopIteration",
}
ERRORS_IN_CHILD = {
    "exit": "exited with code 3 (",
    "die": "exited with code 7 (",
}


@pytest.mark.parametrize("kind", ["plain", "async", "isolated"])
def test_a_misbehaving_handler_fails_its_own_job_with_a_clear_error(tmp_path: Path, kind: str) -> None:
    (tmp_path / "odd.py").write_text(BAD_HANDLERS, encoding="utf-8")
    with deploy(tmp_path) as deployment:
        worker = deployment.start_worker(app="odd:worker", PYTHONPATH=with_folder(tmp_path))
        message = ERRORS | (ERRORS_IN_CHILD if kind == "isolated" else ERRORS_IN_WORKER)
        jobs = {case: deployment.client.submit(kind, case, max_attempts=1) for case in message}
        for case, job in jobs.items():
            with pytest.raises(JobDead):
                job.wait("60s")
            assert message[case] in (job.error or ""), case
            assert job.data.attempts == 1
        assert deployment.client.submit(kind, "set").wait("30s").result == [1]
        assert deployment.client.submit(kind, "nan").wait("30s").result == [None, "YWI="]
        printed = deployment.client.submit(kind, "prints").wait("30s")
        log = printed.log()
        for arguments in ("nul \ufffd and half a letter ?\n", "bytes \ufffd\n", "lines\n"):
            assert arguments in log
        assert ("raw \ufffd\n" in log) is (kind == "isolated")
        assert worker.is_running
        assert "heartbeat_failed" not in worker.output()


def with_folder(folder: Path) -> str:
    """Return a PYTHONPATH that begins with this folder."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


class OtherServer(http.server.BaseHTTPRequestHandler):
    """A server that is not Ingot, or another version of it."""

    response: tuple[int, bytes] = (200, b"<html>Welcome</html>")

    def do_POST(self) -> None:
        self._send(*self.response)

    def do_GET(self) -> None:
        self._send(200, b'{"status": "ok", "version": "99.0"}')

    def _send(self, status: int, body: bytes) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def other_server(status: int, body: bytes) -> Iterator[str]:
    """Run a server with the same response to every request."""
    handler_class = type("FixedResponseServer", (OtherServer,), {"response": (status, body)})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_class) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def run_worker(folder: Path, *, app: str = "tests.system.handlers:worker", **environment: str) -> tuple[int, str]:
    """Run a worker that cannot start. Return the exit code and stderr."""
    environment_variables = {name: value for name, value in os.environ.items() if not name.startswith("INGOT_")}
    done = run_ingot("worker", "--app", app, env={**environment_variables, "INGOT_DATA": str(folder), **environment})
    assert "Traceback" not in done.stderr
    return done.code, done.stderr


NO_ROUTE = b'{"status": 404, "code": "no_such_route", "detail": "there is no POST /api/v1/workers", "hint": ""}'


@pytest.mark.parametrize(
    ("status", "body", "message", "hint"),
    [
        (
            200,
            b"<html>Welcome</html>",
            "'<html>Welcome</html>'",
            "INGOT_SERVER_URL",
        ),
        (404, b"Not Found", "'Not Found'", "INGOT_SERVER_URL"),
        (404, NO_ROUTE, "99.0", "same version"),
        (201, b'{"name": "press"}', "99.0", "same version"),
    ],
)
def test_a_worker_distinguishes_another_program_from_another_version(
    tmp_path: Path, status: int, body: bytes, message: str, hint: str
) -> None:
    with other_server(status, body) as url:
        code, arguments = run_worker(tmp_path, INGOT_SERVER_URL=url, INGOT_TOKEN="any")
    assert code == 10
    assert message in arguments
    assert hint in arguments.partition("Hint: ")[2]


APPS = {
    "broken": "def helper():\n    import nowhere_to_be_found\n\nhelper()\n",
    "misspelt": "x = (\n",
    "twice": "from ingot import Worker\nworker = Worker()\nworker.handler('a')(print)\nworker.handler('a')(print)\n",
    "hidden": "from ingot import Worker\nworker = Worker()\nworker.handler('a', isolate=True)(lambda job: 1)\n",
    "idle": "from ingot import Worker\nworker = Worker()\n",
}


@pytest.mark.parametrize(
    ("app", "message"),
    [
        ("nowhere:worker", ["nowhere", "app:worker"]),
        ("broken:worker", ["broken cannot be imported: ModuleNotFoundError", "line 2, in helper", "nowhere_to_be"]),
        ("misspelt:worker", ["misspelt cannot be imported: SyntaxError: '(' was never closed (misspelt.py, line 1)"]),
        ("twice:worker", ["there are two handlers for a"]),
        ("hidden:worker", ["the isolated handler for a", "lambda", "Hint: "]),
        ("idle:worker", ["the worker has no handlers"]),
        ("idle:wroker", ["idle:wroker", "module 'idle' has no attribute 'wroker'"]),
    ],
)
def test_an_app_that_cannot_be_loaded_is_reported_with_its_location(
    tmp_path: Path, app: str, message: list[str]
) -> None:
    for name, text in APPS.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    code, arguments = run_worker(tmp_path, app=app, PYTHONPATH=with_folder(tmp_path), INGOT_TOKEN="any")
    assert code == 2
    for part in message:
        assert part in arguments


def test_a_worker_without_a_credential_names_the_settings(tmp_path: Path) -> None:
    code, arguments = run_worker(tmp_path)
    assert (code, "INGOT_WORKER_ID and INGOT_WORKER_SECRET" in arguments) == (7, True)
    code, arguments = run_worker(tmp_path, INGOT_WORKER_ID="press")
    assert (code, "INGOT_WORKER_SECRET is not" in arguments) == (1, True)


def test_a_worker_whose_credential_is_not_sufficient_exits_with_7(tmp_path: Path) -> None:
    with deploy(tmp_path) as deployment:
        environment_variables = deployment.create_credential("press", "tick")
        for environment, message in (
            (
                {
                    **environment_variables,
                    "INGOT_WORKER_SECRET": environment_variables["INGOT_WORKER_SECRET"][:-2] + "xx",
                },
                "secret",
            ),
            (environment_variables, "The credential press runs tick"),
            ({"INGOT_TOKEN": "ingot_wrong"}, "token"),
        ):
            code, arguments = run_worker(tmp_path / "none", INGOT_SERVER_URL=deployment.url, **environment)
            assert (code, message in arguments) == (7, True), arguments


def test_a_worker_stops_when_its_credential_is_regenerated(tmp_path: Path) -> None:
    with deploy(tmp_path) as deployment:
        worker = deployment.start_worker(**deployment.create_credential("press"))
        deployment.wait_until_online(worker)
        job = wait_until_running(deployment.client.submit("wait", {"note_file": deployment.note_file()}))
        done = httpx.post(
            f"{deployment.url}/api/v1/admin/workers/press/regenerate", headers=deployment.headers, verify=False
        )
        assert done.is_success, done.text
        assert worker.wait(60) == 7
        assert "disabled" in worker.output().partition("ingot: ")[2]
        assert [arguments[0] for arguments in deployment.notes()] == ["stopped"], "the handler was not stopped"
        assert (job.refresh().status, job.data.crashes) == (JobStatus.QUEUED, 0)


def test_a_worker_with_a_disabled_credential_exits_although_a_handler_does_not_stop(tmp_path: Path) -> None:
    with deploy(tmp_path) as deployment:
        worker = deployment.start_worker(**deployment.create_credential())
        deployment.wait_until_online(worker)
        wait_until_running(deployment.client.submit("deaf", {"note_file": deployment.note_file(), "seconds": 300}))
        done = httpx.post(
            f"{deployment.url}/api/v1/admin/workers/press/disable", headers=deployment.headers, verify=False
        )
        assert done.is_success, done.text
        assert worker.wait(60) == 7


def test_a_worker_waits_until_the_server_is_reachable(tmp_path: Path) -> None:
    with deploy(tmp_path) as deployment:
        deployment.server.kill()
        waiting, impatient = deployment.start_worker(), deployment.start_worker()
        until(
            lambda: all("waiting_for_server" in worker.output() for worker in (waiting, impatient)),
            why="both workers log that they wait",
        )
        assert "INGOT_SERVER_URL" in waiting.output()
        impatient.send_signal(signal.SIGTERM)
        assert impatient.wait() == 0
        deployment.start_server()
        assert (
            deployment.client.submit("tick", {"note_file": deployment.note_file()}).wait("60s").result["pid"]
            == waiting.pid
        )
        assert waiting.output().count("waiting_for_server") == waiting.output().count("server_back") == 1
