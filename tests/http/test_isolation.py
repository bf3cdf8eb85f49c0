"""Isolated handlers: their processes share nothing with others, and always end."""

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
from tests.http.running_worker import running_worker
from tests.http.serving import Served
from tests.processes import is_running, parent_of
from tests.waiting import eventually, until

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.url, token=served.operator) as opened_client:
        yield opened_client


@pytest.fixture(scope="module")
def templates() -> Iterator[Templates]:
    """Templates for tests that do not check how a template starts or ends."""
    shared = Templates()
    yield shared
    shared.close()


async def test_an_isolated_handler_returns_a_result_and_logs(
    served: Served, client: AsyncClient, templates: Templates
) -> None:
    async with running_worker(served, worker, templates=templates):
        job = await (await client.submit("isolated", "work")).wait("30s")
        assert job.result["pid"] != os.getpid()
        assert job.result["uid"] != 0, "a handler of untrusted data must not run as root"
        log = await job.log()
        for line in ("printed\n", "logged\n", "printed by a child\n", "binary\n"):
            assert line in log


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give each job a user of its own")
async def test_each_isolated_job_has_its_own_user_and_cannot_read_other_working_folders(
    served: Served, client: AsyncClient, templates: Templates
) -> None:
    async with running_worker(served, worker, templates=templates):
        first = (await (await client.submit("isolated", "workdir")).wait("30s")).result
        second = (await (await client.submit("isolated", "workdir")).wait("30s")).result
        assert first["uid"] != second["uid"]
        assert (first["visible"], second["visible"]) == (0, 0)
        waiting = await client.submit("isolated", "sleep")
        await asyncio.to_thread(until, lambda: len(other_workdirs(second["workdir"])) == 1)
        (workdir,) = other_workdirs(second["workdir"])
        assert not (await (await client.submit("isolated", ["read", str(workdir)])).wait("30s")).result
        await waiting.cancel()


def other_workdirs(workdir: str) -> list[Path]:
    return [path for path in Path(workdir).parent.iterdir() if path.is_dir() and str(path) != workdir]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give each job a user of its own")
async def test_a_process_that_leaves_the_process_group_of_its_job_ends_with_it(
    served: Served, client: AsyncClient, templates: Templates
) -> None:
    async with running_worker(served, worker, templates=templates):
        job = await (await client.submit("isolated", "escape")).wait("30s")
        await asyncio.to_thread(until, lambda: not Path(f"/proc/{job.result}").exists())


