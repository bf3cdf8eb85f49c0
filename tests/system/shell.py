"""The real `ingot` in front of a real server: what is typed, what it writes, and how it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx

from tests.processes import Process
from tests.system.programs import Done, ingot, run_ingot, run_on_terminal, served


class Shell:
    """Where commands are typed, beside the data folder of a server."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        known = {name: text for name, text in os.environ.items() if not name.startswith(("INGOT", "COLUMNS"))}
        self.environment = {**known, "INGOT_SERVER_URL": url, "COLUMNS": "200", "TERM": "xterm"}
        token = (folder / "data" / "operator.token").read_text(encoding="utf-8").strip()
        self.http = httpx.Client(base_url=f"{url}/api/v1", headers={"authorization": f"Bearer {token}"}, verify=False)

    def run(self, *words: str, typed: str = "", **environment: str) -> Done:
        """Run a command without a terminal."""
        known = {**self.environment, **environment}
        done = run_ingot(*words, cwd=self.folder, env=known, typed=typed)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def start(self, *words: str) -> AbstractContextManager[Process]:
        """Run a command in the background, and read what it writes."""
        return ingot(*words, cwd=self.folder, env=self.environment, stdout=PIPE, stderr=PIPE)

    def close(self) -> None:
        """Close the connections to the server."""
        self.http.close()

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
        return run_on_terminal(*words, cwd=self.folder, env=self.environment, answer=answer)

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
