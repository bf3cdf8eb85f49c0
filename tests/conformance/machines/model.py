"""The model: what a store must answer, said again in plain dictionaries and without any storage.

Chance is the store's: where jitter decides, the model states the documented range and takes over what it sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ingot.identity import Limits, TenantNotFound
from ingot.jobs import (
    AttemptOutcome,
    Definition,
    Done,
    DuplicateJob,
    Failed,
    HistoryEntry,
    IdempotencyMismatch,
    JobFinished,
    JobLimitExceeded,
    JobNotFinished,
    JobNotFound,
    JobNotQueued,
    JobStatus,
    LeaseLost,
    OnDead,
    Outcome,
    ParentNotFound,
    Pause,
    Progress,
    Release,
    Settled,
    Snooze,
)
from ingot.jobs.lifecycle import JITTER, RETRY_AFTER_LOSS_SECONDS_MAX
from ingot.kernel.clock import MICROS, to_datetime_or_none
from tests.conformance.machines.batch_model import Batches
from tests.conformance.machines.job_model import Draft, Record, Run, Work

UNFINISHED = frozenset({JobStatus.BLOCKED, JobStatus.QUEUED, JobStatus.RUNNING})


class How(Enum):
    """How a job answers who asks for one."""

    MADE = "made"
    REPEATED = "its idempotency key made it before"
    REUSED = "it asks for the same"


@dataclass
class Model:
    """All jobs of all tenants, and the store's idea of time."""

    lease: int
    tenants: set[str] = field(default_factory=set)
    jobs: dict[str, Record] = field(default_factory=dict)
    keys: dict[tuple[str, str, str], tuple[str, object]] = field(default_factory=dict)
    works: dict[Work, str] = field(default_factory=dict)
    definitions: dict[tuple[str | None, str], Definition] = field(default_factory=dict)
    limits: dict[str, Limits] = field(default_factory=dict)
    pauses: dict[tuple[str, str], Pause] = field(default_factory=dict)
    asked: dict[tuple[str, str | None], int] = field(default_factory=dict)
    batches: Batches = field(default_factory=Batches)
    removed: list[Record] = field(default_factory=list)
    history: list[HistoryEntry] = field(default_factory=list)
    now: int = 0
    ahead: int = 0
    sweep_from: int = 0

    # -- time -----------------------------------------------------------------------------------------------

    def opened(self, clock: int) -> None:
        """The store came up: its time goes on from what it stored, sweeps nobody for one lease, and knows no worker."""
        self.asked.clear()
        self.ahead = max(0, self.now - clock)
        self.sweep_from = self.time(clock) + self.lease

    def time(self, clock: int) -> int:
        """What the store takes the time to be."""
        return clock + self.ahead

    def command(self, clock: int) -> None:
        """A command runs now, and stores the time."""
        self.now = self.time(clock)

    def promote(self) -> int:
        """Work that has become due joins the ready work."""
        due = [job for job in self.jobs.values() if job.apart and job.run_at <= self.now]
        for job in due:
            job.apart = False
        return len(due)

    def expired(self) -> list[Record]:
        """The jobs that a sweep takes now."""
        if self.now < self.sweep_from:
            return []
        return [job for job in self.jobs.values() if job.is_running and job.lease_expires_at <= self.now]

    def follow(self) -> None:
        """Jobs that waited for others that have ended go on, or are canceled, and so on; then batches are complete."""
        moved = True
        while moved:
            moved = False
            for job in self.jobs.values():
                ended = {parent for parent in job.open if self.jobs[parent].status not in UNFINISHED}
                bad = any(self.jobs[parent].status is not JobStatus.SUCCEEDED for parent in ended)
                job.open -= ended
                if job.status is JobStatus.BLOCKED and bad and job.on_dead is OnDead.CANCEL:
                    job.open, job.status, job.finished_at = set(), JobStatus.CANCELED, self.now
                    job.tell("job.canceled")
                    moved = True
                elif job.status is JobStatus.BLOCKED and not job.open:
                    job.status = JobStatus.QUEUED
                    job.wait(job.run_at, self.now)
                    job.tell("job.updated")
        self.batches.tell(self.ever())

    # -- what was there -------------------------------------------------------------------------------------

    def ever(self) -> list[Record]:
        """All jobs that were ever made."""
        return [*self.jobs.values(), *self.removed]

    def remove(self, job: Record) -> None:
        """A job is gone, with what it held; of some an entry stays."""
        del self.jobs[job.id]
        self.removed.append(job)
        self.keys = {key: made for key, made in self.keys.items() if made[0] != job.id}
        self.works = {work: made for work, made in self.works.items() if made != job.id}
        if self.definition(job.tenant, job.type).keep_history:
            self.history.append(job.entry())

    # -- asking for work ------------------------------------------------------------------------------------

    def enqueue(self, drafts: Sequence[Draft]) -> list[tuple[Record, How]]:
        """The jobs and how each answers; all or none."""
        before = self.jobs.copy(), self.keys.copy(), self.works.copy()
        try:
            answers = [self._enqueue_one(draft) for draft in drafts]
            for tenant in {job.tenant for job, how in answers if how is How.MADE}:
                self._check_cap(tenant, more=0)
            return answers
        except Exception:
            self.jobs, self.keys, self.works = before
            raise

    def _enqueue_one(self, draft: Draft) -> tuple[Record, How]:
        if draft.tenant not in self.tenants:
            raise TenantNotFound
        key = draft.tenant, draft.type, draft.idempotency_key or ""
        if key in self.keys:
            made, meaning = self.keys[key]
            if meaning != draft.meaning:
                raise IdempotencyMismatch
            return self.jobs[made], How.REPEATED
        definition = self.definition(draft.tenant, draft.type)
        work = draft.work(definition)
        if work is not None and not draft.force and (same := self._reusable(work)) is not None:
            return same, How.REUSED
        self._check_dedupe_key(draft.tenant, draft.dedupe_key)
        if not all(parent in self.jobs and self.jobs[parent].tenant == draft.tenant for parent in draft.after):
            raise ParentNotFound
        job = Record.of(draft, definition, self.now)
        self.jobs[job.id] = job
        if draft.idempotency_key is not None:
            self.keys[key] = job.id, draft.meaning
        if work is not None:
            self.works[work] = job.id
        job.tell("job.created")
        return job, How.MADE

    def _reusable(self, work: Work) -> Record | None:
        """The latest job that was made for this, unless it is dead or canceled."""
        job = self.jobs.get(self.works.get(work, ""))
        return None if job is None or job.status in (JobStatus.DEAD, JobStatus.CANCELED) else job

    def _check_cap(self, tenant: str, *, more: int) -> None:
        unfinished = sum(job.tenant == tenant and job.status in UNFINISHED for job in self.jobs.values())
        most = self.limits.get(tenant, Limits()).max_unfinished_jobs
        if most is not None and unfinished + more > most:
            raise JobLimitExceeded

    def _check_dedupe_key(self, tenant: str, key: str | None) -> None:
        for other in self.jobs.values():
            if key is not None and (other.tenant, other.dedupe_key) == (tenant, key) and other.status in UNFINISHED:
                raise DuplicateJob(holder_id=other.id)

    def definition(self, tenant: str, type: str) -> Definition:
        """The tenant's own, or the one for all, or the defaults."""
        found = self.definitions.get((tenant, type)) or self.definitions.get((None, type))
        return found or Definition(type=type)

    # -- doing work -----------------------------------------------------------------------------------------

    def ready(self, types: Iterable[str], tenant: str | None) -> list[Record]:
        """What a claim may take, in the order in which it starts: what is not paused and has room beside the rest."""
        wanted = [job for job in self.jobs.values() if job.type in types and tenant in (None, job.tenant)]
        waiting = sorted(
            (job for job in wanted if job.status is JobStatus.QUEUED and job.run_at <= self.now),
            key=lambda job: (job.priority, job.run_at, job.id),
        )
        running = self.running()
        ready = []
        for job in waiting:
            if (job.tenant, job.type) not in self.pauses and self._has_room(job, running):
                ready.append(job)
                running.update(bounds(job))
        return ready

    def running(self) -> Counter[tuple[str, ...]]:
        """How many jobs run: of each tenant, of it and each type, and of these and each key."""
        return Counter(bound for job in self.jobs.values() if job.is_running for bound in bounds(job))

    def _has_room(self, job: Record, running: Counter[tuple[str, ...]]) -> bool:
        return all(most is None or running[bound] < most for bound, most in self.most(job).items())

    def most(self, job: Record) -> dict[tuple[str, ...], int | None]:
        """How many jobs may run at once, as far as it concerns this one."""
        definition = self.definition(job.tenant, job.type)
        most = (
            self.limits.get(job.tenant, Limits()).max_running_jobs,
            definition.max_running,
            definition.max_running_per_key if job.limit_key else None,
        )
        return dict(zip(bounds(job), most, strict=True))

    def start(self, job: Record, *, fence: int, worker: str) -> None:
        """A claim hands the job out."""
        assert fence > max(job.runs, default=0), f"fence {fence} is not above {list(job.runs)}"
        assert fence < 2**53
        assert not job.open, f"{job.id} waits for {job.open}"
        job.runs[fence] = Run(fence=fence, number=len(job.runs) + 1, worker_id=worker, started_at=self.now)
        job.status, job.fence, job.worker_id, job.started_at = JobStatus.RUNNING, fence, worker, self.now
        job.lease_expires_at, job.progress = self.now + self.lease, None
        job.tell("job.started")

    def held(self, job_id: str, fence: int, tenant: str | None) -> Record:
        """The job, when this fence is the current one of a running job."""
        job = self.found(job_id, tenant)
        if not job.is_running or job.fence != fence:
            raise LeaseLost
        return job

    def found(self, job_id: str, tenant: str | None) -> Record:
        """The job, when it is in the tenant."""
        job = self.jobs.get(job_id)
        if job is None or tenant not in (None, job.tenant):
            raise JobNotFound
        return job

    def renew(self, job_id: str, fence: int, progress: Progress | None, tenant: str | None) -> Record:
        """The worker lives."""
        job = self.held(job_id, fence, tenant)
        job.lease_expires_at = self.now + self.lease
        if progress is not None:
            job.progress = progress
            if self.now - job.told_at >= MICROS:
                job.told_at = self.now
                job.tell("job.updated")
        return job

    def settle(self, job_id: str, fence: int, outcome: Outcome, tenant: str | None, seen: int | None) -> Settled:
        """How an attempt ended; `seen` is when the store says that the job runs again."""
        try:
            job = self.held(job_id, fence, tenant)
        except LeaseLost:
            run = self.jobs[job_id].runs.get(fence)
            if run is None or run.said != outcome or run.answer is None:
                raise
            return run.answer
        match outcome:
            case Done():
                self._end(job, AttemptOutcome.SUCCEEDED, JobStatus.SUCCEEDED, seen)
                job.result = outcome.result or b"null"
            case Failed():
                failures = job.failures + 1
                spent = failures >= job.max_attempts or not outcome.retry
                pause = self._backoff(job, failures)
                latest = self.now + pause
                earliest = self.now + int(pause * (1 - JITTER))
                job.runs[fence].error, job.runs[fence].exit_code = outcome.error, outcome.exit_code
                ended = AttemptOutcome.TIMED_OUT if outcome.timed_out else AttemptOutcome.FAILED
                self._end_badly(job, ended, spent=spent, seen=seen, between=(earliest, latest))
            case Snooze():
                when = self.now + outcome.delay
                self._end_mildly(job, AttemptOutcome.SNOOZED, seen=seen, when=when)
            case Release():
                ended = AttemptOutcome.CANCELED if job.cancel_requested else AttemptOutcome.RELEASED
                self._end_mildly(job, ended, seen=seen, when=self.now)
        run = job.runs[fence]
        run.said = outcome
        again = job.status is JobStatus.QUEUED
        run.answer = Settled(
            job_id=job_id,
            tenant=job.tenant,
            status=job.status,
            attempts=len(job.runs),
            will_retry=again,
            run_at=to_datetime_or_none(job.run_at if again else None),
        )
        return run.answer

    def forgot(self, job_id: str, fence: int, outcome: Outcome) -> bool:
        """A snooze that a cancel overtook keeps no delay, so a store may take another snooze for the same again."""
        job = self.jobs.get(job_id)
        run = None if job is None else job.runs.get(fence)
        overtaken = run is not None and isinstance(run.said, Snooze) and run.status_after is JobStatus.CANCELED
        return overtaken and isinstance(outcome, Snooze)

    def lose(self, job: Record, seen: int) -> None:
        """The lease ran out and was swept."""
        cap = self.definition(job.tenant, job.type).crash_cap
        crashes = job.crashes + 1
        job.runs[job.fence].error = f"the lease expired without a heartbeat from the worker (crash {crashes} of {cap})"
        latest = self.now + int(RETRY_AFTER_LOSS_SECONDS_MAX * MICROS)
        self._end_badly(job, AttemptOutcome.LOST, spent=crashes >= cap, seen=seen, between=(self.now, latest))

    def _backoff(self, job: Record, failures: int) -> int:
        backoff = self.definition(job.tenant, job.type).backoff
        return int(min(backoff.first_seconds * backoff.factor ** (failures - 1), backoff.max_seconds) * MICROS)

    def _end_badly(
        self, job: Record, outcome: AttemptOutcome, *, spent: bool, seen: int | None, between: tuple[int, int]
    ) -> None:
        status = JobStatus.DEAD if spent else JobStatus.QUEUED
        if job.cancel_requested:
            status = JobStatus.CANCELED
        elif outcome is AttemptOutcome.LOST:
            job.crashes += 1
        else:
            job.failures += 1
        if status is JobStatus.QUEUED:
            earliest, latest = between
            assert seen is not None
            assert earliest <= seen <= latest, f"{seen} is not between {earliest} and {latest}"
        self._end(job, outcome, status, seen)
        job.tell("job.failed")
        if status is not JobStatus.QUEUED:
            job.tell(f"job.{status}")

    def _end_mildly(self, job: Record, outcome: AttemptOutcome, *, seen: int | None, when: int) -> None:
        status = JobStatus.CANCELED if job.cancel_requested else JobStatus.QUEUED
        if status is JobStatus.QUEUED:
            assert seen == when
        self._end(job, outcome, status, seen)
        job.tell("job.canceled" if status is JobStatus.CANCELED else "job.updated")

    def _end(self, job: Record, outcome: AttemptOutcome, status: JobStatus, seen: int | None) -> None:
        run = job.runs[job.fence]
        run.outcome, run.status_after, run.finished_at, run.progress = outcome, status, self.now, job.progress
        job.status, job.worker_id, job.lease_expires_at, job.progress = status, None, 0, None
        if status is JobStatus.QUEUED:
            assert seen is not None
            job.wait(seen, self.now)
        else:
            job.finished_at = self.now
        if status is JobStatus.SUCCEEDED:
            job.tell("job.completed")

    # -- steering work --------------------------------------------------------------------------------------

    def cancel(self, tenant: str, job_id: str) -> Record:
        """Somebody wants it to stop."""
        job = self.found(job_id, tenant)
        if job.status in (JobStatus.SUCCEEDED, JobStatus.DEAD):
            raise JobFinished
        if job.is_running and not job.cancel_requested:
            job.cancel_requested = True
            job.tell("job.updated")
        elif job.status in (JobStatus.QUEUED, JobStatus.BLOCKED):
            job.status, job.finished_at, job.apart, job.open = JobStatus.CANCELED, self.now, False, set()
            job.tell("job.canceled")
        return job

    def retry(
        self, tenant: str, job_id: str, *, reset: bool, priority: int | None, attempts: int | None, run_at: int | None
    ) -> Record:
        """A finished job runs again."""
        job = self.found(job_id, tenant)
        if job.status in UNFINISHED:
            raise JobNotFinished
        self._check_dedupe_key(tenant, job.dedupe_key)
        self._check_cap(tenant, more=1)
        job.status, job.finished_at, job.cancel_requested, job.result = JobStatus.QUEUED, None, False, b"null"
        job.ended_before = True
        if reset:
            job.failures = job.crashes = 0
        job.priority, job.max_attempts = priority or job.priority, attempts or job.max_attempts
        job.wait(max(self.now, run_at or 0), self.now)
        job.tell("job.retried")
        return job

    def change(
        self,
        tenant: str,
        job_id: str,
        *,
        priority: int | None,
        attempts: int | None,
        run_at: int | None,
        tags: Sequence[str] | None,
    ) -> Record:
        """A waiting job is changed, or the tags of any."""
        job = self.found(job_id, tenant)
        moving = not (priority is None and attempts is None and run_at is None)
        if moving and job.status not in (JobStatus.QUEUED, JobStatus.BLOCKED):
            raise JobNotQueued
        if moving:
            job.priority, job.max_attempts = priority or job.priority, attempts or job.max_attempts
            job.wait(job.run_at if run_at is None else max(self.now, run_at), self.now)
        if tags is not None:
            job.tags = tuple(sorted(tags))
        if moving or tags is not None:
            job.tell("job.updated")
        return job


def bounds(job: Record) -> list[tuple[str, ...]]:
    """What its tenant, its type and its key are counted under."""
    return [(job.tenant,), (job.tenant, job.type), (job.tenant, job.type, job.limit_key)]
