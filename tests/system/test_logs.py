"""Logs of a real server: JSON lines that name request, worker and job, and never contain secrets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from ingot.identity.credential_secrets import WORKER_PREFIX, new_secret, new_token
from ingot.kernel.ids import new_id
from tests.processes import Process
from tests.system.programs import ingot

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MISSING = """
import sys
sys.modules["opentelemetry.exporter"] = None
sys.argv = ["ingot", "serve", "--data", {data!r}, "--port", "0"]
from ingot.cli import main
main()
"""


class Served:
    """A running server, and its log."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.text: list[str] = []
        self.url = ""

    def lines(self) -> list[dict[str, Any]]:
        """Return the log lines, each of which is a JSON object."""
        return [json.loads(line) for line in self.text]


@contextmanager
def served(folder: Path, **environment: str) -> Iterator[Served]:
    """Run a server that logs at the level `debug`, and stop it at the end."""
    environment_variables = {**os.environ, "INGOT_LOG_LEVEL": "debug", **environment}
    with ingot(
        "serve", "--data", str(folder), "--port", "0", stderr=subprocess.PIPE, env=environment_variables
    ) as process:
        assert process.stderr is not None
        server, started = Served(process), threading.Event()

        def read(lines: Any) -> None:
            for line in lines:
                server.text.append(line)
                if '"message":"serving"' in line:
                    server.url = json.loads(line)["url"]
                    started.set()

        reader = threading.Thread(target=read, args=[process.stderr])
        reader.start()
        try:
            assert started.wait(timeout=45), server.text
            yield server
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=45) == 0
        finally:
            process.kill()
            reader.join()


def test_log_lines_name_the_request_the_worker_and_the_job(tmp_path: Path) -> None:
    operator = new_token(new_id())
    with served(tmp_path / "data", INGOT_OPERATOR_TOKEN=operator) as server:
        headers = {
            "authorization": f"Bearer {operator}",
            "x-request-id": "r1",
            "traceparent": f"00-{TRACE}-{'1' * 16}-01",
        }
        job = httpx.post(f"{server.url}/api/v1/jobs", headers=headers, json={"type": "greet"}, verify=False).json()
        del headers["traceparent"]
        claim = {"worker_id": "w1", "types": ["greet"]}
        httpx.post(
            f"{server.url}/api/v1/jobs/claim", headers={**headers, "x-request-id": "r2"}, json=claim, verify=False
        )
        httpx.get(f"{server.url}/api/v1/jobs/{job['id']}", headers={**headers, "x-request-id": "r3"}, verify=False)
    lines = server.lines()
    assert {"timestamp", "level", "message"} <= set.intersection(*(set(line) for line in lines))
    by_message = {line["message"]: line for line in lines if line.get("request_id") in ("r1", "r2")}
    enqueued, claimed = by_message["job_enqueued"], by_message["job_claimed"]
    job_fields = {"tenant_id": job["tenant"], "job_id": job["id"], "job_type": "greet"}
    assert enqueued.items() >= {"request_id": "r1", "trace_id": TRACE, **job_fields}.items()
    assert claimed.items() >= {"request_id": "r2", "attempt_no": 1, "worker_id": "w1", **job_fields}.items()
    (request_line,) = [line for line in lines if line.get("request_id") == "r3"]
    assert request_line.items() >= {"message": "request", "status": 200, "route": "/api/v1/jobs/{id}"}.items()
    assert (request_line["job_id"], request_line["tenant_id"]) == (job["id"], job["tenant"])
    assert request_line["duration_ms"] > 0


class Secrets(list[str]):
    """Secrets that must not occur in the log."""

    def create(self) -> str:
        """Create a secret."""
        return self.add(f"canary-{new_id()}")

    def add(self, secret: str) -> str:
        """Add an existing secret."""
        self.append(secret)
        return secret


def send_secrets(url: str, operator: str, secrets: Secrets) -> None:
    """Send secrets in every part of valid and invalid requests."""
    with httpx.Client(
        base_url=f"{url}/api/v1", headers={"authorization": f"Bearer {operator}"}, verify=False
    ) as client:
        for number in range(7):
            enqueued = client.post("/admin/tokens", json={"description": "x", "grants": [{"action": "jobs.*"}]}).json()
            token = secrets.add(enqueued["token"])
            assert client.get("/jobs", headers={"authorization": f"Bearer {token}"}).status_code == 200
            worker = client.post("/admin/workers", json={"id": f"w{number}"}).json()
            as_worker = {"x-worker-id": f"w{number}", "x-worker-secret": secrets.add(worker["secret"])}
            body = {"type": "greet", "payload": {"a": secrets.create()}, "metadata": {"b": secrets.create()}}
            body["idempotency_key"] = secrets.create()
            assert client.post("/jobs", json=body).status_code == 201
            assert client.post("/jobs", json={**body, "payload": secrets.create()}).status_code == 422
            with httpx.Client(base_url=f"{url}/api/v1", headers=as_worker, verify=False) as own:
                (job,) = own.post("/jobs/claim", json={"types": ["greet"]}).json()["jobs"]
                end = {"fence": job["fence"], "error": secrets.create(), "retry": False}
                assert own.post(f"/jobs/{job['id']}/fail", json=end).status_code == 200
        for wrong_token in (new_token(new_id()), new_secret(WORKER_PREFIX), f"canary-{new_id()}"):
            secrets.add(wrong_token)
            assert client.get("/jobs", headers={"authorization": f"Bearer {wrong_token}"}).status_code == 401
            client.get(f"/nowhere/{wrong_token}")
            client.get("/jobs", params={"type": wrong_token, "what": wrong_token})
            client.post(
                "/jobs", content=f'{{"type": "{wrong_token}", '.encode(), headers={"content-type": "application/json"}
            )
            client.post("/jobs", json={"type": 1, wrong_token: wrong_token})
            client.get("/jobs", headers={"x-request-id": f"not {wrong_token}"})


def test_secrets_are_never_logged(tmp_path: Path) -> None:
    secrets = Secrets()
    operator = secrets.add(new_token(new_id()))
    with served(tmp_path / "data", INGOT_OPERATOR_TOKEN=operator) as server:
        send_secrets(server.url, operator, secrets)
    assert len(secrets) >= 50
    assert len(server.lines()) > 50
    log = "".join(server.text)
    assert [server for server in secrets if server in log] == []


def test_a_missing_span_exporter_is_reported_with_a_hint(tmp_path: Path) -> None:
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    program = MISSING.format(data=str(tmp_path / "data"))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=45, check=False, env=environment
    )
    assert done.returncode == 1
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in done.stderr
    assert "pip install '.[otel]'" in done.stderr
    assert "Traceback" not in done.stderr
