"""Handlers in processes of their own: what they do there stays there, and ends when it is to."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ingot.client import AsyncClient
from ingot.client.asynchronous.job import AsyncJob
from ingot.client.errors import JobCanceled, JobDead
from ingot.jobs.model import JobStatus
from ingot.worker import Worker
from ingot.worker.isolation import Templates
from tests.http import isolated_import_error, isolated_pipe, isolated_thread
from tests.http.isolated_handlers import worker
from tests.http.running_worker import working
from tests.http.serving import Served
from tests.processes import is_running, parent_of
from tests.waiting import eventually, until

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.url, token=served.operator) as one:
        yield one


@pytest.fixture(scope="module")
def templates() -> Iterator[Templates]:
    """Templates for the tests that are not about how one begins or ends."""
    shared = Templates()
    yield shared
    shared.close()


async def test_a_process_does_the_work_and_tells_of_it(
    served: Served, client: AsyncClient, templates: Templates
) -> None:
    async with working(served, worker, templates=templates):
        job = await (await client.submit("isolated", "work")).wait("30s")
        assert job.result["pid"] != os.getpid()
        assert job.result["uid"] != 0, "who parses what strangers send is not root"
        log = await job.log()
        for said in ("printed\n", "logged\n", "said by a child\n", "binary\n"):
            assert said in log


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give each job a user of its own")
async def test_each_job_has_a_user_of_its_own_who_sees_nothing_of_others(
    served: Served, client: AsyncClient, templates: Templates
) -> None:
    async with working(served, worker, templates=templates):
        first = (await (await client.submit("isolated", "look around")).wait("30s")).result
        second = (await (await client.submit("isolated", "look around")).wait("30s")).result
        assert first["uid"] != second["uid"]
        assert (first["seen"], second["seen"]) == (0, 0)
        waiting = await client.submit("isolated", "sleep")
        await asyncio.to_thread(until, lambda: len(rooms_beside(second["room"])) == 1)
        (room,) = rooms_beside(second["room"])
        assert not (await (await client.submit("isolated", ["read", str(room)])).wait("30s")).result
        await waiting.cancel()


def rooms_beside(room: str) -> list[Path]:
    return [path for path in Path(room).parent.iterdir() if path.is_dir() and str(path) != room]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give each job a user of its own")
async def test_what_leaves_the_group_of_its_job_ends_with_it(
    served: Served, client: AsyncClient, templates: Templates
) -> None:
    async with working(served, worker, templates=templates):
        job = await (await client.submit("isolated", "escape")).wait("30s")
        await asyncio.to_thread(until, lambda: not Path(f"/proc/{job.result}").exists())


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


async def test_a_client_in_it_says_that_there_is_no_token_and_is_not_made_again(
    served: Served, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGOT_TOKEN", served.operator)
    async with working(served, worker):
        job = await client.submit("isolated", "client")
        with pytest.raises(JobDead, match="an isolated handler has no token"):
            await job.wait("30s")
        assert (await job.refresh()).data.attempts == 1


async def test_no_secret_is_in_what_the_process_or_its_template_began_with(
    served: Served, client: AsyncClient, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "a-secret-of-the-worker"
    monkeypatch.setenv("INGOT_TOKEN", secret)
    async with working(served, worker):
        job = await (await client.submit("isolated", {"secret": secret})).wait("30s")
        assert job.result == [], "the process finds none"
        endless = await client.submit("isolated", {"endless": str(open_folder / "pids")})
        pid, _ = await _pids_of(endless, open_folder / "pids")
        for process in (pid, parent_of(pid)):
            assert "PATH=" in environment_of(process)
            assert secret not in environment_of(process), "and nobody else does"
        await endless.cancel()


async def test_jobs_at_once_share_nothing_that_is_open(
    served: Served, client: AsyncClient, templates: Templates, open_folder: Path
) -> None:
    async with working(served, worker, templates=templates):
        jobs = await client.submit_many("isolated", [{"together": str(open_folder)}] * 2)
        one, other = [set((await job.wait("30s")).result) for job in jobs]
    assert one & other <= {os.devnull}, "neither holds what another waits for the end of"
    for opened in (one, other):
        kinds = sorted(place.partition(":")[0] for place in opened if place.partition(":")[0] in ("pipe", "socket"))
        assert kinds == ["pipe", "socket"], "it has where it prints, where it talks, and nothing of the template's"


async def test_nothing_is_left_of_one_job_for_the_next(
    served: Served, client: AsyncClient, templates: Templates
) -> None:
    async with working(served, worker, templates=templates):
        for _ in range(3):
            job = await (await client.submit("isolated", "remember")).wait("30s")
            assert len(job.result) == 1


@pytest.mark.parametrize(
    ("app", "kind", "result"),
    [(isolated_thread.worker, "thread", "answered"), (isolated_pipe.worker, "pipe", "for one")],
)
async def test_what_cannot_be_copied_is_made_for_each_job(
    served: Served, client: AsyncClient, app: Worker, kind: str, result: str
) -> None:
    async with working(served, app):
        for _ in range(2):
            assert (await (await client.submit(kind)).wait("30s")).result == result


async def test_a_handler_that_its_process_cannot_import_is_told(served: Served, client: AsyncClient) -> None:
    async with working(served, isolated_import_error.worker):
        job = await client.submit("broken", max_attempts=1)
        with pytest.raises(JobDead, match="RuntimeError: not here"):
            await job.wait("30s")


async def test_a_template_that_is_killed_takes_its_processes_along_and_another_comes(
    served: Served, client: AsyncClient, open_folder: Path
) -> None:
    place = open_folder / "pids"
    async with working(served, worker):
        job = await client.submit("isolated", {"endless": str(place)}, max_attempts=1)
        pids = await _pids_of(job, place)
        os.kill(parent_of(pids[0]), signal.SIGKILL)
        with pytest.raises(JobDead, match="SIGKILL"):
            await job.wait("30s")
        await asyncio.to_thread(until, lambda: not any(map(is_running, pids)))
        again = await client.submit_many("isolated", ["work"] * 4)
        assert len({(await one.wait("30s")).result["pid"] for one in again}) == 4


async def test_a_process_that_does_not_end_after_its_last_word_is_ended(
    served: Served, client: AsyncClient, templates: Templates
) -> None:
    async with working(served, worker, templates=templates):
        job = await (await client.submit("isolated", "linger")).wait("40s")
        assert job.result == "said"


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ("exit", "code 3"),
        ("leave", "code 3"),
        ("memory", "MemoryError"),
        ("never", "never"),
        ("odd", "ValueError: odd"),
    ],
)
async def test_what_goes_wrong_in_the_process_is_told(
    served: Served, client: AsyncClient, templates: Templates, payload: str, error: str
) -> None:
    async with working(served, worker, templates=templates):
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


async def test_it_can_be_too_early(served: Served, client: AsyncClient, templates: Templates) -> None:
    async with working(served, worker, templates=templates):
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


def environment_of(pid: int) -> str:
    """The environment that a process was begun with."""
    return Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace")


async def _pids_of(job: AsyncJob, place: Path) -> list[int]:
    """The processes of a job that does not end, once they are there."""
    async for _ in job.watch():
        if len(pids := pids_in(place)) == 2:
            await eventually(lambda: all(map(is_running, pids)), why="its processes run")
            return pids
    raise AssertionError(f"{job} has ended")


async def test_a_canceled_job_takes_all_its_processes_along(
    served: Served, client: AsyncClient, templates: Templates, open_folder: Path
) -> None:
    place = open_folder / "pids"
    async with working(served, worker, templates=templates):
        job = await client.submit("isolated", {"endless": str(place)})
        pids = await _pids_of(job, place)
        await job.cancel()
        with pytest.raises(JobCanceled):
            await job.wait("30s")
        assert not any(map(is_running, pids))
