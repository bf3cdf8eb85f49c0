"""One write transaction: what handlers use to read and write, and what is written once at its end."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

import apsw
import msgspec

from ingot.blobs.model import BlobEventData, QuotaEventData
from ingot.engines.jobs import progress_of
from ingot.engines.sqlite.blob_rows import StorageUsage
from ingot.engines.sqlite.job_rows import JobRow, JobState, ReadyPosition, job_of
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.writer_state import LANE_START, WriterState
from ingot.engines.statements import chunk_sizes, repeat_row
from ingot.events.audit import Act
from ingot.jobs.errors import JobNotFound
from ingot.jobs.lanes import Lane
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import AttemptOutcome, Batch, Job, JobEventData, JobStatus
from ingot.jobs.worker_model import WorkerEventData
from ingot.kernel.clock import to_datetime

EVENTS_PER_ROW_MAX = 512
BATCH_ENDS = (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED)

T = TypeVar("T")
BatchKey = tuple[str, str]  # Its tenant and its name.
EventData = JobEventData | Batch | WorkerEventData | BlobEventData | QuotaEventData
AttemptEnd = tuple[
    str, AttemptOutcome, JobStatus, int
]  # The type, how an attempt ended, where the job stands, how long it ran.
_encode = msgspec.json.Encoder().encode


class DeferredAnswer(msgspec.Struct):
    """An answer that the event loop finishes, while the writer goes on with the next batch."""

    build: Callable[[], Any]


class PendingEffects:
    """What a group of commands wants written or told at the end: its events, counts and hints."""

    def __init__(self) -> None:
        self.events: defaultdict[str, list[tuple[str, EventData]]] = defaultdict(list)
        self.counts: Counter[tuple[str, str, JobStatus]] = Counter()
        self.ready: Counter[tuple[str, str]] = Counter()
        self.enqueued: Counter[str] = Counter()  # Jobs that count against the rate of their tenant.
        self.endings: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self.attempt_ends: list[AttemptEnd] = []
        self.canceled: Counter[str] = Counter()  # While they waited, by type.
        self.removed_tenants: list[str] = []  # Tenants.
        self.records_changed = False  # Whether some changed.
        self.batches: defaultdict[BatchKey, Counter[JobStatus | None]] = defaultdict(Counter)  # New jobs are `None`.
        self.usage: defaultdict[tuple[str, str], StorageUsage] = defaultdict(
            StorageUsage
        )  # By tenant and owner: more, or less.
        self.blob_totals: Counter[str] = Counter()  # More blobs, and their bytes.

    def merge(self, other: PendingEffects) -> None:
        """Take over what another group wants."""
        for tenant, entries in other.events.items():
            self.events[tenant] += entries
        for key, jobs in other.counts.items():
            self.counts[key] += jobs
        self.ready += other.ready
        self.enqueued += other.enqueued
        for kind, numbers in other.endings.items():
            self.endings[kind] += numbers
        self.attempt_ends += other.attempt_ends
        self.canceled += other.canceled
        self.removed_tenants += other.removed_tenants
        self.records_changed = self.records_changed or other.records_changed
        for batch, ends in other.batches.items():
            self.batches[batch].update(ends)
        for owner, kept in other.usage.items():
            self.usage[owner] += kept
        self.blob_totals.update(other.blob_totals)


class Transaction:
    """Used on the writer thread only, between BEGIN and COMMIT. `now` is the store's time for all of it."""

    def __init__(self, connection: apsw.Connection, memory: WriterState, now: int, *, retrying: bool = False) -> None:
        self._connection = connection
        self.writer_state = memory
        self.now = now
        self.retrying = retrying  # The batch failed once: handlers look before they write what they usually just write.
        self.effects = PendingEffects()
        self._outer_effects: list[PendingEffects] = []  # What was staged before the attempts that are under way.
        self._stored_usage: dict[
            tuple[str, str], StorageUsage
        ] = {}  # As it is in the file, which is written at the end.
        self._changes_before = connection.total_changes()

    def run_in_savepoint(self, work: Callable[[], T]) -> T:
        """Do some work whole: when it raises, all it wrote and staged is undone."""
        self._connection.execute("SAVEPOINT attempt")
        before, self.effects = self.effects, PendingEffects()
        self._outer_effects.append(before)
        try:
            result = work()
        except BaseException:
            self.effects = self._outer_effects.pop()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO attempt")
                self._connection.execute("RELEASE attempt")
                self.writer_state.reload()
            raise
        self._connection.execute("RELEASE attempt")
        self._outer_effects.pop()
        before.merge(self.effects)
        self.effects = before
        return result

    # -- reading and writing --------------------------------------------------------------------------------

    def execute(self, statement: str, *values: Any) -> apsw.Cursor:
        """Run one statement."""
        return self._connection.execute(statement, values)

    def read(self, type: type[T], statement: str, *values: Any) -> T:
        """Run a statement that answers one JSON text, and decode it."""
        return msgspec.json.decode(self._connection.execute(statement, values).get, type=type)

    def audit(
        self, act: Act, action: str, target: str, *, tenant: str | None, before: object = None, after: object = None
    ) -> None:
        """Put an act on record, as part of what it does. `before` and `after` are the thing, with nothing secret."""
        row = (act.id, tenant, self.now, act.who, act.name, action, target, act.address, act.request_id)
        self.execute(SQL.insert_audit_entry, *row, as_json(before), as_json(after))

    def write_rows(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write many rows with few statements."""
        start = 0
        for size in chunk_sizes(len(rows)):
            values = list(chain.from_iterable(rows[start : start + size]))
            self._connection.execute(repeat_row(statement, size), values)
            start += size

    # -- jobs -----------------------------------------------------------------------------------------------

    def job_states(self, ids: Sequence[str]) -> dict[str, JobState]:
        """The moving rows of these jobs, by id."""
        return {state.id: state for state in self.read(list[JobState], SQL.states_by_id, as_json(ids))}

    def job_state(self, tenant: str, job_id: str) -> JobState:
        """The moving row of one job. Raises `JobNotFound` when it is not there or not in the tenant."""
        state = self.job_states([job_id]).get(job_id)
        if state is None or state.tenant != tenant:
            raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
        return state

    def insert_states(self, states: Sequence[JobState]) -> None:
        """Write the rows of new jobs."""
        tenants = self.writer_state.tenants
        rows = [
            (
                s.number,
                s.id,
                tenants[s.tenant],
                s.type,
                s.limit_key,
                s.dedupe_key,
                s.status,
                s.due,
                s.priority,
                s.run_at,
                s.max_attempts,
                s.batch,
            )
            for s in states
        ]
        self.write_rows(SQL.insert_states, rows)

    def save_states(self, states: Sequence[JobState]) -> None:
        """Write moved rows back."""
        self.write_rows(SQL.save_states, [(s.number, *_moving_columns(s)) for s in states])

    def whole_jobs(self, numbers: Sequence[int]) -> dict[int, JobRow]:
        """Whole jobs, by number."""
        return {row.state.number: row for row in self.read(list[JobRow], SQL.whole_jobs, as_json(numbers))}

    def get_job(self, number: int) -> Job:
        """One job that is known to be there."""
        row = self.whole_jobs([number])[number]
        return job_of(row.state, row.body)

    def queue_job(self, state: JobState, run_at: int) -> None:
        """Make a job wait: with the ready work of its lane when it is due, apart until then otherwise."""
        state.run_at = run_at
        state.due = run_at <= self.now
        if state.due:
            self.announce_ready(Lane(state.type, state.tenant, state.limit_key), first=state.position)
        else:
            self.writer_state.record_due_time(run_at)

    # -- limits ---------------------------------------------------------------------------------------------

    def unfinished_jobs(self, tenants: Iterable[str]) -> Counter[tuple[str, str, JobStatus]]:
        """How many unfinished jobs these tenants have now, by tenant, type and status."""
        asked = {tenant: self.writer_state.tenant_numbers[tenant] for tenant in tenants}
        rows = self.read(list[tuple[str, str, JobStatus, int]], SQL.unfinished_counts, as_json([*asked.values()]))
        jobs = Counter({(tenant, type, status): number for tenant, type, status, number in rows})
        for staged in self._layers():
            for key, number in staged.counts.items():
                if key[0] in asked and key[2] not in FINISHED:
                    jobs[key] += number
        return jobs

    def enqueued_jobs(self, tenant: str) -> int:
        """How many jobs this transaction has counted against the rate of the tenant."""
        return sum(staged.enqueued[tenant] for staged in self._layers())

    def usage(self, tenant: str, owner: str) -> StorageUsage:
        """What an owner keeps now, or the tenant as a whole."""
        staged = (layer.usage.get((tenant, owner), StorageUsage()) for layer in self._layers())
        return sum(staged, start=self._read_stored_usage(tenant, owner))

    def _read_stored_usage(self, tenant: str, owner: str) -> StorageUsage:
        key = tenant, owner
        if key not in self._stored_usage:
            row = self.execute(SQL.usage_of_owner, self.writer_state.tenant_numbers[tenant], owner).fetchone()
            self._stored_usage[key] = StorageUsage() if row is None else StorageUsage(*row)
        return self._stored_usage[key]

    def _layers(self) -> tuple[PendingEffects, ...]:
        return (*self._outer_effects, self.effects)

    # -- at the end -----------------------------------------------------------------------------------------

    def announce_ready(self, lane: Lane, jobs: int = 1, *, first: ReadyPosition = LANE_START) -> None:
        """More jobs of this lane are ready, from this place on."""
        self.writer_state.add_lane(lane, first)
        self.effects.ready[lane.tenant, lane.type] += jobs

    def announce_capacity(self, tenant: str, type: str) -> None:
        """All ready jobs of this type may be handed out now, as far as anybody knows."""
        if tenant in self.writer_state.lanes.get(type, {}):
            jobs = self.unfinished_jobs([tenant])[tenant, type, JobStatus.QUEUED]
            self.effects.ready[tenant, type] += max(1, jobs)

    def record_transition(self, state: JobState, before: JobStatus | None, after: JobStatus | None) -> None:
        """Count a job that moved, and note one that finished; `None` is outside. When it no longer runs, others may."""
        if before is not None:
            self.effects.counts[state.tenant, state.type, before] -= 1
        if before is JobStatus.RUNNING:
            for type in self.writer_state.types_waiting_on(state.tenant, state.type):
                self.effects.ready[state.tenant, type] += 1
        if after is not None:
            self.effects.counts[state.tenant, state.type, after] += 1
            if after in FINISHED:
                self.effects.endings[state.tenant, state.type].append(state.number)
                if after is JobStatus.CANCELED and before is not JobStatus.RUNNING:
                    self.effects.canceled[state.type] += 1
        if state.number in self.writer_state.parents:
            if after in FINISHED:
                self.writer_state.ended_parents.add(state.number)
            else:
                self.writer_state.ended_parents.discard(state.number)
        if state.batch is not None:
            self._count_in_batch((state.tenant, state.batch), before, after)

    def _count_in_batch(self, batch: BatchKey, before: JobStatus | None, after: JobStatus | None) -> None:
        if before is None:
            self.effects.batches[batch][None] += 1
        elif before in FINISHED:
            self.effects.batches[batch][before] -= 1
        if after in FINISHED:
            self.effects.batches[batch][after] += 1

    def emit(self, name: str, state: JobState, *, will_retry: bool | None = None, error: str | None = None) -> None:
        """Append an event about a job, as it stands in `state`."""
        news = JobEventData(
            state.id,
            state.type,
            state.status,
            state.attempts,
            state.failures,
            state.crashes,
            state.fence,
            state.worker_id if state.status is JobStatus.RUNNING else None,
            to_datetime(state.run_at) if state.status in (JobStatus.QUEUED, JobStatus.BLOCKED) else None,
            will_retry,
            error,
            state.cancel_requested,
            progress_of(state.percent, state.stage),
        )
        self.effects.events[state.tenant].append((name, news))

    def announce_events(self, tenant: str) -> None:
        """Events of this tenant were written already."""
        self.effects.events.setdefault(tenant, [])

    def has_effects_for(self, tenant: str) -> bool:
        """Whether something of this tenant is to be written at the end."""
        return any(
            tenant in staged.events
            or any(tenant == key[0] for key in (*staged.counts, *staged.endings, *staged.batches, *staged.usage))
            for staged in self._layers()
        )

    def flush(self) -> None:
        """Write the events, the counts, what finished and the clock of the whole transaction."""
        if self.effects.batches:
            self._count_batches()
        rows = []
        for tenant, entries in self.effects.events.items():
            for start in range(0, len(entries), EVENTS_PER_ROW_MAX):
                self.writer_state.last_batch += 1
                part = entries[start : start + EVENTS_PER_ROW_MAX]
                rows.append(
                    (self.writer_state.tenant_numbers[tenant], self.writer_state.last_batch, self.now, _encode(part))
                )
        if rows:
            self.write_rows(SQL.insert_events, rows)
        counts = [
            (self.writer_state.tenant_numbers[tenant], type, status, jobs)
            for (tenant, type, status), jobs in self.effects.counts.items()
            if jobs
        ]
        if counts:
            self.write_rows(SQL.add_counts, counts)
        if self.effects.endings:
            endings = [
                (self.writer_state.tenant_numbers[tenant], type, self.now, len(numbers), as_json(numbers))
                for (tenant, type), numbers in self.effects.endings.items()
            ]
            self.write_rows(SQL.insert_endings, endings)
        if self.effects.usage or self.effects.blob_totals:
            self._write_usage()
        if self._connection.total_changes() > self._changes_before:  # A claim that found nothing has nothing to sync.
            self.execute(SQL.save_clock, self.now, self.writer_state.last_job_number)

    def _write_usage(self) -> None:
        numbers = self.writer_state.tenant_numbers
        rows = []
        for (tenant, owner), change in self.effects.usage.items():
            if change != StorageUsage():
                kept = self._read_stored_usage(tenant, owner) + change
                rows.append((numbers[tenant], owner, *msgspec.structs.astuple(kept)))
        self.write_rows(SQL.put_usage, rows)
        if empty := [row[:2] for row in rows if not any(row[2:])]:
            self.execute(SQL.remove_usage, as_json(empty))
        if any(self.effects.blob_totals.values()):
            self.execute(SQL.add_blob_totals, self.effects.blob_totals["blobs"], self.effects.blob_totals["bytes"])

    def _count_batches(self) -> None:
        """Write the numbers of batches, and tell of those in which nothing is left unfinished now."""
        tenants = self.writer_state.tenant_numbers
        rows = [
            (tenants[tenant], batch, ends[None], *(ends[status] for status in BATCH_ENDS))
            for (tenant, batch), ends in self.effects.batches.items()
        ]
        self.write_rows(SQL.add_batches, rows)
        touched = as_json([row[:2] for row in rows])
        for tenant, batch in self.read(list[tuple[str, Batch]], SQL.completed_batches, touched):
            self.effects.events[tenant].append(("batch.completed", batch))


def _moving_columns(state: JobState) -> tuple[object, ...]:
    """The columns that change as a job moves, in the order of `save_states`."""
    return (
        state.status,
        state.due,
        state.priority,
        state.run_at,
        state.attempts,
        state.failures,
        state.crashes,
        state.max_attempts,
        state.fence,
        state.worker_id,
        state.started_at,
        state.lease_expires_at,
        state.cancel_requested,
        state.percent,
        state.stage,
        state.progress_reported_at,
        state.finished_at,
    )


def as_json(value: object) -> str:
    """A value bound to a statement as JSON text."""
    return _encode(value).decode()


def spread() -> float:
    """The chance that jitter uses."""
    return random.random()
