"""Rolling upgrades with processes of different builds: no job is lost, and every refusal names the reason."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx
import pytest

from ingot.client import Client
from ingot.client.errors import ServerTooOld
from ingot.client.server_address import resolve_server_address
from ingot.engines.postgres.revision import OLDEST_REVISION, REVISION
from ingot.jobs.checks import CLAIM_JOBS_MAX
from ingot.wire.protocol import PROTOCOL
from ingot.worker.http_job_source import HttpJobSource
from tests.postgres import Database, empty_database
from tests.system.other_builds import OtherBuild, changed_build
from tests.system.programs import EXIT_SECONDS, ROOT, RUN_SECONDS, run_ingot, served, worker
from tests.waiting import until

CALLERS: Final = 4
ROUNDS: Final = 10
ROUNDS_MAX: Final = 100_000
# A build that has renamed `ingot.claim`, and that earlier builds cannot use.
LATER_SCHEMA: Final = [
    ("engines/postgres/revision.py", r"(?m)^REVISION: Final = \d+", f"REVISION: Final = {REVISION + 1}"),
    ("engines/postgres/functions/*.sql", r"\bingot\.claim\(", "ingot.claim_again("),
    ("engines/postgres/grants.sql", r"\bingot\.claim\b", "ingot.claim_again"),
    ("engines/postgres/*.py", r"\bCALL\.claim\b", "CALL.claim_again"),
]
# A build whose claims earlier workers cannot decode.
LATER_PROTOCOL: Final = [
    ("wire/protocol.py", r"PROTOCOL: Final = \d+", f"PROTOCOL: Final = {PROTOCOL + 1}"),
    ("api/claims.py", '"timeout_seconds":', '"timeout":'),
]
APP: Final = """
from ingot import Worker

worker = Worker()

@worker.handler("noop")
def noop(job):
    return None
"""


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    """A database of its own, which servers migrate, and a secret key that they share."""
    database = asyncio.run(empty_database())
    monkeypatch.setenv("INGOT_DATABASE_URL", database.server_url)
    monkeypatch.setenv("INGOT_DATABASE_OWNER_URL", database.owner_url)
    monkeypatch.setenv("INGOT_SECRET_KEY", secrets.token_hex(32))
    return database


def read_token(folder: Path) -> str:
    return (folder / "operator.token").read_text(encoding="utf-8").strip()


def fetch_value(database: Database, query: str) -> Any:
    async def fetch() -> Any:
        owner = await asyncpg.connect(database.owner_url)
        try:
            return await owner.fetchval(query)
        finally:
            await owner.close()

    return asyncio.run(fetch())


class Work:
    """The jobs that requests to a server have created and claimed, and the rejection that ended the requests."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.claimed: list[str] = []
        self.rejection: httpx.Response | None = None


def work(url: str, token: str, *, rounds: int = ROUNDS_MAX, limit: int = 1) -> Work:
    """Create a job and claim up to `limit`, repeatedly, until the server rejects a request or the rounds are over."""
    done, claim = Work(), {"worker_id": "w", "types": ["noop"], "limit": min(limit, CLAIM_JOBS_MAX)}
    with httpx.Client(headers={"authorization": f"Bearer {token}"}, verify=False, timeout=60) as client:
        for _ in range(rounds):
            for path, body in (("jobs", {"type": "noop"}), ("jobs/claim", claim)):
                response = client.post(f"{url}/api/v1/{path}", json=body)
                if response.is_error:
                    done.rejection = response
                    return done
                if path == "jobs":
                    done.created.append(response.json()["id"])
                elif response.status_code == 200:
                    done.claimed += [job["id"] for job in response.json()["jobs"]]
    return done


@pytest.mark.postgres
def test_an_upgrade_to_a_schema_that_excludes_a_server_loses_no_job(database: Database, tmp_path: Path) -> None:
    later = changed_build(tmp_path / "later", LATER_SCHEMA)
    data = tmp_path / "data"
    with served(data) as (_, url), ThreadPoolExecutor(CALLERS) as threads:
        token = read_token(data)
        callers = [threads.submit(work, url, token) for _ in range(CALLERS)]
        migrated = later.run("database", "migrate")
        assert migrated.code == 0, migrated.stderr
        results = [caller.result(timeout=EXIT_SECONDS) for caller in callers]
        created = [job_id for result in results for job_id in result.created]
        claimed = [job_id for result in results for job_id in result.claimed]
        for result in results:
            assert result.rejection is not None, "the server was not affected by the migration"
            assert result.rejection.json()["code"] == "schema_mismatch", result.rejection.text
            headers = result.rejection.headers
            assert (result.rejection.status_code, headers["retry-after"], headers["connection"]) == (503, "5", "close")
        assert fetch_value(database, "SELECT count(*) FROM ingot.leases") == len(claimed) == len(set(claimed))
        until(lambda: httpx.get(f"{url}/healthz", verify=False).status_code == 503)
        status = httpx.get(f"{url}/status", headers={"authorization": f"Bearer {token}"}, verify=False)
        assert (status.status_code, status.json()["code"]) == (503, "schema_mismatch")
        doctor = run_ingot("doctor", "--server", url)
        assert (doctor.code, f"this program has revision {REVISION}" in doctor.stdout) == (1, True)
    with later.served(data) as (_, later_url):
        done = work(later_url, token, rounds=1, limit=len(created) + 1)
        assert sorted(claimed + done.claimed) == sorted(created + done.created)
        for arguments in (["serve", "--data", str(data), "--port", "0"], ["database", "migrate"]):
            refused = run_ingot(*arguments)
            assert (refused.code, "Traceback" in refused.stderr) == (1, False), refused.stderr
            assert f"this program has revision {REVISION}" in refused.stderr
        assert fetch_value(database, "SELECT to_regproc('ingot.claim') IS NULL")


