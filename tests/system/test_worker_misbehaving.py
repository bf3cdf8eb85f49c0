"""Handlers that use too much memory, time, processes or log space."""

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
from tests.system.deployment import Deployment, deploy, wait_until_finished, wait_until_running
from tests.waiting import until

pytestmark = pytest.mark.long

LOG_BYTES_KEPT = 64 * 1024
WORKER_KIB_MAX = 200 * 1024


def peak_memory_kib(pid: int) -> int:
    """Return the peak memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def test_a_handler_that_leaks_memory_fails_and_its_worker_survives(tmp_path: Path) -> None:
    with deploy(tmp_path) as deployment:
        worker = deployment.start_worker()
        leaking = deployment.client.submit("isolated", {"does": "leak"}, max_attempts=1)
        with pytest.raises(JobDead, match="MemoryError: the handler used more than its memory_mb=300"):
            leaking.wait("30s")
        assert deployment.client.submit("isolated", {"does": "nothing"}).wait("30s").result is None
        assert worker.is_running
        assert peak_memory_kib(worker.pid) < WORKER_KIB_MAX


def processes_of(deployment: Deployment, name: str) -> list[int]:
    """Return the process IDs that a handler has noted."""
    (pids,) = until(lambda: deployment.notes(name), why="the handler runs")
    # A process without a command line counts as ended, and a new one has none for a moment.
    until(lambda: all(is_running(int(pid)) for pid in pids), why="its processes run")
    return [int(pid) for pid in pids]


def test_all_processes_of_a_job_end_when_it_is_canceled_or_times_out(tmp_path: Path) -> None:
    with deploy(tmp_path) as deployment:
        deployment.start_worker()
        canceled = deployment.client.submit(
            "isolated", {"does": "forks", "note_file": deployment.note_file("canceled")}
        )
        late = deployment.client.submit("isolated.briefly", {"note_file": deployment.note_file("late")}, max_attempts=1)
        pids = [*processes_of(deployment, "canceled"), *processes_of(deployment, "late")]
        canceled.cancel()
        wait_until_finished([canceled, late])
        assert not any(map(is_running, pids)), "a process that ignores SIGTERM still runs"
        assert (canceled.status, late.status) == (JobStatus.CANCELED, JobStatus.DEAD)
        assert "longer than 6 seconds" in (late.error or "")


def _is_not_claimed(deployment: Deployment) -> bool:
    """Whether no worker runs a new job."""
    try:
        deployment.client.submit("tick", {"note_file": deployment.note_file()}).wait("500ms")
    except NotInTime:
        return True
    return False


@pytest.mark.parametrize("ending", ["killed", "killed with a copy", "two signals"])
def test_no_process_of_a_job_outlives_its_worker(tmp_path: Path, ending: str) -> None:
    with deploy(tmp_path) as deployment:
        worker = deployment.start_worker()
        deployment.client.submit("isolated", {"does": "forks", "note_file": deployment.note_file("forks")})
        pids = processes_of(deployment, "forks")
        pids.append(parent_of(pids[0]))  # The template process.
        copies = [deployment.client.submit("copy").wait("30s").result] if "copy" in ending else []
        if "killed" in ending:
            worker.kill()
        else:
            worker.send_signal(signal.SIGTERM)
            until(lambda: _is_not_claimed(deployment), why="the worker claims no more jobs")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait() == 130
        until(lambda: not any(map(is_running, pids)), why="all processes have ended")
        for copy_pid in copies:
            os.kill(copy_pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["flood", "isolated"])
def test_a_flood_of_output_does_not_affect_memory_or_other_jobs(tmp_path: Path, kind: str) -> None:
    lines = 60_000  # 6 MB.
    with deploy(tmp_path) as deployment:
        worker = deployment.start_worker()
        flood = deployment.client.submit(kind, {"does": "flood", "lines": lines})
        beside = deployment.client.submit("tick", {"note_file": deployment.note_file()})
        assert beside.wait("30s").result["attempt"] == 1
        flood.wait("90s")
        assert (flood.data.attempts, flood.data.crashes) == (1, 0)
        log = deployment.client.log(flood.id).text
        assert len(log) <= LOG_BYTES_KEPT
        assert flood.log() == "".join(f"{number} {'x' * 99}\n" for number in range(lines)), "the full log is not stored"
        assert log.endswith(f"{lines - 1} {'x' * 99}\n"), "the log tail does not contain the end"
        assert peak_memory_kib(worker.pid) < WORKER_KIB_MAX
        assert peak_memory_kib(deployment.server.pid) < WORKER_KIB_MAX


def test_a_removed_worker_registers_again(tmp_path: Path) -> None:
    with deploy(tmp_path, lease_seconds=1) as deployment:
        worker = deployment.start_worker()
        deployment.wait_until_online(worker)
        job = wait_until_running(deployment.client.submit("wait"))
        (worker_row,) = deployment.client.workers()
        worker_url = f"{deployment.url}/api/v1/workers/{quote(worker_row.id, safe='')}"
        assert httpx.delete(worker_url, headers=deployment.headers, verify=False).status_code == 204
        deployment.wait_until_online(worker)
        assert job.wait("30s").result == 2, "the job was not released and run again"
        assert job.data.crashes == 0
