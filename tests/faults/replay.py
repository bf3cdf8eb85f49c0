"""A replay of the event log: every job must reach its state by legal transitions only, and start in its turn."""

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
# Repeated here, so that the promise is checked and not the code that makes it.
RETURN_AFTER_LOSS_MAX = 5 * MICROS
JITTER = 0.25
NO_ATTEMPT = AttemptRow("", 0, 0, "", None, True, None, None, None, None, None, None, None)


class ReplayedJob(msgspec.Struct):
    """The state of a job after its events so far."""

    status: JobStatus
    attempts: int = 0
    failures: int = 0
    crashes: int = 0
    fence: int = 0
    cancel_requested: bool = False
    run_at: int = 0
    was_last_attempt: bool = False  # The event of its end must follow.
    retries: int = 0
    resets: int = 0
    cancels: int = 0  # The number of cancels that had an effect.
    cascaded: int = 0  # The number of cancels because of a canceled or dead dependency.
    ended_in: set[JobStatus] = msgspec.field(default_factory=set)
    ends: int = 0


class Replay:
    """Replays all events of a store, and collects descriptions of violations in `wrong`."""

    def __init__(self, tables: Tables, definitions: Mapping[str, Definition]) -> None:
        self.wrong: list[str] = []
        self.jobs: dict[str, ReplayedJob] = {}
        self._tables = tables
        self._definitions = definitions
        self._queues: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for event in tables.events:
            before = len(self.wrong)
            self._play(event)
            self.wrong[before:] = [
                f"{text} (job {event.data.id}, {event.name}, batch {event.batch})" for text in self.wrong[before:]
            ]
        for job in tables.jobs.values():
            self._compare(job)
        self.wrong += [f"J2 events refer to a missing job: {id}" for id in self.jobs.keys() - tables.jobs]

    def _expect(self, truth: bool, text: str) -> None:
        if not truth:
            self.wrong.append(text)

    def _play(self, event: EventRow) -> None:
        data = event.data
        if event.name == "job.created":
            self._expect(data.id not in self.jobs, "J1 a job was created twice")
            self.jobs[data.id] = ReplayedJob(BLOCKED)
            if data.id not in self._tables.waits:
                self._wait(event, self.jobs[data.id])
        elif data.id not in self.jobs:
            self.wrong.append("J5 a job changed before it was created")
            self.jobs[data.id] = ReplayedJob(data.status)
        else:
            self._move(event, self.jobs[data.id])
        job = self.jobs[data.id]
        reported = (data.status, data.attempts, data.failures, data.crashes, data.fence, data.cancel_requested)
        expected = (job.status, job.attempts, job.failures, job.crashes, job.fence, job.cancel_requested)
        self._expect(reported == expected, f"J5 an event has {reported}, and the transitions lead to {expected}")
        if reported != expected:
            job.status, job.attempts, job.failures, job.crashes, job.fence, job.cancel_requested = reported

    def _move(self, event: EventRow, job: ReplayedJob) -> None:
        was_last_attempt, job.was_last_attempt = job.was_last_attempt, False
        match event.name:
            case "job.started":
                self._start(event, job)
            case "job.failed":
                self._fail(event, job)
            case "job.completed":
                self._ended_attempt(event, job, "succeeded")
                self._end(event, job, SUCCEEDED)
            case "job.dead":
                self._expect(was_last_attempt and job.status is DEAD, f"J5 a {job.status} job died without a failure")
            case "job.canceled" if was_last_attempt:
                self._expect(job.status is CANCELED, f"J6 a {job.status} job was canceled after its last attempt")
            case "job.canceled":
                self._cancel(event, job)
            case "job.retried":
                self._retry(event, job)
            case "job.updated":
                self._update(event, job)
            case _:
                self.wrong.append("J5 unknown event")
        self._expect(
            not was_last_attempt or event.name in ("job.dead", "job.canceled"),
            "J6 a job continued after its last attempt",
        )

    def _start(self, event: EventRow, job: ReplayedJob) -> None:
        data = event.data
        self._expect(job.status is QUEUED, f"J5 a {job.status} job was started")
        self._expect(data.fence > job.fence, f"J4 the fence went from {job.fence} to {data.fence}")
        attempt = self._tables.attempts.get((data.id, data.fence))
        self._expect(attempt is not None and attempt.worker_id == data.worker_id, "J7 a claim has no row")
        self._start_in_turn(event)
        job.status, job.fence, job.attempts = RUNNING, data.fence, job.attempts + 1

    def _start_in_turn(self, event: EventRow) -> None:
        """Check that no other due job of the lane comes first. Only lanes without cancels and changes are checked."""
        job = self._tables.jobs.get(event.data.id)
        queue = self._queues[event.tenant, event.data.type]
        queue.discard(event.data.id)
        if job is None or event.data.type != "line":
            return
        position = self._position(job.id)
        for other in queue:
            if self.jobs[other].run_at <= event.at and self._position(other) < position:
                self.wrong.append(f"J13 the job {other} was due earlier and is still waiting")
                return

    def _position(self, job_id: str) -> tuple[int, int, str]:
        row = self._tables.jobs.get(job_id)
        return 0 if row is None else row.priority, self.jobs[job_id].run_at, job_id

    def _fail(self, event: EventRow, job: ReplayedJob) -> None:
        attempt = self._ended_attempt(event, job, "failed", "timed_out", "lost")
        definition = self._definitions.get(event.data.type) or Definition(type=event.data.type)
        increment = 0 if job.cancel_requested else 1
        if attempt.outcome == "lost":
            job.crashes += increment
            last = job.crashes >= definition.crash_cap
        else:
            job.failures += increment
            row = self._tables.jobs.get(event.data.id)
            last = not attempt.retry or (row is not None and job.failures >= row.max_attempts)
        last = last or job.cancel_requested
        self._expect(event.data.will_retry is not last, "J7 J8 a cap was not kept")
        if last:
            job.was_last_attempt = True
            self._end(event, job, CANCELED if job.cancel_requested else DEAD)
        else:
            self._wait(event, job)
            self._check_delay(attempt, job, definition)

    def _ended_attempt(self, event: EventRow, job: ReplayedJob, *outcomes: str) -> AttemptRow:
        """Return the attempt that this event ends, and check its outcome."""
        self._expect(job.status is RUNNING, f"J5 a {job.status} job ended an attempt")
        attempt = self._tables.attempts.get((event.data.id, job.fence)) or NO_ATTEMPT
        self._expect(attempt.outcome in outcomes, f"J6 the attempt {job.fence} {attempt.outcome}, not {outcomes}")
        self._expect(attempt.status_after == event.data.status, f"J6 the attempt led to {attempt.status_after}")
        self._expect(attempt.finished_at == event.at, "J6 the attempt ended at another time")
        return attempt

    def _end(self, event: EventRow, job: ReplayedJob, status: JobStatus) -> None:
        self._expect(job.status not in FINISHED, f"J6 a {job.status} job ended again")
        job.status = status
        job.ended_in.add(status)
        job.ends += 1
        self._queues[event.tenant, event.data.type].discard(event.data.id)

    def _wait(self, event: EventRow, job: ReplayedJob) -> None:
        job.status = QUEUED
        if event.data.run_at is not None:
            job.run_at = to_micros(event.data.run_at)
        self._queues[event.tenant, event.data.type].add(event.data.id)

    def _cancel(self, event: EventRow, job: ReplayedJob) -> None:
        if job.status is BLOCKED and self._ends_of_dependencies(event.data.id) & {DEAD, CANCELED}:
            job.cascaded += 1
        elif job.status in (QUEUED, BLOCKED):
            job.cancels += 1
        else:
            self._expect(job.cancel_requested, f"J5 a {job.status} job was canceled without a request")
            self._ended_attempt(event, job, "snoozed", "canceled")
        self._end(event, job, CANCELED)

    def _retry(self, event: EventRow, job: ReplayedJob) -> None:
        self._expect(job.status in FINISHED, f"J5 a {job.status} job was retried")
        job.retries += 1
        job.cancel_requested = False
        if (event.data.failures, event.data.crashes) == (0, 0) != (job.failures, job.crashes):
            job.failures = job.crashes = 0
            job.resets += 1
        self._wait(event, job)

    def _update(self, event: EventRow, job: ReplayedJob) -> None:
        data = event.data
        if job.status is RUNNING and data.status is QUEUED:
            attempt = self._ended_attempt(event, job, "snoozed", "released")
            self._expect(not job.cancel_requested, "J6 a job with a requested cancel returned to the queue")
            self._wait(event, job)
            self._expect(job.run_at == attempt.run_at, "J17 a snoozed or released job waits for another time")
        elif job.status is RUNNING and data.cancel_requested and not job.cancel_requested:
            job.cancel_requested = True
            job.cancels += 1
        elif job.status is BLOCKED and data.status is QUEUED:
            self._expect(self._has_ended_dependencies(data.id), "a job was queued before its dependencies ended")
            self._wait(event, job)
        elif job.status is QUEUED:
            self._wait(event, job)

    def _ends_of_dependencies(self, job_id: str) -> set[JobStatus]:
        """Return all ends of the dependencies of a job, except of those for which any end is enough."""
        ends: set[JobStatus] = set()
        for parent, runs_anyway in self._tables.waits.get(job_id, ()):
            ends |= set() if runs_anyway else self.jobs[parent].ended_in
        return ends

    def _has_ended_dependencies(self, job_id: str) -> bool:
        """Whether all dependencies of a job have ended, and succeeded where that is required."""
        return all(
            self.jobs[parent].ended_in if runs_anyway else SUCCEEDED in self.jobs[parent].ended_in
            for parent, runs_anyway in self._tables.waits[job_id]
        )

    def _check_delay(self, attempt: AttemptRow, job: ReplayedJob, definition: Definition) -> None:
        waits = job.run_at - (attempt.finished_at or 0)
        if attempt.outcome == "lost":
            shortest, longest = 0, RETURN_AFTER_LOSS_MAX
        else:
            backoff = definition.backoff
            seconds = min(backoff.first_seconds * backoff.factor ** (job.failures - 1), backoff.max_seconds)
            shortest, longest = int(seconds * (1 - JITTER) * MICROS), int(seconds * MICROS)
        self._expect(shortest <= waits <= longest, f"J17 the delay is {waits} µs instead of {shortest} to {longest}")

    def _compare(self, row: JobRow) -> None:
        """Compare the row of a job with its events."""
        job = self.jobs.get(row.id)
        if job is None:
            self.wrong.append(f"J2 no event created the job {row.id}")
            return
        stored = (row.status, row.attempts, row.failures, row.crashes, row.fence, bool(row.cancel_requested))
        played = (job.status, job.attempts, job.failures, job.crashes, job.fence, job.cancel_requested)
        if stored != played:
            self.wrong.append(f"J5 the job {row.id} is {stored}; its events lead to {played}")
        if job.status is QUEUED and row.run_at != job.run_at:
            self.wrong.append(f"J5 the job {row.id} waits for {row.run_at}; its events lead to {job.run_at}")
        if job.was_last_attempt:
            self.wrong.append(f"J6 the end of the job {row.id} is missing")
        if job.ends > job.retries + 1:
            self.wrong.append(f"J6 the job {row.id} ended {job.ends} times and was retried {job.retries} times")
