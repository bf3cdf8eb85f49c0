"""Workers that stand still past their leases and then go on as if nothing had been: nothing they do counts."""

from __future__ import annotations

import signal
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx

from ingot.client.synchronous.job import SyncJob
from ingot.jobs.model import AttemptOutcome, JobStatus
from tests.system.deployment import Crew, Process, crew
from tests.waiting import until

CRASH_CAP = 50


def run_paused_workers(folder: Path, *, workers: int, rounds: int, tell: Callable[[str], None] = lambda _: None) -> int:
    """Have workers stand still, all of them again and again, and check all that they did; answers how many times."""
    with crew(folder, lease_seconds=1) as one:
        definition = {"crash_cap": CRASH_CAP}
        made = httpx.put(f"{one.url}/api/v1/admin/definitions/hold", headers=one.headers, json=definition, verify=False)
        assert made.is_success, made.text
        processes = [one.work() for _ in range(workers)]
        one.online(*processes)
        jobs: list[SyncJob] = []
        for number in range(rounds):
            jobs += _stand_still_once(one, processes)
            tell(f"stood still {(number + 1) * workers}/{rounds * workers}")
        _check(one, jobs)
    return workers * rounds


def _stand_still_once(one: Crew, processes: list[Process]) -> list[SyncJob]:
    """All stop with jobs in their hands, until these are lost, and go on."""
    end_file = Path(one.place(f"end-{uuid.uuid4().hex}"))
    payloads = [
        {"place": one.place(), "end_file": str(end_file) if number % 2 == 0 else None}
        for number in range(2 * len(processes))
    ]
    jobs = one.client.submit_many("hold", payloads)
    until(lambda: all(job.refresh().data.attempts for job in jobs), why="all were begun")
    for process in processes:
        process.tell(signal.SIGSTOP)
    until(lambda: all(job.refresh().data.crashes or job.finished for job in jobs), why="all were lost")
    end_file.touch()
    for process in processes:
        process.tell(signal.SIGCONT)
    return jobs


def _check(one: Crew, jobs: list[SyncJob]) -> None:
    until(lambda: one.client.summary().counts[JobStatus.SUCCEEDED] == len(jobs), seconds=120, why="all are done")
    noted = {(id, int(attempt)) for _, id, attempt in one.noted()}
    for job in jobs:
        _check_job(one, job.refresh(), noted)
    completed = Counter(event["data"]["id"] for event in one.events("job.completed"))
    assert completed == {job.id: 1 for job in jobs}


def _check_job(one: Crew, job: SyncJob, noted: set[tuple[str, int]]) -> None:
    attempts = job.attempts()
    assert [attempt.outcome for attempt in attempts[:-1]] == [AttemptOutcome.LOST] * job.data.crashes
    assert attempts[-1].outcome is AttemptOutcome.SUCCEEDED
    assert job.result == {"attempt": len(attempts), "fence": job.data.fence}, "the result is that of who held the job"
    assert (job.id, 1) in noted, "who held it before was told to stop, or came to its end too late"
    for number in range(1, len(attempts) + 1):
        whole, _, _ = one.client.log(job.id, attempt=number).text.rpartition("\n")  # It can break off in a line.
        words = {line.removeprefix("attempt ") for line in whole.splitlines()}
        assert words <= {str(number)}, "nothing is in the log that was written when it was another's"
    progress = job.data.progress
    assert progress is None or progress.stage != "stale"