async def test_programs_of_an_isolated_handler_have_no_secrets_in_their_environment(
    served: Served, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ("INGOT_TOKEN", "INGOT_WORKER_SECRET", "INGOT_DATABASE_URL", "INGOT_OPERATOR_TOKEN")
    async with running_worker(served, worker):
        for name in (*secrets, "INGOT_TENANT"):
            monkeypatch.setenv(name, "something")
        job = await (await client.submit("isolated", "environment")).wait("30s")
        assert "INGOT_TENANT" in job.result
        assert not set(job.result) & set(secrets)


async def test_a_client_in_an_isolated_handler_has_no_token_and_the_job_is_not_retried(
    served: Served, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGOT_TOKEN", served.operator)
    async with running_worker(served, worker):
        job = await client.submit("isolated", "client")
        with pytest.raises(JobDead, match="an isolated handler has no token"):
            await job.wait("30s")
        assert (await job.refresh()).data.attempts == 1


async def test_no_secret_is_in_the_environment_of_a_child_or_its_template(
    served: Served, client: AsyncClient, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "a-secret-of-the-worker"
    monkeypatch.setenv("INGOT_TOKEN", secret)
    async with running_worker(served, worker):
        job = await (await client.submit("isolated", {"secret": secret})).wait("30s")
        assert job.result == [], "the child finds no secret"
        endless = await client.submit("isolated", {"endless": str(open_folder / "pids")})
        pid, _ = await _pids_of(endless, open_folder / "pids")
        for process in (pid, parent_of(pid)):
            assert "PATH=" in environment_of(process)
            assert secret not in environment_of(process), "other processes find no secret"
        await endless.cancel()


async def test_concurrent_isolated_jobs_share_no_open_files(
    served: Served, client: AsyncClient, templates: Templates, open_folder: Path
) -> None:
    async with running_worker(served, worker, templates=templates):
        jobs = await client.submit_many("isolated", [{"together": str(open_folder)}] * 2)
        first, second = [set((await job.wait("30s")).result) for job in jobs]
    assert first & second <= {os.devnull}, "neither keeps a pipe of the other open"
    for opened in (first, second):
        kinds = sorted(name.partition(":")[0] for name in opened if name.partition(":")[0] in ("pipe", "socket"))
        assert kinds == ["pipe", "socket", "socket"], "a child has its output, two sockets to the worker, and no more"


async def test_module_state_does_not_survive_from_one_isolated_job_to_the_next(
    served: Served, client: AsyncClient, templates: Templates
) -> None:
    async with running_worker(served, worker, templates=templates):
        for _ in range(3):
            job = await (await client.submit("isolated", "remember")).wait("30s")
            assert len(job.result) == 1


@pytest.mark.parametrize(
    ("app", "kind", "result"),
    [(isolated_thread.worker, "thread", "answered"), (isolated_pipe.worker, "pipe", "from the pipe")],
)
async def test_a_module_with_threads_or_pipes_is_imported_again_for_each_job(
    served: Served, client: AsyncClient, app: Worker, kind: str, result: str
) -> None:
    async with running_worker(served, app):
        for _ in range(2):
            assert (await (await client.submit(kind)).wait("30s")).result == result


async def test_an_import_error_of_the_template_fails_the_job(served: Served, client: AsyncClient) -> None:
    async with running_worker(served, isolated_import_error.worker):
        job = await client.submit("broken", max_attempts=1)
        with pytest.raises(JobDead, match="RuntimeError: not here"):
            await job.wait("30s")


async def test_killing_a_template_ends_its_children_and_a_new_template_starts(
    served: Served, client: AsyncClient, open_folder: Path
) -> None:
    pid_file = open_folder / "pids"
    async with running_worker(served, worker):
        job = await client.submit("isolated", {"endless": str(pid_file)}, max_attempts=1)
        pids = await _pids_of(job, pid_file)
        os.kill(parent_of(pids[0]), signal.SIGKILL)
        with pytest.raises(JobDead, match="SIGKILL"):
            await job.wait("30s")
        await asyncio.to_thread(until, lambda: not any(map(is_running, pids)))
        later_jobs = await client.submit_many("isolated", ["work"] * 4)
        assert len({(await later.wait("30s")).result["pid"] for later in later_jobs}) == 4


async def test_a_child_that_does_not_exit_after_its_result_is_killed(
    served: Served, client: AsyncClient, templates: Templates
) -> None:
    async with running_worker(served, worker, templates=templates):
        job = await (await client.submit("isolated", "linger")).wait("40s")
        assert job.result == "returned"


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
async def test_failures_in_a_child_are_reported_with_error_and_exit_code(
    served: Served, client: AsyncClient, templates: Templates, payload: str, error: str
) -> None:
    async with running_worker(served, worker, templates=templates):
        job = await client.submit("isolated", payload, max_attempts=1)
        with pytest.raises(JobDead, match=error):
            await job.wait("30s")
        (attempt,) = await job.attempts()
        assert attempt.exit_code == (3 if payload in ("exit", "leave") else None)


async def test_a_worker_that_inherits_orphans_reaps_them(served: Served, client: AsyncClient) -> None:
    assert _inherit_orphans(True)
    try:
        async with running_worker(served, worker):
            await (await client.submit("isolated", "work")).wait("30s")
        assert _zombies() == []
    finally:
        _inherit_orphans(False)


def _inherit_orphans(enabled: bool) -> bool:
    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(enabled), 0, 0, 0) == 0)


def _zombies() -> list[str]:
    """Children of this process that have ended and were not reaped."""
    zombies = []
    for stat_file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            stat = stat_file.read_text(encoding="utf-8", errors="replace")
            if stat.rpartition(")")[2].split()[:2] == ["Z", str(os.getpid())]:
                zombies.append(stat)
    return zombies


async def test_an_isolated_handler_can_snooze_its_job(
    served: Served, client: AsyncClient, templates: Templates
) -> None:
    async with running_worker(served, worker, templates=templates):
        job = await client.submit("isolated", "later")
        async for current in job.watch():
            if current.data.attempts == 1 and current.status is JobStatus.QUEUED:
                break
        assert job.data.failures == 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can write to."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


def pids_in(pid_file: Path) -> list[int]:
    return [int(pid) for pid in pid_file.read_text(encoding="utf-8").split()] if pid_file.exists() else []


def environment_of(pid: int) -> str:
    """The environment with which a process was started."""
    return Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace")


async def _pids_of(job: AsyncJob, pid_file: Path) -> list[int]:
    """Wait for the processes of a job that does not end, and return their IDs."""
    async for _ in job.watch():
        if len(pids := pids_in(pid_file)) == 2:
            await eventually(lambda: all(map(is_running, pids)), why="its processes run")
            return pids
    raise AssertionError(f"{job} has ended")


async def test_canceling_an_isolated_job_ends_all_its_processes(
    served: Served, client: AsyncClient, templates: Templates, open_folder: Path
) -> None:
    pid_file = open_folder / "pids"
    async with running_worker(served, worker, templates=templates):
        job = await client.submit("isolated", {"endless": str(pid_file)})
        pids = await _pids_of(job, pid_file)
        await job.cancel()
        with pytest.raises(JobCanceled):
            await job.wait("30s")
        assert not any(map(is_running, pids))
