"""Commands of `ingot` with a real server: their arguments, output and exit codes."""

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
from tests.system.programs import CommandResult, ingot, run_ingot, run_on_terminal, served


class Shell:
    """Runs commands in a folder, beside the data folder of a server."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        variables = {name: text for name, text in os.environ.items() if not name.startswith(("INGOT", "COLUMNS"))}
        self.environment = {**variables, "INGOT_SERVER_URL": url, "COLUMNS": "200", "TERM": "xterm"}
        token = (folder / "data" / "operator.token").read_text(encoding="utf-8").strip()
        self.http = httpx.Client(base_url=f"{url}/api/v1", headers={"authorization": f"Bearer {token}"}, verify=False)

    def run(self, *arguments: str, stdin_text: str = "", **environment: str) -> CommandResult:
        """Run a command without a terminal."""
        variables = {**self.environment, **environment}
        result = run_ingot(*arguments, cwd=self.folder, env=variables, stdin_text=stdin_text)
        assert "Traceback" not in result.stderr, result.stderr
        return result

    def start(self, *arguments: str) -> AbstractContextManager[Process]:
        """Run a command in the background, and read what it writes."""
        return ingot(*arguments, cwd=self.folder, env=self.environment, stdout=PIPE, stderr=PIPE)

    def close(self) -> None:
        """Close the connections to the server."""
        self.http.close()

    def ok(self, *arguments: str, stdin_text: str = "") -> str:
        """Run a command that must succeed, and return its stdout."""
        result = self.run(*arguments, stdin_text=stdin_text)
        assert result.code == 0, result
        return result.stdout

    def json(self, *arguments: str, stdin_text: str = "") -> Any:
        """Run a command, and return the JSON document that it prints."""
        return json.loads(self.ok(*arguments, "--json", stdin_text=stdin_text))

    def lines(self, *arguments: str) -> list[Any]:
        """Run a command, and return the JSON documents that it prints, one per line."""
        return [json.loads(line) for line in self.ok(*arguments, "--json").splitlines()]

    def on_terminal(self, *arguments: str, answer: str = "") -> tuple[str, int]:
        """Run a command on a terminal, answer its question, and return the output and the exit code."""
        return run_on_terminal(*arguments, cwd=self.folder, env=self.environment, answer=answer)

    # -- calls over HTTP ------------------------------------------------------------------------------------

    def claim(self, type: str, *, wait_seconds: float = 10) -> dict[str, Any]:
        """Claim the next job of a type as a worker."""
        body = {"worker_id": "press", "types": [type], "wait_seconds": wait_seconds}
        response = self.http.post("/jobs/claim", json=body, timeout=30)
        assert response.status_code == 200, response.text
        (job,) = response.json()["jobs"]
        return dict(job)

    def update_job(self, job: dict[str, Any], verb: str, **fields: Any) -> None:
        """Send a heartbeat, completion or failure of a claimed job."""
        response = self.http.post(f"/jobs/{job['id']}/{verb}", json={"fence": job["fence"], **fields})
        assert response.status_code == 200, response.text

    def job(self, job_id: str) -> dict[str, Any]:
        """Return a job."""
        return dict(self.http.get(f"/jobs/{job_id}").json())

    def submit(self, type: str, **order: Any) -> str:
        """Create a job over HTTP, and return its ID."""
        response = self.http.post("/jobs", json={"type": type, **order})
        assert response.status_code == 201, response.text
        return str(response.json()["id"])


@contextmanager
def open_shell(folder: Path) -> Iterator[Shell]:
    """Start a server, and a shell that uses it."""
    with served(folder / "data") as (_, url):
        shell = Shell(folder, url)
        with closing(shell):
            yield shell