@pytest.mark.git
@pytest.mark.postgres
def test_a_server_of_the_previous_commit_loses_no_job_after_an_upgrade(database: Database, tmp_path: Path) -> None:
    previous = previous_build(tmp_path / "previous")
    data = tmp_path / "data"
    with previous.served(data) as (_, url):
        token = read_token(data)
        before = work(url, token, rounds=ROUNDS)
        assert (before.rejection, len(before.claimed)) == (None, ROUNDS)
        migrated = run_ingot("database", "migrate")
        assert migrated.code == 0, migrated.stderr
        after = work(url, token, rounds=ROUNDS)
        if revision_of(tmp_path / "previous") >= OLDEST_REVISION:
            assert (after.rejection, len(after.claimed)) == (None, ROUNDS), (
                "the revision is supported, but it was rejected"
            )
        leases = fetch_value(database, "SELECT count(*) FROM ingot.leases")
        assert leases == len(before.claimed) + len(after.claimed)


def previous_build(folder: Path) -> OtherBuild:
    """Return the build of the previous commit. Skips the test if this checkout has no history."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "HEAD~1", "src", "scripts"], capture_output=True, check=False, timeout=60
    )
    if archive.returncode != 0:
        pytest.skip("the checkout does not contain the previous commit")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    subprocess.run([sys.executable, str(folder / "scripts" / "make_sync.py")], check=True, timeout=60)
    return OtherBuild(folder / "src")


def revision_of(folder: Path) -> int:
    """Return the revision of the schema of a build, 0 if it has none."""
    file = folder / "src" / "ingot" / "engines" / "postgres" / "revision.py"
    found = (
        re.search(r"^REVISION: Final = (\d+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        if file.exists()
        else None
    )
    return 0 if found is None else int(found[1])


async def claim_once(url: str, token: str, type: str) -> None:
    """Claim a job as a worker does that has not registered."""
    source = HttpJobSource(resolve_server_address(url, token=token), "w")
    try:
        await source.claim(type, limit=1, wait_seconds=0)
    finally:
        await source.close()


def outcomes(client: Client, job_id: str) -> list[tuple[str | None, str | None]]:
    return [(attempt.outcome, attempt.status_after) for attempt in client.attempts(job_id)]


def test_a_worker_that_cannot_decode_its_claims_releases_the_jobs_and_exits(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    """The server is replaced by one with a later protocol, while the worker keeps its registration."""
    later = changed_build(tmp_path / "later", LATER_PROTOCOL)
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    data, port = tmp_path / "data", ("--port", str(unused_tcp_port))
    with ExitStack() as stack:
        with served(data, *port) as (_, url):
            token = read_token(data)
            environment = {**os.environ, "INGOT_TOKEN": token}
            process = stack.enter_context(worker("--app", "app:worker", url=url, cwd=tmp_path, env=environment))
            with Client(url, token=token) as client:
                assert client.submit("noop").wait("60s").status == "succeeded"
                (registered,) = client.workers()
                assert registered.protocol == PROTOCOL
        with later.served(data, *port) as (_, url), Client(url, token=token) as client:
            other = client.submit("other")
            with pytest.raises(ServerTooOld):
                asyncio.run(claim_once(url, token, "other"))
            assert outcomes(client, other.id) == [("released", "queued")]
            job = client.submit("noop")
            _, output = process.communicate(timeout=RUN_SECONDS)
            assert (process.returncode, f"uses worker protocol {PROTOCOL};" in output) == (4, True), output
            assert outcomes(client, job.id) == [("released", "queued")]
            assert client.job(job.id).data.failures == 0
            checks = run_ingot("doctor", "--server", url, "--json", env=environment).stdout
            assert f"this program uses worker protocol {PROTOCOL}" in checks
