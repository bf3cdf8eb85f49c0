"""Handlers that take too much: of memory, of time, of processes, of the log."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from ingot.client.errors import JobDead, NotInTime
from ingot.jobs.model import JobStatus
from tests.processes import is_running, parent_of
from tests.system.deployment import Crew, all_of, crew, running
from tests.waiting import until

pytestmark = pytest.mark.long

LOG_BYTES_KEPT = 64 * 1024
WORKER_KIB_MAX = 200 * 1024


def most_memory_kib(pid: int) -> int:
    """The most that a process ever had."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def test_a_handler_that_leaks_memory_fails_and_its_worker_survives(tmp_path: Path) -> None:
    with crew(tmp_path) as one:
        worker = one.work()
        leaking = one.client.submit("apart", {"does": "leak"}, max_attempts=1)
        with pytest.raises(JobDead, match="MemoryError: the handler used more than its memory_mb=300"):
            leaking.wait("30s")
        assert one.client.submit("apart", {"does": "nothing"}).wait("30s").result is None
        assert worker.runs
        assert most_memory_kib(worker.pid) < WORKER_KIB_MAX


def processes_of(one: Crew, name: str) -> list[int]:
    """The processes that a handler became."""
    (pids,) = until(lambda: one.noted(name), why="it is at it")
    # For a moment after its start a program has no command line, and counts as ended.
    until(lambda: all(is_running(int(pid)) for pid in pids), why="its processes run")
    return [int(pid) for pid in pids]


def test_all_processes_of_a_job_end_when_it_is_canceled_or_times_out(tmp_path: Path) -> None:
    with crew(tmp_path) as one:
        one.work()
        canceled = one.client.submit("apart", {"does": "forks", "place": one.place("canceled")})
        late = one.client.submit("apart.briefly", {"place": one.place("late")}, max_attempts=1)
        pids = [*processes_of(one, "canceled"), *processes_of(one, "late")]
        canceled.cancel()
        all_of([canceled, late])
        assert not any(map(is_running, pids)), "who ignores TERM is killed, before anybody else runs the job"
        assert (canceled.status, late.status) == (JobStatus.CANCELED, JobStatus.DEAD)
        assert "longer than 6 seconds" in (late.error or "")


def _is_left_waiting(one: Crew) -> bool:
    """Whether nobody does what is asked for."""
    try:
        one.client.submit("tick", {"place": one.place()}).wait("500ms")
    except NotInTime:
        return True
    return False


@pytest.mark.parametrize("how", ["killed", "killed beside a copy of it", "told twice"])
def test_no_process_of_a_job_outlives_its_worker(tmp_path: Path, how: str) -> None:
    with crew(tmp_path) as one:
        worker = one.work()
        one.client.submit("apart", {"does": "forks", "place": one.place("forks")})
        pids = processes_of(one, "forks")
        pids.append(parent_of(pids[0]))  # What made them, too.
        copies = [one.client.submit("copy").wait("30s").result] if "copy" in how else []
        if "killed" in how:
            worker.kill()
        else:
            worker.tell(signal.SIGTERM)
            until(lambda: _is_left_waiting(one), why="it claims no more")
            worker.tell(signal.SIGTERM)
            assert worker.wait() == 130
        until(lambda: not any(map(is_running, pids)), why="they are gone")
        for copied in copies:
            os.kill(copied, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["flood", "apart"])
def test_a_flood_of_output_does_not_affect_memory_or_other_jobs(tmp_path: Path, kind: str) -> None:
    lines = 60_000  # That is 6 MB.
    with crew(tmp_path) as one:
        worker = one.work()
        flood = one.client.submit(kind, {"does": "flood", "lines": lines})
        beside = one.client.submit("tick", {"place": one.place()})
        assert beside.wait("30s").result["attempt"] == 1
        flood.wait("90s")
        assert (flood.data.attempts, flood.data.crashes) == (1, 0)
        log = one.client.log(flood.id).text
        assert len(log) <= LOG_BYTES_KEPT
        assert flood.log() == "".join(f"{number} {'x' * 99}\n" for number in range(lines)), "it is stored whole"
        assert log.endswith(f"{lines - 1} {'x' * 99}\n"), "the end is kept"
        assert most_memory_kib(worker.pid) < WORKER_KIB_MAX
        assert most_memory_kib(one.server.pid) < WORKER_KIB_MAX


def test_a_removed_worker_registers_again(tmp_path: Path) -> None:
    with crew(tmp_path, lease_seconds=1) as one:
        worker = one.work()
        one.online(worker)
        job = running(one.client.submit("wait"))
        (known,) = one.client.workers()
        place = f"{one.url}/api/v1/workers/{quote(known.id, safe='')}"
        assert httpx.delete(place, headers=one.headers, verify=False).status_code == 204
        one.online(worker)
        assert job.wait("30s").result == 2, "it was given back, and done again"
        assert job.data.crashes == 0
