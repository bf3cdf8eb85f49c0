"""The real `ingot` in front of a real server: what is typed, what it writes, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx

from tests.system.test_serve import served

INGOT = str(Path(sys.executable).with_name("ingot"))
WARM = str(Path(__file__).with_name("warm.py"))


class Done(NamedTuple):
    """What a command wrote, and how it ended."""

    code: int
    stdout: str
    stderr: str


class Shell:
    """Where commands are typed, beside the data folder of a server."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        known = {name: text for name, text in os.environ.items() if not name.startswith(("INGOT", "COLUMNS"))}
        self.environment = {**known, "INGOT_SERVER_URL": url, "COLUMNS": "200", "TERM": "xterm"}
        self._asked = 0
        self._warm = subprocess.Popen([sys.executable, WARM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        token = (folder / "data" / "operator.token").read_text(encoding="utf-8").strip()
        self.http = httpx.Client(base_url=f"{url}/api/v1", headers={"authorization": f"Bearer {token}"}, verify=False)

    def run(self, *words: str, typed: str = "", **environment: str) -> Done:
        """Run a command without a terminal."""
        with TemporaryDirectory() as folder:
            files = {name: Path(folder, name) for name in ("stdin", "stdout", "stderr")}
            for file in files.values():
                file.touch()
            files["stdin"].write_text(typed, encoding="utf-8")
            self._asked += 1
            asked = {
                "number": self._asked,
                "words": words,
                "folder": str(self.folder),
                "environment": {**self.environment, **environment},
                **{name: str(file) for name, file in files.items()},
            }
            assert self._warm.stdin is not None
            assert self._warm.stdout is not None
            self._warm.stdin.write(json.dumps(asked) + "\n")
            self._warm.stdin.flush()
            number, code = 0, 0
            while number != self._asked:  # A test that was out of time has left its answer.
                number, code = map(int, self._warm.stdout.readline().split())
            done = Done(code, *(files[name].read_text(encoding="utf-8") for name in ("stdout", "stderr")))
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def close(self) -> None:
        """End what was started here."""
        self.http.close()
        self._warm.communicate(timeout=10)

    def ok(self, *words: str, typed: str = "") -> str:
        """What a command that succeeds writes to stdout."""
        done = self.run(*words, typed=typed)
        assert done.code == 0, done
        return done.stdout

    def json(self, *words: str, typed: str = "") -> Any:
        """The one document that a command writes."""
        return json.loads(self.ok(*words, "--json", typed=typed))

    def lines(self, *words: str) -> list[Any]:
        """The documents that a command writes, one to a line."""
        return [json.loads(line) for line in self.ok(*words, "--json").splitlines()]

    def on_terminal(self, *words: str, answer: str = "") -> tuple[str, int]:
        """What is seen on a terminal on which a question is answered, and how it ends."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execve(INGOT, [INGOT, *words], self.environment)
        seen = b""
        while True:
            try:
                seen += os.read(terminal, 65_536)
            except OSError:  # It has ended.
                break
            if answer and b"[y/N]" in seen:
                os.write(terminal, f"{answer}\n".encode())
                answer = ""
        os.close(terminal)
        return seen.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    # -- the other side -------------------------------------------------------------------------------------

    def claim(self, type: str, *, wait_seconds: float = 10) -> dict[str, Any]:
        """Be the worker of the next job of a type."""
        body = {"worker_id": "press", "types": [type], "wait_seconds": wait_seconds}
        answer = self.http.post("/jobs/claim", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        (job,) = answer.json()["jobs"]
        return dict(job)

    def tell(self, job: dict[str, Any], verb: str, **said: Any) -> None:
        """Say something of a job that was claimed."""
        answer = self.http.post(f"/jobs/{job['id']}/{verb}", json={"fence": job["fence"], **said})
        assert answer.status_code == 200, answer.text

    def job(self, job_id: str) -> dict[str, Any]:
        """How a job stands."""
        return dict(self.http.get(f"/jobs/{job_id}").json())

    def submit(self, type: str, **order: Any) -> str:
        """A job, made without the command line."""
        answer = self.http.post("/jobs", json={"type": type, **order})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    """A server, and a shell beside it."""
    with served(folder / "data") as (_, url):
        made = Shell(folder, url)
        with closing(made):
            yield made
