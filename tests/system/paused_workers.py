"""Workers that are stopped for longer than their leases and then resume: their late calls have no effect."""

from __future__ import annotations

import signal
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx

from ingot.client.synchronous.job import SyncJob
from ingot.jobs.model import AttemptOutcome, JobStatus
from tests.system.deployment import Deployment, LoggedProcess, deploy
from tests.waiting import until

CRASH_CAP = 50


def run_paused_workers(
    folder: Path, *, workers: int, rounds: int, report: Callable[[str], None] = lambda _: None
) -> int:
    """Pause all workers several times and check the results. Return the number of pauses."""
    with deploy(folder, lease_seconds=1) as deployment:
        definition = {"crash_cap": CRASH_CAP}
        response = httpx.put(
            f"{deployment.url}/api/v1/admin/definitions/hold", headers=deployment.headers, json=definition, verify=False
        )
        assert response.is_success, response.text
        processes = [deployment.start_worker() for _ in range(workers)]
        deployment.wait_until_online(*processes)
        jobs: list[SyncJob] = []
        for number in range(rounds):
            jobs += _pause_once(deployment, processes)
            report(f"paused workers {(number + 1) * workers}/{rounds * workers}")
        _check(deployment, jobs)
    return workers * rounds


def _pause_once(deployment: Deployment, processes: list[LoggedProcess]) -> list[SyncJob]:
    """Stop all workers while they run jobs, until the leases are lost, and resume them."""
    end_file = Path(deployment.note_file(f"end-{uuid.uuid4().hex}"))
    payloads = [
        {"note_file": deployment.note_file(), "end_file": str(end_file) if number % 2 == 0 else None}
        for number in range(2 * len(processes))
    ]
    jobs = deployment.client.submit_many("hold", payloads)
    until(lambda: all(job.refresh().data.attempts for job in jobs), why="all jobs run")
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    until(lambda: all(job.refresh().data.crashes or job.finished for job in jobs), why="all leases are lost")
    end_file.touch()
    for process in processes:
        process.send_signal(signal.SIGCONT)
    return jobs


def _check(deployment: Deployment, jobs: list[SyncJob]) -> None:
    until(
        lambda: deployment.client.summary().counts[JobStatus.SUCCEEDED] == len(jobs),
        seconds=120,
        why="all jobs succeeded",
    )
    notes = {(id, int(attempt)) for _, id, attempt in deployment.notes()}
    for job in jobs:
        _check_job(deployment, job.refresh(), notes)
    completed = Counter(event["data"]["id"] for event in deployment.events("job.completed"))
    assert completed == {job.id: 1 for job in jobs}


def _check_job(deployment: Deployment, job: SyncJob, notes: set[tuple[str, int]]) -> None:
    attempts = job.attempts()
    assert [attempt.outcome for attempt in attempts[:-1]] == [AttemptOutcome.LOST] * job.data.crashes
    assert attempts[-1].outcome is AttemptOutcome.SUCCEEDED
    assert job.result == {"attempt": len(attempts), "fence": job.data.fence}, "the result is not from the last attempt"
    assert (job.id, 1) in notes, "the first attempt was neither stopped nor late"
    for number in range(1, len(attempts) + 1):
        whole, _, _ = deployment.client.log(job.id, attempt=number).text.rpartition(
            "\n"
        )  # The last line may be incomplete.
        arguments = {line.removeprefix("attempt ") for line in whole.splitlines()}
        assert arguments <= {str(number)}, "the log contains lines of another attempt"
    progress = job.data.progress
    assert progress is None or progress.stage != "stale"
