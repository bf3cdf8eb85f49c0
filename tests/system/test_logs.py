"""What a server logs as people run it: lines of JSON with what was done by whom, and never what is secret."""

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
    """A server that runs, and all that it has logged."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.text: list[str] = []
        self.url = ""

    def lines(self) -> list[dict[str, Any]]:
        """Its lines; each is a JSON object."""
        return [json.loads(line) for line in self.text]


@contextmanager
def served(folder: Path, **environment: str) -> Iterator[Served]:
    """A server at the level `debug`, stopped at the end."""
    everything = {**os.environ, "INGOT_LOG_LEVEL": "debug", **environment}
    with ingot("serve", "--data", str(folder), "--port", "0", stderr=subprocess.PIPE, env=everything) as process:
        assert process.stderr is not None
        one, begun = Served(process), threading.Event()

        def read(lines: Any) -> None:
            for line in lines:
                one.text.append(line)
                if '"message":"serving"' in line:
                    one.url = json.loads(line)["url"]
                    begun.set()

        reading = threading.Thread(target=read, args=[process.stderr])
        reading.start()
        try:
            assert begun.wait(timeout=45), one.text
            yield one
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=45) == 0
        finally:
            process.kill()
            reading.join()


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
    told = {line["message"]: line for line in lines if line.get("request_id") in ("r1", "r2")}
    made, claimed = told["job_enqueued"], told["job_claimed"]
    of_job = {"tenant_id": job["tenant"], "job_id": job["id"], "job_type": "greet"}
    assert made.items() >= {"request_id": "r1", "trace_id": TRACE, **of_job}.items()
    assert claimed.items() >= {"request_id": "r2", "attempt_no": 1, "worker_id": "w1", **of_job}.items()
    (asked,) = [line for line in lines if line.get("request_id") == "r3"]
    assert asked.items() >= {"message": "request", "status": 200, "route": "/api/v1/jobs/{id}"}.items()
    assert (asked["job_id"], asked["tenant_id"]) == (job["id"], job["tenant"])
    assert asked["duration_ms"] > 0


class Canaries(list[str]):
    """What must not be found anywhere."""

    def new(self) -> str:
        """One more."""
        return self.keep(f"canary-{new_id()}")

    def keep(self, secret: str) -> str:
        """One that somebody else made."""
        self.append(secret)
        return secret


def leak(url: str, operator: str, canaries: Canaries) -> None:
    """Put something secret everywhere a request has room for it, in ways that work and in ways that do not."""
    with httpx.Client(
        base_url=f"{url}/api/v1", headers={"authorization": f"Bearer {operator}"}, verify=False
    ) as client:
        for number in range(7):
            made = client.post("/admin/tokens", json={"description": "x", "grants": [{"action": "jobs.*"}]}).json()
            token = canaries.keep(made["token"])
            assert client.get("/jobs", headers={"authorization": f"Bearer {token}"}).status_code == 200
            worker = client.post("/admin/workers", json={"id": f"w{number}"}).json()
            as_worker = {"x-worker-id": f"w{number}", "x-worker-secret": canaries.keep(worker["secret"])}
            body = {"type": "greet", "payload": {"a": canaries.new()}, "metadata": {"b": canaries.new()}}
            body["idempotency_key"] = canaries.new()
            assert client.post("/jobs", json=body).status_code == 201
            assert client.post("/jobs", json={**body, "payload": canaries.new()}).status_code == 422
            with httpx.Client(base_url=f"{url}/api/v1", headers=as_worker, verify=False) as own:
                (job,) = own.post("/jobs/claim", json={"types": ["greet"]}).json()["jobs"]
                end = {"fence": job["fence"], "error": canaries.new(), "retry": False}
                assert own.post(f"/jobs/{job['id']}/fail", json=end).status_code == 200
        for odd in (new_token(new_id()), new_secret(WORKER_PREFIX), f"canary-{new_id()}"):
            canaries.keep(odd)
            assert client.get("/jobs", headers={"authorization": f"Bearer {odd}"}).status_code == 401
            client.get(f"/nowhere/{odd}")
            client.get("/jobs", params={"type": odd, "what": odd})
            client.post("/jobs", content=f'{{"type": "{odd}", '.encode(), headers={"content-type": "application/json"})
            client.post("/jobs", json={"type": 1, odd: odd})
            client.get("/jobs", headers={"x-request-id": f"not {odd}"})


def test_secrets_are_never_logged(tmp_path: Path) -> None:
    canaries = Canaries()
    operator = canaries.keep(new_token(new_id()))
    with served(tmp_path / "data", INGOT_OPERATOR_TOKEN=operator) as server:
        leak(server.url, operator, canaries)
    assert len(canaries) >= 50
    assert len(server.lines()) > 50
    log = "".join(server.text)
    assert [one for one in canaries if one in log] == []


def test_a_missing_span_exporter_is_reported_with_a_hint(tmp_path: Path) -> None:
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    program = MISSING.format(data=str(tmp_path / "data"))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=45, check=False, env=environment
    )
    assert done.returncode == 1
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is set, and opentelemetry.exporter" in done.stderr
    assert "pip install '.[otel]'" in done.stderr
    assert "Traceback" not in done.stderr
