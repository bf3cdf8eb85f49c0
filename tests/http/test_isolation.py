"""Handlers in processes of their own: what they do there stays there, and ends when it is to."""

from __future__ import annotations

import ctypes
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ingot.client import AsyncClient
from ingot.client.errors import JobCanceled, JobDead
from ingot.jobs.model import JobStatus
from tests.http.isolated import worker
from tests.http.serving import Served
from tests.http.test_worker import working

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.url, token=served.operator) as one:
        yield one


async def test_a_process_does_the_work_and_tells_of_it(served: Served, client: AsyncClient) -> None:
    async with working(served, worker):
        job = await (await client.submit("isolated", "work")).wait("30s")
        assert job.result["pid"] != os.getpid()
        assert job.result["uid"] != 0, "who parses what strangers send is not root"
        log = await job.log()
        for said in ("printed\n", "logged\n", "said by a child\n", "binary\n"):
            assert said in log


async def test_what_it_starts_finds_no_secrets_of_the_worker(
    served: Served, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ("INGOT_TOKEN", "INGOT_WORKER_SECRET", "INGOT_DATABASE_URL", "INGOT_OPERATOR_TOKEN")
    async with working(served, worker):
        for name in (*secrets, "INGOT_TENANT"):
            monkeypatch.setenv(name, "something")
        job = await (await client.submit("isolated", "environment")).wait("30s")
        assert "INGOT_TENANT" in job.result
        assert not set(job.result) & set(secrets)


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ("exit", "ended with 3"),
        ("leave", "ended with 3"),
        ("memory", "MemoryError"),
        ("never", "never"),
        ("odd", "ValueError: odd"),
    ],
)
async def test_what_goes_wrong_in_the_process_is_told(
    served: Served, client: AsyncClient, payload: str, error: str
) -> None:
    async with working(served, worker):
        job = await client.submit("isolated", payload, max_attempts=1)
        with pytest.raises(JobDead, match=error):
            await job.wait("30s")
        (attempt,) = await job.attempts()
        assert attempt.exit_code == (3 if payload in ("exit", "leave") else None)


async def test_the_first_process_of_a_container_buries_what_is_left_to_it(served: Served, client: AsyncClient) -> None:
    assert _inherit_orphans(True)
    try:
        async with working(served, worker):
            await (await client.submit("isolated", "work")).wait("30s")
        assert _unburied() == []
    finally:
        _inherit_orphans(False)


def _inherit_orphans(wanted: bool) -> bool:
    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) == 0)


def _unburied() -> list[str]:
    """Children of ours that have ended, and of whose end nobody took note."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            stat = place.read_text(encoding="utf-8", errors="replace")
            if stat.rpartition(")")[2].split()[:2] == ["Z", str(os.getpid())]:
                found.append(stat)
    return found


async def test_it_can_be_too_early(served: Served, client: AsyncClient) -> None:
    async with working(served, worker):
        job = await client.submit("isolated", "later")
        async for now in job.watch():
            if now.data.attempts == 1 and now.status is JobStatus.QUEUED:
                break
        assert job.data.failures == 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that who has no rights can write to."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


def pids_in(place: Path) -> list[int]:
    return [int(one) for one in place.read_text(encoding="utf-8").split()] if place.exists() else []


def is_running(pid: int) -> bool:
    line = Path(f"/proc/{pid}/cmdline")
    return line.exists() and line.read_bytes() != b""


async def test_a_canceled_job_takes_all_its_processes_along(
    served: Served, client: AsyncClient, open_folder: Path
) -> None:
    place = open_folder / "pids"
    async with working(served, worker):
        job = await client.submit("isolated", {"endless": str(place)})
        pids: list[int] = []
        async for _ in job.watch():
            if len(pids := pids_in(place)) == 2:
                break
        assert all(map(is_running, pids))
        await job.cancel()
        with pytest.raises(JobCanceled):
            await job.wait("30s")
        assert not any(map(is_running, pids))
