"""What the model knows of one job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from ingot.jobs import (
    Attempt,
    AttemptOutcome,
    Definition,
    HistoryEntry,
    Job,
    JobStatus,
    OnDead,
    Outcome,
    Progress,
    Settled,
    Source,
)
from ingot.kernel.clock import to_datetime, to_datetime_or_none


class Work(NamedTuple):
    """What a job asks for."""

    tenant: str
    type: str
    version: int
    payload: bytes
    inputs: Inputs


Inputs = tuple[tuple[str, str], ...]  # Names and blobs, in the order of the names.


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A job to be asked for. `payload` is JSON text; `id` is known once it was made."""

    tenant: str
    type: str
    id: str = "not made"
    payload: bytes = b"null"
    priority: int | None = None
    run_at: int | None = None
    max_attempts: int | None = None
    idempotency_key: str | None = None
    dedupe_key: str | None = None
    tags: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    on_dead: OnDead = OnDead.CANCEL
    batch: str | None = None
    inputs: Inputs = ()
    force: bool = False
    source: Source = Source.MANUAL

    @property
    def meaning(self) -> object:
        """The payload's value: texts that mean the same are the same to an idempotency key."""
        return msgspec.json.decode(self.payload)

    def work(self, definition: Definition) -> Work | None:
        """What jobs that ask for the same have in common; `None` when the definition knows no reuse."""
        if not definition.reuse:
            return None
        payload = msgspec.json.encode(self.meaning, order="sorted")
        return Work(self.tenant, self.type, definition.version, payload, self.inputs)


@dataclass(kw_only=True)
class Run:
    """An attempt: who ran it, what the worker said of it, and what it was answered."""

    fence: int
    number: int
    worker_id: str
    started_at: int
    outcome: AttemptOutcome | None = None
    status_after: JobStatus | None = None
    finished_at: int | None = None
    exit_code: int | None = None
    error: str | None = None
    progress: Progress | None = None
    said: Outcome | None = None
    answer: Settled | None = None

    def attempt(self, job_id: str) -> Attempt:
        """What the store must show of it."""
        return Attempt(
            job_id=job_id,
            number=self.number,
            fence=self.fence,
            worker_id=self.worker_id,
            started_at=to_datetime(self.started_at),
            finished_at=to_datetime_or_none(self.finished_at),
            outcome=self.outcome,
            status_after=self.status_after,
            exit_code=self.exit_code,
            error=self.error,
            progress=self.progress,
        )


class News(NamedTuple):
    """What an event must say of a job."""

    name: str
    status: JobStatus
    attempts: int
    failures: int
    crashes: int
    fence: int
    cancel_requested: bool


@dataclass(kw_only=True)
class Record:
    """One job of the model. `apart` is set while it waits for its time; `open` are those it waits for."""

    id: str
    tenant: str
    type: str
    payload: bytes
    priority: int
    run_at: int
    max_attempts: int
    created_at: int
    idempotency_key: str | None
    dedupe_key: str | None
    tags: tuple[str, ...]
    after: tuple[str, ...]
    on_dead: OnDead
    open: set[str]
    batch: str | None = None
    inputs: Inputs = ()
    source: Source = Source.MANUAL
    limit_key: str = ""
    apart: bool = False
    status: JobStatus = JobStatus.QUEUED
    failures: int = 0
    crashes: int = 0
    fence: int = 0
    worker_id: str | None = None
    started_at: int | None = None
    lease_expires_at: int = 0
    cancel_requested: bool = False
    progress: Progress | None = None
    told_at: int = 0
    result: bytes = b"null"
    finished_at: int | None = None
    ended_before: bool = False
    runs: dict[int, Run] = field(default_factory=dict)
    news: list[News] = field(default_factory=list)

    @classmethod
    def of(cls, draft: Draft, definition: Definition, now: int) -> Record:
        """A job that is just being made."""
        job = cls(
            id=draft.id,
            tenant=draft.tenant,
            type=draft.type,
            payload=draft.payload,
            priority=draft.priority or definition.priority,
            run_at=0,
            max_attempts=draft.max_attempts or definition.max_attempts,
            created_at=now,
            idempotency_key=draft.idempotency_key,
            dedupe_key=draft.dedupe_key,
            tags=tuple(sorted(draft.tags)),
            after=tuple(sorted(set(draft.after))),
            on_dead=draft.on_dead if draft.after else OnDead.CANCEL,
            open=set(draft.after),
            batch=draft.batch,
            inputs=draft.inputs,
            source=draft.source,
            limit_key=_key_of(draft.meaning, definition.limit_key),
        )
        if draft.after:
            job.status = JobStatus.BLOCKED
        job.wait(max(now, draft.run_at or 0), now)
        return job

    @property
    def is_running(self) -> bool:
        """Whether a worker holds it."""
        return self.status is JobStatus.RUNNING

    def wait(self, run_at: int, now: int) -> None:
        """Wait in the queue until then, or for others and until then."""
        self.run_at, self.apart = run_at, run_at > now and self.status is not JobStatus.BLOCKED

    def tell(self, name: str) -> None:
        """The store must tell this now."""
        standing = (self.status, len(self.runs), self.failures, self.crashes, self.fence, self.cancel_requested)
        self.news.append(News(name, *standing))

    def last_error(self) -> str | None:
        """The newest error, as long as some failure or crash counts."""
        if self.failures + self.crashes == 0:
            return None
        return next((run.error for run in reversed(self.runs.values()) if run.error is not None), None)

    def entry(self) -> HistoryEntry:
        """What the store must keep of it in the history."""
        error = self.last_error()
        assert self.finished_at is not None
        return HistoryEntry(
            id=self.id,
            tenant=self.tenant,
            type=self.type,
            status=self.status,
            attempts=len(self.runs),
            created_at=to_datetime(self.created_at),
            finished_at=to_datetime(self.finished_at),
            last_error=None if error is None else error[:200],
        )

    def job(self) -> Job:
        """What the store must show of it."""
        return Job(
            id=self.id,
            tenant=self.tenant,
            type=self.type,
            status=self.status,
            priority=self.priority,
            payload=msgspec.Raw(self.payload.strip()),
            run_at=to_datetime(self.run_at),
            attempts=len(self.runs),
            failures=self.failures,
            crashes=self.crashes,
            max_attempts=self.max_attempts,
            fence=self.fence,
            source=self.source,
            depth=0,
            created_at=to_datetime(self.created_at),
            idempotency_key=self.idempotency_key,
            dedupe_key=self.dedupe_key,
            tags=self.tags,
            after=self.after,
            on_dead=self.on_dead,
            batch=self.batch,
            inputs=dict(self.inputs),
            worker_id=self.worker_id,
            started_at=to_datetime_or_none(self.started_at),
            lease_expires_at=to_datetime_or_none(self.lease_expires_at or None),
            cancel_requested=self.cancel_requested,
            progress=self.progress,
            result=msgspec.Raw(self.result.strip()),
            last_error=self.last_error(),
            finished_at=to_datetime_or_none(self.finished_at),
        )


def _key_of(payload: object, template: str | None) -> str:
    """The limit key, for templates of one name."""
    if template is None or not isinstance(payload, dict):
        return ""
    value = payload.get(template.strip("{}"))
    return "" if value is None else msgspec.json.encode(value).decode()
