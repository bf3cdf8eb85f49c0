"""The event log played again: every job must get to where it stands by legal moves only, and start in its turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from ingot.jobs import Definition, JobStatus
from ingot.jobs.lifecycle import FINISHED
from ingot.kernel.clock import MICROS, to_micros
from tests.faults.tables import AttemptRow, EventRow, JobRow, Tables

BLOCKED, QUEUED, RUNNING, SUCCEEDED = JobStatus.BLOCKED, JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED
DEAD, CANCELED = JobStatus.DEAD, JobStatus.CANCELED
# Said once more, so that the promise is checked and not the code that makes it.
RETURN_AFTER_LOSS_MAX = 5 * MICROS
JITTER = 0.25
NO_ATTEMPT = AttemptRow("", 0, 0, "", None, True, None, None, None, None, None, None, None)


class Standing(msgspec.Struct):
    """Where a job stands after its events so far."""

    status: JobStatus
    attempts: int = 0
    failures: int = 0
    crashes: int = 0
    fence: int = 0
    cancel_requested: bool = False
    run_at: int = 0
    doomed: bool = False  # Its last attempt was told to be the last; the end itself must follow.
    retries: int = 0
    resets: int = 0
    cancels: int = 0  # How often a cancel changed something.
    swept_along: int = 0  # How often it was canceled with one it waited for.
    ended_in: set[JobStatus] = msgspec.field(default_factory=set)
    ends: int = 0


class Replay:
    """Plays all events of a store and notes what is wrong with them."""

    def __init__(self, tables: Tables, definitions: Mapping[str, Definition]) -> None:
        self.wrong: list[str] = []
        self.jobs: dict[str, Standing] = {}
        self._tables = tables
        self._definitions = definitions
        self._queues: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for event in tables.events:
            before = len(self.wrong)
            self._play(event)
            self.wrong[before:] = [
                f"{text} (job {event.news.id}, {event.name}, batch {event.batch})" for text in self.wrong[before:]
            ]
        for job in tables.jobs.values():
            self._compare(job)
        self.wrong += [f"J2 events speak of a job that is not there: {id}" for id in self.jobs.keys() - tables.jobs]

    def _expect(self, truth: bool, text: str) -> None:
        if not truth:
            self.wrong.append(text)

    def _play(self, event: EventRow) -> None:
        news = event.news
        if event.name == "job.created":
            self._expect(news.id not in self.jobs, "J1 a job was made twice")
            self.jobs[news.id] = Standing(BLOCKED)
            if news.id not in self._tables.waits:
                self._wait(event, self.jobs[news.id])
        elif news.id not in self.jobs:
            self.wrong.append("J5 a job moved before it was made")
            self.jobs[news.id] = Standing(news.status)
        else:
            self._move(event, self.jobs[news.id])
        job = self.jobs[news.id]
        told = (news.status, news.attempts, news.failures, news.crashes, news.fence, news.cancel_requested)
        known = (job.status, job.attempts, job.failures, job.crashes, job.fence, job.cancel_requested)
        self._expect(told == known, f"J5 an event tells {told} where the moves lead to {known}")
        if told != known:
            job.status, job.attempts, job.failures, job.crashes, job.fence, job.cancel_requested = told

    def _move(self, event: EventRow, job: Standing) -> None:
        doomed, job.doomed = job.doomed, False
        match event.name:
            case "job.started":
                self._start(event, job)
            case "job.failed":
                self._fail(event, job)
            case "job.completed":
                self._attempt_that(event, job, "succeeded")
                self._end(event, job, SUCCEEDED)
            case "job.dead":
                self._expect(doomed and job.status is DEAD, f"J5 a {job.status} job died without a failure")
            case "job.canceled" if doomed:
                self._expect(job.status is CANCELED, f"J6 a doomed {job.status} job was canceled")
            case "job.canceled":
                self._cancel(event, job)
            case "job.retried":
                self._retry(event, job)
            case "job.updated":
                self._update(event, job)
            case _:
                self.wrong.append("J5 there is no such event")
        self._expect(not doomed or event.name in ("job.dead", "job.canceled"), "J6 a doomed job went on")

    def _start(self, event: EventRow, job: Standing) -> None:
        news = event.news
        self._expect(job.status is QUEUED, f"J5 a {job.status} job was started")
        self._expect(news.fence > job.fence, f"J4 the fence went from {job.fence} to {news.fence}")
        attempt = self._tables.attempts.get((news.id, news.fence))
        self._expect(attempt is not None and attempt.worker_id == news.worker_id, "J7 a claim has no row")
        self._start_in_turn(event)
        job.status, job.fence, job.attempts = RUNNING, news.fence, job.attempts + 1

    def _start_in_turn(self, event: EventRow) -> None:
        """No job of the lane that was due may come before this one. Lanes steered from outside are left out."""
        job = self._tables.jobs.get(event.news.id)
        queue = self._queues[event.tenant, event.news.type]
        queue.discard(event.news.id)
        if job is None or event.news.type != "line":
            return
        mine = self._place(job.id)
        for other in queue:
            if self.jobs[other].run_at <= event.at and self._place(other) < mine:
                self.wrong.append(f"J13 the job {other} was due before it and still waits")
                return

    def _place(self, job_id: str) -> tuple[int, int, str]:
        row = self._tables.jobs.get(job_id)
        return 0 if row is None else row.priority, self.jobs[job_id].run_at, job_id

    def _fail(self, event: EventRow, job: Standing) -> None:
        attempt = self._attempt_that(event, job, "failed", "lost")
        definition = self._definitions.get(event.news.type) or Definition(type=event.news.type)
        counted = 0 if job.cancel_requested else 1
        if attempt.outcome == "lost":
            job.crashes += counted
            last = job.crashes >= definition.crash_cap
        else:
            job.failures += counted
            row = self._tables.jobs.get(event.news.id)
            last = not attempt.retry or (row is not None and job.failures >= row.max_attempts)
        last = last or job.cancel_requested
        self._expect(event.news.will_retry is not last, "J7 J8 a cap was not kept")
        if last:
            job.doomed = True
            self._end(event, job, CANCELED if job.cancel_requested else DEAD)
        else:
            self._wait(event, job)
            self._check_delay(attempt, job, definition)

    def _attempt_that(self, event: EventRow, job: Standing, *ended: str) -> AttemptRow:
        """The attempt that this event ends, which must have ended in one of these ways."""
        self._expect(job.status is RUNNING, f"J5 a {job.status} job ended an attempt")
        attempt = self._tables.attempts.get((event.news.id, job.fence)) or NO_ATTEMPT
        self._expect(attempt.outcome in ended, f"J6 the attempt {job.fence} {attempt.outcome}, not {ended}")
        self._expect(attempt.status_after == event.news.status, f"J6 the attempt led to {attempt.status_after}")
        self._expect(attempt.finished_at == event.at, "J6 the attempt ended at another time")
        return attempt

    def _end(self, event: EventRow, job: Standing, status: JobStatus) -> None:
        self._expect(job.status not in FINISHED, f"J6 a {job.status} job ended again")
        job.status = status
        job.ended_in.add(status)
        job.ends += 1
        self._queues[event.tenant, event.news.type].discard(event.news.id)

    def _wait(self, event: EventRow, job: Standing) -> None:
        job.status = QUEUED
        if event.news.run_at is not None:
            job.run_at = to_micros(event.news.run_at)
        self._queues[event.tenant, event.news.type].add(event.news.id)

    def _cancel(self, event: EventRow, job: Standing) -> None:
        if job.status is BLOCKED and self._ends_of_parents(event.news.id) & {DEAD, CANCELED}:
            job.swept_along += 1
        elif job.status in (QUEUED, BLOCKED):
            job.cancels += 1
        else:
            self._expect(job.cancel_requested, f"J5 a {job.status} job was canceled and nobody asked for it")
            self._attempt_that(event, job, "snoozed", "released")
        self._end(event, job, CANCELED)

    def _retry(self, event: EventRow, job: Standing) -> None:
        self._expect(job.status in FINISHED, f"J5 a {job.status} job was retried")
        job.retries += 1
        job.cancel_requested = False
        if (event.news.failures, event.news.crashes) == (0, 0) != (job.failures, job.crashes):
            job.failures = job.crashes = 0
            job.resets += 1
        self._wait(event, job)

    def _update(self, event: EventRow, job: Standing) -> None:
        news = event.news
        if job.status is RUNNING and news.status is QUEUED:
            attempt = self._attempt_that(event, job, "snoozed", "released")
            self._expect(not job.cancel_requested, "J6 a job that was to be canceled went back in the queue")
            self._wait(event, job)
            self._expect(job.run_at == attempt.run_at, "J17 a snoozed or released job waits for another time")
        elif job.status is RUNNING and news.cancel_requested and not job.cancel_requested:
            job.cancel_requested = True
            job.cancels += 1
        elif job.status is BLOCKED and news.status is QUEUED:
            self._expect(self._may_go_on(news.id), "a job went on before those it waits for")
            self._wait(event, job)
        elif job.status is QUEUED:
            self._wait(event, job)

    def _ends_of_parents(self, job_id: str) -> set[JobStatus]:
        """How those this job waits for have ever ended, without those of which any end will do."""
        ends: set[JobStatus] = set()
        for parent, runs_anyway in self._tables.waits.get(job_id, ()):
            ends |= set() if runs_anyway else self.jobs[parent].ended_in
        return ends

    def _may_go_on(self, job_id: str) -> bool:
        """Whether all have ended that this job waits for, and well where it matters."""
        return all(
            self.jobs[parent].ended_in if runs_anyway else SUCCEEDED in self.jobs[parent].ended_in
            for parent, runs_anyway in self._tables.waits[job_id]
        )

    def _check_delay(self, attempt: AttemptRow, job: Standing, definition: Definition) -> None:
        waits = job.run_at - (attempt.finished_at or 0)
        if attempt.outcome == "lost":
            least, most = 0, RETURN_AFTER_LOSS_MAX
        else:
            backoff = definition.backoff
            seconds = min(backoff.first_seconds * backoff.factor ** (job.failures - 1), backoff.max_seconds)
            least, most = int(seconds * (1 - JITTER) * MICROS), int(seconds * MICROS)
        self._expect(least <= waits <= most, f"J17 it waits {waits} µs, not {least} to {most}")

    def _compare(self, row: JobRow) -> None:
        """The row of a job must be where its events lead to."""
        job = self.jobs.get(row.id)
        if job is None:
            self.wrong.append(f"J2 no event made the job {row.id}")
            return
        stored = (row.status, row.attempts, row.failures, row.crashes, row.fence, bool(row.cancel_requested))
        played = (job.status, job.attempts, job.failures, job.crashes, job.fence, job.cancel_requested)
        if stored != played:
            self.wrong.append(f"J5 the job {row.id} is {stored}; its events lead to {played}")
        if job.status is QUEUED and row.run_at != job.run_at:
            self.wrong.append(f"J5 the job {row.id} waits for {row.run_at}; its events lead to {job.run_at}")
        if job.doomed:
            self.wrong.append(f"J6 the end of the job {row.id} is missing")
        if job.ends > job.retries + 1:
            self.wrong.append(f"J6 the job {row.id} ended {job.ends} times and was retried {job.retries} times")
