"""Files of jobs with a real bucket: a server, a worker over HTTP or straight on PostgreSQL, and curl."""

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
from ingot.client.errors import JobDead
from ingot.client.synchronous.job import SyncJob
from ingot.engines.postgres import make_worker_role
from ingot.jobs.attempt_logs import LOG_TAIL_CHARS_MAX
from ingot.kernel.ids import new_id
from tests import s3
from tests.postgres import Database, database_for, with_database
from tests.system.bucket_handlers import written
from tests.system.deployment import Process
from tests.system.programs import served

MIB = 1024 * 1024
LINES = 1_000  # About 100 KB.
PAYLOAD = {"lines": LINES, "text": "ä" * 40_000}  # 80 KB.
FILES = {"small": Random(1).randbytes(100), "middle": Random(2).randbytes(MIB), "large": Random(3).randbytes(MIB) * 65}
pytestmark = pytest.mark.s3


class Place:
    """A server whose blobs are in a bucket, and who asks it for work."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.token = (folder / "data" / "operator.token").read_text(encoding="utf-8").strip()
        self.client = Client(url, token=self.token)

    def admin(self, what: str, **body: Any) -> Any:
        """Make something that only an operator makes."""
        headers = {"authorization": f"Bearer {self.token}"}
        made = httpx.post(f"{self.url}/api/v1/admin/{what}", headers=headers, json=body, verify=False)
        assert made.status_code == 201, made.text
        return made.json()

    @contextmanager
    def worker(self, **known: str) -> Iterator[Process]:
        """A worker process that knows this, and nothing of the server's own settings."""
        ours = {name: text for name, text in os.environ.items() if not name.startswith("INGOT_")}
        nowhere = {"INGOT_DATA": str(self.folder / "nowhere")}
        words = ("worker", "--app", "tests.system.bucket_handlers:worker")
        process = Process(*words, said=self.folder / "worker.log", environment={**ours, **nowhere, **known})
        with closing(process):
            yield process


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in a bucket, in the environment; where the store is."""
    known = {"BUCKET": s3.bucket(), "ENDPOINT": s3.server_url(), "ACCESS_KEY": s3.ACCESS_KEY, "PREFIX": new_id()}
    for name, text in {**known, "SECRET_KEY": s3.SECRET_KEY, "REGION": s3.REGION}.items():
        monkeypatch.setenv(f"INGOT_S3_{name}", text)
    return s3.server_url()


@contextmanager
def serving(folder: Path) -> Iterator[Place]:
    with served(folder / "data") as (_, url):
        place = Place(folder, url)
        with place.client:
            yield place


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    database = asyncio.run(database_for(tmp_path))
    monkeypatch.setenv("INGOT_DATABASE_URL", database.server_url)
    return database


@contextmanager
def role(database: Database) -> Iterator[str]:
    """The URL of the database for a worker with a role of its own."""
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


def curl(url: str, to: Path) -> bytes:
    subprocess.run(["curl", "-sSf", "--max-time", "30", "-o", str(to), url], check=True)
    return to.read_bytes()


def expect_all(job: SyncJob, place: Place, bucket: str) -> None:
    """All that went in and came out is there, for the client and for curl, from where it should be."""
    assert (job.wait("60s").result, job.data.attempts) == (len(str(PAYLOAD["text"])), 1)
    for name, data in FILES.items():
        output = job.outputs[f"turned-{name}"]
        assert output.bytes() == data[::-1], name
        address = output.url()
        assert address.startswith(place.url if len(data) <= INLINE_BYTES_MAX else bucket), name
        assert curl(address, place.folder / "back") == data[::-1], name
    assert place.client.blobs.get(job.data.inputs["middle"]) == FILES["middle"]
    assert job.log() == written(LINES)
    assert place.client.job(job.id).payload == PAYLOAD
    kinds = sorted((file.kind, file.name) for file in job.files())
    inputs, outputs = [("input", name) for name in FILES], [("output", f"turned-{name}") for name in FILES]
    assert kinds == sorted([*inputs, *outputs, ("log", "1"), ("payload", "payload")])


def test_an_http_worker_transfers_files_of_every_size_with_a_bucket(tmp_path: Path, bucket: str) -> None:
    with serving(tmp_path) as place:
        made = place.admin("workers", id="press", types=["turn"])
        known = {"INGOT_WORKER_ID": "press", "INGOT_WORKER_SECRET": made["secret"]}
        with place.worker(INGOT_SERVER_URL=place.url, **known):
            expect_all(place.client.submit("turn", PAYLOAD, file=dict(FILES)), place, bucket)


def test_a_postgres_worker_transfers_files_of_every_size_with_a_bucket(
    tmp_path: Path, bucket: str, database: Database
) -> None:
    with serving(tmp_path) as place, role(database) as url:
        grant = {"action": "workers.run", "resource": "jobs/turn"}
        token = place.admin("tokens", description="files of turners", grants=[grant])["token"]
        with place.worker(INGOT_DATABASE_URL=url, INGOT_SERVER_URL=place.url, INGOT_TOKEN=token):
            expect_all(place.client.submit("turn", PAYLOAD, file=dict(FILES)), place, bucket)


@pytest.mark.usefixtures("bucket")
def test_a_postgres_worker_without_a_token_names_the_settings_in_its_errors(tmp_path: Path, database: Database) -> None:
    with serving(tmp_path) as place, role(database) as url, place.worker(INGOT_DATABASE_URL=url) as worker:
        plain = place.client.submit("turn", {"lines": LINES, "text": "short"})
        assert plain.wait("30s").result == 5, "what needs no files is done"
        assert plain.log() == written(LINES)[-LOG_TAIL_CHARS_MAX:]
        file = place.client.submit("turn", {"lines": 0, "text": ""}, file={"a": b"x"}, max_attempts=1)
        large = place.client.submit("turn", PAYLOAD, max_attempts=1)
        for job in (file, large):
            with pytest.raises(JobDead, match="INGOT_SERVER_URL and INGOT_TOKEN"):
                job.wait("30s")
        assert "INGOT_TOKEN" in worker.said(), "why a log is not kept whole"
