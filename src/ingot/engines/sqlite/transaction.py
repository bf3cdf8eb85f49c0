"""A write transaction: reads and writes of handlers, and effects that are written once at its end."""

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
from ingot.engines.sqlite.writer_state import ALL_TYPES, LANE_START, WriterState
from ingot.engines.statements import chunk_sizes, repeat_row
from ingot.events.audit import Act
from ingot.jobs.errors import JobNotFound
from ingot.jobs.lanes import Lane
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import AttemptOutcome, Batch, Job, JobEventData, JobStatus, LostLease
from ingot.jobs.worker_model import WorkerEventData
from ingot.kernel.clock import to_datetime

EVENTS_PER_ROW_MAX = 512
BATCH_ENDS = (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED)

UNFINISHED = (JobStatus.BLOCKED, JobStatus.QUEUED, JobStatus.RUNNING)

T = TypeVar("T")
BatchKey = tuple[str, str]  # Tenant and name.
EventData = JobEventData | Batch | WorkerEventData | BlobEventData | QuotaEventData
# The type of the job, the outcome of the attempt, the status of the job, and the duration in microseconds.
AttemptEnd = tuple[str, AttemptOutcome, JobStatus, int]
_encode = msgspec.json.Encoder().encode


class DeferredAnswer(msgspec.Struct):
    """An answer that the event loop builds of several items, while the writer runs the next batch."""

    build_item: Callable[[Any], Any]
    items: Sequence[Any] = ()


class PendingEffects:
    """Events, counters and notifications of a group of commands, written or sent at the end of the transaction."""

    def __init__(self) -> None:
        self.events: defaultdict[str, list[tuple[str, EventData]]] = defaultdict(list)
        self.counts: Counter[tuple[str, str, JobStatus]] = Counter()  # With sums under `ALL_TYPES`.
        self.emptied_types: set[tuple[str, str]] = set()  # Tenants and types that may have no more jobs.
        self.ready: Counter[tuple[str, str]] = Counter()
        self.capacity: Counter[str] = Counter()  # Jobs of any type that may start, by tenant.
        self.enqueued: Counter[str] = Counter()  # Jobs that count against the enqueue rate, by tenant.
        self.endings: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self.attempt_ends: list[AttemptEnd] = []
        self.lost_leases: list[LostLease] = []
        self.canceled: Counter[str] = Counter()  # Jobs that were canceled while they waited, by type.
        self.removed_tenants: list[str] = []
        self.records_changed = False
        # Changes of the counters of batches. New jobs are counted under `None`.
        self.batches: defaultdict[BatchKey, Counter[JobStatus | None]] = defaultdict(Counter)
        # Changes of usage, by tenant and owner.
        self.usage: defaultdict[tuple[str, str], StorageUsage] = defaultdict(StorageUsage)
        # Changes of the number of blobs, of their total size, and of the deleted bytes of all tenants.
        self.blob_totals: Counter[str] = Counter()

    def merge(self, other: PendingEffects) -> None:
        """Add the effects of another group."""
        for tenant, entries in other.events.items():
            self.events[tenant] += entries
        for key, jobs in other.counts.items():
            self.counts[key] += jobs
        self.emptied_types |= other.emptied_types
        self.ready += other.ready
        self.capacity += other.capacity
        self.enqueued += other.enqueued
        for kind, numbers in other.endings.items():
            self.endings[kind] += numbers
        self.attempt_ends += other.attempt_ends
        self.lost_leases += other.lost_leases
        self.canceled += other.canceled
        self.removed_tenants += other.removed_tenants
        self.records_changed = self.records_changed or other.records_changed
        for batch, ends in other.batches.items():
            self.batches[batch].update(ends)
        for owner, change in other.usage.items():
            self.usage[owner] += change
        self.blob_totals.update(other.blob_totals)


