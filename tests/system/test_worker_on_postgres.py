"""Worker processes that connect to PostgreSQL with a role and without HTTP, beside a server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import asyncpg
import pytest

from ingot.client import Client
from ingot.client.errors import JobCanceled
from ingot.engines.postgres import make_worker_role
from ingot.jobs.model import AttemptOutcome, JobStatus
from tests.postgres import Database, database_for, with_database
from tests.processes import Process
from tests.system.programs import served, worker
from tests.waiting import until

LEASE_SECONDS: Final = 2
pytestmark = pytest.mark.postgres
WAIT_SECONDS: Final = 60
APP: Final = """
import time
from ingot import Worker

worker = Worker()

@worker.handler("greet", concurrency=8)
async def greet(job):
    return f"Hello, {job.payload}"

@worker.handler("slow", concurrency=8)
def slow(job):
    print("at work")
    job.progress(40, "half way")
    while not job.wait(0.05):
        pass
    job.check()

@worker.handler("short", concurrency=8)
def short(job):
    time.sleep(1)
    return job.attempt
"""


class PostgresServer(NamedTuple):
    """A server on PostgreSQL, its client, the database URL of a worker role, and the URL of the server."""

    folder: Path
    client: Client
    url: str
    http_url: str


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    database = asyncio.run(database_for(tmp_path))
    monkeypatch.setenv("INGOT_DATABASE_URL", database.server_url)
    monkeypatch.setenv("INGOT_LEASE_SECONDS", str(LEASE_SECONDS))
    role = f"resize_{os.getpid()}"
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    try:
        with served(tmp_path / "data") as (_, url):
            token = (tmp_path / "data" / "operator.token").read_text(encoding="utf-8").strip()
            password = asyncio.run(_create_role(database, role))
            with Client(url, token=token) as client:
                database_url = with_database(database.owner_url, database.name, f"{role}:{password}")
                yield PostgresServer(tmp_path, client, database_url, url)
    finally:
        asyncio.run(_drop_role(database, role))


async def _create_role(database: Database, role: str) -> str:
    owner = await asyncpg.connect(database.owner_url)
    tenant = await owner.fetchval("SELECT id::text FROM ingot.tenants WHERE slug = 'default'")
    await owner.close()
    return await make_worker_role(database.owner_url, role, tenant)


async def _drop_role(database: Database, role: str) -> None:
    owner = await asyncpg.connect(database.owner_url)
    await owner.execute("DELETE FROM ingot.worker_roles WHERE role = $1", role)
    await owner.execute(f"DROP ROLE IF EXISTS {role}")
    await owner.close()


@contextmanager
def running_worker(server: PostgresServer, url: str = "http://127.0.0.1:9", **variables: str) -> Iterator[Process]:
    """Run a worker process, by default without a server. It gets SIGTERM at the end of the block."""
    environment = {**os.environ, "INGOT_DATABASE_URL": server.url, **variables}
    options = ("--app", "app:worker", "--drain-seconds", "5")
    with worker(*options, url=url, cwd=server.folder, env=environment) as process:
        yield process


def test_a_postgres_worker_runs_jobs_is_listed_and_unregisters(server: PostgresServer) -> None:
    with running_worker(server) as process:
        jobs = server.client.submit_many("greet", ["Ada", "Grace"])
        assert [job.wait("60s").result for job in jobs] == ["Hello, Ada", "Hello, Grace"]
        (environment,) = server.client.workers()
        assert (environment.status, environment.types) == ("online", ("greet", "short", "slow"))
        assert environment.id.startswith("resize_")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WAIT_SECONDS) == 0
    assert list(server.client.workers()) == []


def test_clients_see_the_progress_and_log_of_a_job_and_can_cancel_it(server: PostgresServer) -> None:
    with running_worker(server):
        job = server.client.submit("slow")
        until(lambda: job.refresh().data.progress is not None, why="the job reports progress")
        assert job.data.progress is not None
        assert (job.data.progress.percent, job.data.progress.stage) == (40, "half way")
        until(lambda: job.log() == "at work\n", why="the log is visible")
        job.cancel()
        with pytest.raises(JobCanceled):
            job.wait("60s")
        assert [attempt.outcome for attempt in job.attempts()] == [AttemptOutcome.CANCELED]


def test_a_server_can_drain_a_postgres_worker(server: PostgresServer) -> None:
    with running_worker(server) as process:
        job = server.client.submit("short")
        until(lambda: job.refresh().status is JobStatus.RUNNING, why="the job runs")
        (environment,) = server.client.workers()
        server.client.drain(environment.id)
        assert process.wait(timeout=WAIT_SECONDS) == 0
        assert job.refresh().result == 1
        waiting = server.client.submit("short")
        assert waiting.refresh().status is JobStatus.QUEUED


def test_another_worker_runs_the_jobs_of_a_killed_postgres_worker(server: PostgresServer) -> None:
    with running_worker(server) as process:
        job = server.client.submit("short")
        until(lambda: job.refresh().status is JobStatus.RUNNING, why="the job runs")
        process.kill()
        process.wait()
    (killed,) = server.client.workers()
    with running_worker(server):
        assert job.wait("30s").result == 2
        assert (job.data.crashes, job.data.failures) == (1, 0)
        statuses = {one.id: one.status for one in server.client.workers()}
        until(
            lambda: {w.id: w.status for w in server.client.workers()}[killed.id] == "offline",
            why=f"offline: {statuses}",
        )


def test_a_postgres_worker_that_resumes_after_its_lease_changes_nothing(server: PostgresServer) -> None:
    with running_worker(server) as stopped:
        job = server.client.submit("short")
        until(lambda: job.refresh().status is JobStatus.RUNNING, why="the job runs")
        stopped.send_signal(signal.SIGSTOP)
        try:
            with running_worker(server):
                assert job.wait("30s").result == 2
        finally:
            stopped.send_signal(signal.SIGCONT)
        until(lambda: any(one.status == "online" for one in server.client.workers()), why="the worker is online again")
        assert (job.refresh().result, job.data.attempts) == (2, 2)


def test_a_postgres_worker_without_a_server_leaves_jobs_with_files_to_others(server: PostgresServer) -> None:
    filed = server.client.submit("greet", "Ada", file={"a.txt": b"any"})
    large = server.client.submit("short", "x" * 70_000)
    with running_worker(server, url="") as process:
        plain = server.client.submit("greet", "Grace")
        assert plain.wait("60s").result == "Hello, Grace"
        for job in (filed, large):
            assert (job.refresh().status, job.data.attempts) == (JobStatus.QUEUED, 0)
            assert "without access to files" in job.explain().reasons[0].message
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=WAIT_SECONDS)
        assert '"jobs_with_files_not_claimed"' in output
    with running_worker(server, url=server.http_url, INGOT_DATA=str(server.folder / "data")):
        assert filed.wait("60s").result == "Hello, Ada"
        assert large.wait("60s").result == 1


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"INGOT_WORKER_ID": "press", "INGOT_WORKER_SECRET": "s"}, "INGOT_DATABASE_URL and a worker credential"),
        ({"INGOT_DATABASE_URL": "mysql://db"}, "must begin with postgresql://"),
    ],
)
def test_conflicting_settings_are_reported(server: PostgresServer, variables: dict[str, str], message: str) -> None:
    with running_worker(server, **variables) as process:
        _, output = process.communicate(timeout=WAIT_SECONDS)
        assert (process.returncode != 0, message in output, "Traceback" in output) == (True, True, False), output


def test_a_worker_refuses_the_role_of_servers(server: PostgresServer) -> None:
    with running_worker(server, INGOT_DATABASE_URL=os.environ["INGOT_DATABASE_URL"]) as process:
        _, output = process.communicate(timeout=WAIT_SECONDS)
        assert (process.returncode != 0, "only for servers" in output, "Traceback" in output) == (True, True, False), (
            output
        )
