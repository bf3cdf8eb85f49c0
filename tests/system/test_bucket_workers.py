"""Files of jobs in a real bucket: a server, a worker over HTTP or on PostgreSQL, and curl."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import asyncpg
import httpx
import pytest

from ingot.blobs.model import INLINE_BYTES_MAX
from ingot.client import Client
from ingot.client.synchronous.job import SyncJob
from ingot.engines.postgres import make_worker_role
from ingot.jobs.attempt_logs import LOG_TAIL_CHARS_MAX
from ingot.kernel.ids import new_id
from tests import s3
from tests.postgres import Database, database_for, with_database
from tests.system.bucket_handlers import expected_log
from tests.system.deployment import LoggedProcess
from tests.system.programs import served

MIB = 1024 * 1024
LINES = 1_000  # About 100 KB.
PAYLOAD = {"lines": LINES, "text": "ä" * 40_000}  # 80 KB.
FILES = {"small": Random(1).randbytes(100), "middle": Random(2).randbytes(MIB), "large": Random(3).randbytes(MIB) * 65}
pytestmark = pytest.mark.s3


class BucketServer:
    """A server whose blobs are in a bucket, and its client."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.token = (folder / "data" / "operator.token").read_text(encoding="utf-8").strip()
        self.client = Client(url, token=self.token)

    def admin(self, path: str, **body: Any) -> Any:
        """Create an object through the operator API, and return it."""
        headers = {"authorization": f"Bearer {self.token}"}
        response = httpx.post(f"{self.url}/api/v1/admin/{path}", headers=headers, json=body, verify=False)
        assert response.status_code == 201, response.text
        return response.json()

    @contextmanager
    def worker(self, **variables: str) -> Iterator[LoggedProcess]:
        """Start a worker process with these variables and none of the server's settings."""
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("INGOT_")}
        nowhere = {"INGOT_DATA": str(self.folder / "nowhere")}
        arguments = ("worker", "--app", "tests.system.bucket_handlers:worker")
        process = LoggedProcess(
            *arguments, output=self.folder / "worker.log", environment={**inherited, **nowhere, **variables}
        )
        with closing(process):
            yield process


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> str:
    """Set a new prefix in a bucket in the environment, and return the URL of the store."""
    variables = {"BUCKET": s3.bucket(), "ENDPOINT": s3.server_url(), "ACCESS_KEY": s3.ACCESS_KEY, "PREFIX": new_id()}
    for name, text in {**variables, "SECRET_KEY": s3.SECRET_KEY, "REGION": s3.REGION}.items():
        monkeypatch.setenv(f"INGOT_S3_{name}", text)
    return s3.server_url()


@contextmanager
def serving(folder: Path) -> Iterator[BucketServer]:
    with served(folder / "data") as (_, url):
        server = BucketServer(folder, url)
        with server.client:
            yield server


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    database = asyncio.run(database_for(tmp_path))
    monkeypatch.setenv("INGOT_DATABASE_URL", database.server_url)
    return database


@contextmanager
def role(database: Database) -> Iterator[str]:
    """Create a worker role, and yield its database URL."""
    name = f"turner_{os.getpid()}"

    async def make() -> str:
        owner = await asyncpg.connect(database.owner_url)
        tenant = await owner.fetchval("SELECT id::text FROM ingot.tenants WHERE slug = 'default'")
        await owner.close()
        return await make_worker_role(database.owner_url, name, tenant)

    async def drop() -> None:
        owner = await asyncpg.connect(database.owner_url)
        await owner.execute("DELETE FROM ingot.worker_roles WHERE role = $1", name)
        await owner.execute(f"DROP ROLE IF EXISTS {name}")
        await owner.close()

    password = asyncio.run(make())
    try:
        yield with_database(database.owner_url, database.name, f"{name}:{password}")
    finally:
        asyncio.run(drop())


def curl(url: str, target: Path) -> bytes:
    subprocess.run(["curl", "-sSf", "--max-time", "30", "-o", str(target), url], check=True)
    return target.read_bytes()


def check_files(job: SyncJob, server: BucketServer, bucket: str) -> None:
    """Check that the client and curl get all files from the right place, and that log and payload are whole."""
    assert (job.wait("60s").result, job.data.attempts) == (len(str(PAYLOAD["text"])), 1)
    for name, data in FILES.items():
        output = job.outputs[f"turned-{name}"]
        assert output.bytes() == data[::-1], name
        url = output.url()
        assert url.startswith(server.url if len(data) <= INLINE_BYTES_MAX else bucket), name
        assert curl(url, server.folder / "back") == data[::-1], name
    assert server.client.blobs.get(job.data.inputs["middle"]) == FILES["middle"]
    assert job.log() == expected_log(LINES)
    assert server.client.job(job.id).payload == PAYLOAD
    kinds = sorted((file.kind, file.name) for file in job.files())
    inputs, outputs = [("input", name) for name in FILES], [("output", f"turned-{name}") for name in FILES]
    assert kinds == sorted([*inputs, *outputs, ("log", "1"), ("payload", "payload")])


def test_an_http_worker_transfers_files_of_every_size_with_a_bucket(tmp_path: Path, bucket: str) -> None:
    with serving(tmp_path) as server:
        response = server.admin("workers", id="press", types=["turn"])
        variables = {"INGOT_WORKER_ID": "press", "INGOT_WORKER_SECRET": response["secret"]}
        with server.worker(INGOT_SERVER_URL=server.url, **variables):
            check_files(server.client.submit("turn", PAYLOAD, file=dict(FILES)), server, bucket)


@pytest.mark.postgres
def test_a_postgres_worker_transfers_files_of_every_size_with_a_bucket(
    tmp_path: Path, bucket: str, database: Database
) -> None:
    with serving(tmp_path) as server, role(database) as url:
        grant = {"action": "workers.run", "resource": "jobs/turn"}
        token = server.admin("tokens", description="files of turners", grants=[grant])["token"]
        with server.worker(INGOT_DATABASE_URL=url, INGOT_SERVER_URL=server.url, INGOT_TOKEN=token):
            check_files(server.client.submit("turn", PAYLOAD, file=dict(FILES)), server, bucket)


@pytest.mark.usefixtures("bucket")
@pytest.mark.postgres
def test_a_postgres_worker_without_a_token_leaves_files_to_others(tmp_path: Path, database: Database) -> None:
    with serving(tmp_path) as server, role(database) as url, server.worker(INGOT_DATABASE_URL=url) as worker:
        plain = server.client.submit("turn", {"lines": LINES, "text": "short"})
        assert plain.wait("30s").result == 5, "a job without files failed"
        assert plain.log() == expected_log(LINES)[-LOG_TAIL_CHARS_MAX:]
        file = server.client.submit("turn", {"lines": 0, "text": ""}, file={"a": b"x"}, max_attempts=1)
        large = server.client.submit("turn", PAYLOAD, max_attempts=1)
        assert server.client.submit("turn", {"lines": 0, "text": ""}).wait("30s").status == "succeeded"
        for job in (file, large):
            assert job.refresh().status == "queued"
        assert "INGOT_TOKEN" in worker.output(), "the worker did not log why the full log was not stored"