class Transaction:
    """Used on the writer thread only, between BEGIN and COMMIT. `now` is the time for all commands in it."""

    def __init__(
        self, connection: apsw.Connection, writer_state: WriterState, now: int, *, retrying: bool = False
    ) -> None:
        self._connection = connection
        self.writer_state = writer_state
        self.now = now
        # The batch failed once, so handlers check for existing rows before they insert.
        self.retrying = retrying
        self.effects = PendingEffects()
        self._outer_effects: list[PendingEffects] = []  # Effects from before the open savepoints.
        # Usage as it is in the file, which is updated at the end.
        self._stored_usage: dict[tuple[str, str], StorageUsage] = {}
        self._changes_before = connection.total_changes()

    def run_in_savepoint(self, work: Callable[[], T]) -> T:
        """Run some work under a savepoint: if it raises, its writes and effects are undone."""
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
                for effects in self._effect_layers():  # Their counters are not in the file yet.
                    for tenant, type, _ in effects.counts:
                        if type != ALL_TYPES and tenant in self.writer_state.tenants:
                            self.writer_state.types[tenant].add(type)
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
        """Run a statement that returns one JSON text, and decode it."""
        return msgspec.json.decode(self._connection.execute(statement, values).get, type=type)

    def audit(
        self, act: Act, action: str, target: str, *, tenant: str | None, before: object = None, after: object = None
    ) -> None:
        """Write an audit entry in the transaction of the change. `before` and `after` contain no secrets."""
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
        """Return the states of these jobs, by ID."""
        return {state.id: state for state in self.read(list[JobState], SQL.states_by_id, as_json(ids))}

    def job_state(self, tenant: str, job_id: str) -> JobState:
        """Return the state of a job. Raises `JobNotFound` if it does not exist in the tenant."""
        state = self.job_states([job_id]).get(job_id)
        if state is None or state.tenant != tenant:
            raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
        return state

    def insert_states(self, states: Sequence[JobState]) -> None:
        """Insert the states of new jobs."""
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
        """Write changed states back."""
        self.write_rows(SQL.save_states, [(s.number, *_changing_columns(s)) for s in states])

    def whole_jobs(self, numbers: Sequence[int]) -> dict[int, JobRow]:
        """Return complete jobs, by number."""
        return {row.state.number: row for row in self.read(list[JobRow], SQL.whole_jobs, as_json(numbers))}

    def get_job(self, number: int) -> Job:
        """Return a job that exists."""
        row = self.whole_jobs([number])[number]
        return job_of(row.state, row.body)

    def queue_job(self, state: JobState, run_at: int) -> None:
        """Set the time from which a queued job can start. It becomes ready now, or later when it is due."""
        state.run_at = run_at
        state.due = run_at <= self.now
        if state.due:
            self.announce_ready(Lane(state.type, state.tenant, state.limit_key), first=state.position)
        else:
            self.writer_state.record_due_time(run_at)

    # -- limits ---------------------------------------------------------------------------------------------

    def unfinished_jobs(self, types: Iterable[tuple[str, str]]) -> Counter[tuple[str, str, JobStatus]]:
        """Count the unfinished jobs of these tenants and types, with the changes of this transaction."""
        kinds = list(types)
        numbers = self.writer_state.tenant_numbers
        pairs = as_json([(numbers[tenant], type) for tenant, type in kinds])
        rows = self.read(list[tuple[str, str, JobStatus, int]], SQL.unfinished_counts, pairs)
        jobs = Counter({(tenant, type, status): count for tenant, type, status, count in rows})
        for effects in self._effect_layers():
            for tenant, type in kinds:
                for status in UNFINISHED:
                    jobs[tenant, type, status] += effects.counts.get((tenant, type, status), 0)
        return jobs

    def enqueued_jobs(self, tenant: str) -> int:
        """Return how many jobs of this transaction count against the enqueue rate of the tenant."""
        return sum(effects.enqueued[tenant] for effects in self._effect_layers())

    def usage(self, tenant: str, owner: str) -> StorageUsage:
        """Return the usage of an owner or of the whole tenant, with the changes of this transaction."""
        changes = (effects.usage.get((tenant, owner), StorageUsage()) for effects in self._effect_layers())
        return sum(changes, start=self._read_stored_usage(tenant, owner))

    def _read_stored_usage(self, tenant: str, owner: str) -> StorageUsage:
        key = tenant, owner
        if key not in self._stored_usage:
            row = self.execute(SQL.usage_of_owner, self.writer_state.tenant_numbers[tenant], owner).fetchone()
            self._stored_usage[key] = StorageUsage() if row is None else StorageUsage(*row)
        return self._stored_usage[key]

    def _effect_layers(self) -> tuple[PendingEffects, ...]:
        return (*self._outer_effects, self.effects)

    # -- at the end -----------------------------------------------------------------------------------------

    def announce_ready(self, lane: Lane, jobs: int = 1, *, first: ReadyPosition = LANE_START) -> None:
        """Report that more jobs of a lane are ready, none of them before the position `first`."""
        self.writer_state.add_lane(lane, first)
        self.effects.ready[lane.tenant, lane.type] += jobs

    def announce_capacity(self, tenant: str, type: str = ALL_TYPES) -> None:
        """Report that ready jobs of a type, or of any, may be handed out that could not be before."""
        if type == ALL_TYPES or tenant in self.writer_state.lanes.get(type, {}):
            jobs = max(1, self.unfinished_jobs([(tenant, type)])[tenant, type, JobStatus.QUEUED])
            if type == ALL_TYPES:
                self.effects.capacity[tenant] += jobs
            else:
                self.effects.ready[tenant, type] += jobs

    def record_transition(self, state: JobState, before: JobStatus | None, after: JobStatus | None) -> None:
        """Count a change of status, where `None` means that the job does not exist, and record a job that finished.

        When a running job ends, jobs that were held back by the same limits are reported as ready.
        """
        if before is not None:
            self.effects.counts[state.tenant, state.type, before] -= 1
            self.effects.counts[state.tenant, ALL_TYPES, before] -= 1
        if before is JobStatus.RUNNING:
            if state.tenant in self.writer_state.limited_tenants:
                self.effects.capacity[state.tenant] += 1
            elif state.type in self.writer_state.limited_types and state.tenant in self.writer_state.lanes.get(
                state.type, ()
            ):
                self.effects.ready[state.tenant, state.type] += 1
        if after is not None:
            self.effects.counts[state.tenant, state.type, after] += 1
            self.effects.counts[state.tenant, ALL_TYPES, after] += 1
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

    def record_removals(self, tenant: str, type: str, statuses: Iterable[JobStatus]) -> None:
        """Count jobs that were removed."""
        for status, jobs in Counter(statuses).items():
            self.effects.counts[tenant, type, status] -= jobs
            self.effects.counts[tenant, ALL_TYPES, status] -= jobs
        self.effects.emptied_types.add((tenant, type))

    def _count_in_batch(self, batch: BatchKey, before: JobStatus | None, after: JobStatus | None) -> None:
        if before is None:
            self.effects.batches[batch][None] += 1
        elif before in FINISHED:
            self.effects.batches[batch][before] -= 1
        if after in FINISHED:
            self.effects.batches[batch][after] += 1

    def emit(self, name: str, state: JobState, *, will_retry: bool | None = None, error: str | None = None) -> None:
        """Append an event about a job with the values in `state`."""
        data = JobEventData(
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
        self.effects.events[state.tenant].append((name, data))

    def announce_events(self, tenant: str) -> None:
        """Notify listeners of events of this tenant that are already written."""
        self.effects.events.setdefault(tenant, [])

    def has_effects_for(self, tenant: str) -> bool:
        """Return whether rows of this tenant will be written at the end."""
        return any(
            tenant in effects.events
            or any(tenant == key[0] for key in (*effects.counts, *effects.endings, *effects.batches, *effects.usage))
            for effects in self._effect_layers()
        )

    def flush(self) -> None:
        """Write the events, counters, endings, usage and clock of the whole transaction."""
        if self.effects.batches:
            self._write_batches()
        rows = []
        for tenant, entries in self.effects.events.items():
            for start in range(0, len(entries), EVENTS_PER_ROW_MAX):
                self.writer_state.last_batch += 1
                chunk = entries[start : start + EVENTS_PER_ROW_MAX]
                rows.append(
                    (self.writer_state.tenant_numbers[tenant], self.writer_state.last_batch, self.now, _encode(chunk))
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
        if self.effects.emptied_types:
            self._remove_types()
        for tenant, jobs in self.effects.capacity.items():
            for type in self.writer_state.requested_types(tenant):
                self.effects.ready[tenant, type] += jobs
        if self.effects.endings:
            endings = [
                (self.writer_state.tenant_numbers[tenant], type, self.now, len(numbers), as_json(numbers))
                for (tenant, type), numbers in self.effects.endings.items()
            ]
            self.write_rows(SQL.insert_endings, endings)
        if self.effects.usage or self.effects.blob_totals:
            self._write_usage()
        # Without changes, for example after a claim that found nothing, there is nothing to sync.
        if self._connection.total_changes() > self._changes_before:
            self.execute(SQL.save_clock, self.now, self.writer_state.last_job_number)

    def _remove_types(self) -> None:
        """Forget the types that have no more jobs."""
        numbers = self.writer_state.tenant_numbers
        tenants = {numbers[tenant]: tenant for tenant, _ in self.effects.emptied_types}
        pairs = as_json([(numbers[tenant], type) for tenant, type in self.effects.emptied_types])
        for number, type in self.execute(SQL.remove_types, pairs):
            self.writer_state.types[tenants[number]].discard(type)

    def _write_usage(self) -> None:
        numbers = self.writer_state.tenant_numbers
        rows = []
        for (tenant, owner), change in self.effects.usage.items():
            if change != StorageUsage():
                usage = self._read_stored_usage(tenant, owner) + change
                rows.append((numbers[tenant], owner, *msgspec.structs.astuple(usage)))
        self.write_rows(SQL.put_usage, rows)
        if empty := [row[:2] for row in rows if not any(row[2:])]:
            self.execute(SQL.remove_usage, as_json(empty))
        if any(self.effects.blob_totals.values()):
            totals = (self.effects.blob_totals[name] for name in ("blobs", "bytes", "deleted"))
            self.execute(SQL.add_blob_totals, *totals)

    def _write_batches(self) -> None:
        """Write the counters of batches, and append an event for each that has no more unfinished jobs."""
        tenants = self.writer_state.tenant_numbers
        rows = [
            (tenants[tenant], batch, ends[None], *(ends[status] for status in BATCH_ENDS))
            for (tenant, batch), ends in self.effects.batches.items()
        ]
        self.write_rows(SQL.add_batches, rows)
        changed_batches = as_json([row[:2] for row in rows])
        for tenant, batch in self.read(list[tuple[str, Batch]], SQL.completed_batches, changed_batches):
            self.effects.events[tenant].append(("batch.completed", batch))


def _changing_columns(state: JobState) -> tuple[object, ...]:
    """Return the columns that can change, in the order of `save_states`."""
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
    """Encode a value as JSON text, to bind it to a statement."""
    return _encode(value).decode()


def random_fraction() -> float:
    """Return a random fraction for the jitter of delays."""
    return random.random()
