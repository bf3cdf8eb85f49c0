"""One write transaction: what handlers use to read and write, and what is written once at its end."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

import apsw
import msgspec

from ingot.blobs.model import BlobNews, QuotaNews
from ingot.engines.jobs import progress_of
from ingot.engines.sqlite.blob_rows import Kept
from ingot.engines.sqlite.memory import FIRST, Memory
from ingot.engines.sqlite.rows import JobRow, Place, State, job_of
from ingot.engines.sqlite.sql import SQL
from ingot.engines.statements import chunk_sizes, repeat_row
from ingot.events.audit import Act
from ingot.jobs.crew import WorkerNews
from ingot.jobs.errors import JobNotFound
from ingot.jobs.lanes import Lane
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import AttemptOutcome, Batch, Job, JobNews, JobStatus
from ingot.kernel.clock import to_datetime

EVENTS_PER_ROW_MAX = 512
BATCH_ENDS = (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED)

T = TypeVar("T")
BatchKey = tuple[str, str]  # Its tenant and its name.
News = JobNews | Batch | WorkerNews | BlobNews | QuotaNews
End = tuple[
    str, AttemptOutcome, JobStatus, int
]  # The type, how an attempt ended, where the job stands, how long it ran.
_encode = msgspec.json.Encoder().encode


class Later(msgspec.Struct):
    """An answer that the event loop finishes, while the writer goes on with the next batch."""

    make: Callable[[], Any]


class Staged:
    """What a group of commands wants written or told at the end: its events, counts and hints."""

    def __init__(self) -> None:
        self.events: defaultdict[str, list[tuple[str, News]]] = defaultdict(list)
        self.counts: Counter[tuple[str, str, JobStatus]] = Counter()
        self.ready: Counter[tuple[str, str]] = Counter()
        self.enqueued: Counter[str] = Counter()  # Jobs that count against the rate of their tenant.
        self.endings: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self.ended: list[End] = []
        self.canceled: Counter[str] = Counter()  # While they waited, by type.
        self.removed: list[str] = []  # Tenants.
        self.records = False  # Whether some changed.
        self.batches: defaultdict[BatchKey, Counter[JobStatus | None]] = defaultdict(Counter)  # New jobs are `None`.
        self.usage: defaultdict[tuple[str, str], Kept] = defaultdict(Kept)  # By tenant and owner: more, or less.
        self.blobs: Counter[str] = Counter()  # More blobs, and their bytes.

    def merge(self, other: Staged) -> None:
        """Take over what another group wants."""
        for tenant, entries in other.events.items():
            self.events[tenant] += entries
        for key, jobs in other.counts.items():
            self.counts[key] += jobs
        self.ready += other.ready
        self.enqueued += other.enqueued
        for kind, numbers in other.endings.items():
            self.endings[kind] += numbers
        self.ended += other.ended
        self.canceled += other.canceled
        self.removed += other.removed
        self.records = self.records or other.records
        for batch, ends in other.batches.items():
            self.batches[batch].update(ends)
        for owner, kept in other.usage.items():
            self.usage[owner] += kept
        self.blobs.update(other.blobs)


class Transaction:
    """Used on the writer thread only, between BEGIN and COMMIT. `now` is the store's time for all of it."""

    def __init__(self, connection: apsw.Connection, memory: Memory, now: int, *, careful: bool = False) -> None:
        self._connection = connection
        self.memory = memory
        self.now = now
        self.careful = careful  # The batch failed once: handlers look before they write what they usually just write.
        self.staged = Staged()
        self._outer: list[Staged] = []  # What was staged before the attempts that are under way.
        self._usage_before: dict[tuple[str, str], Kept] = {}  # As it is in the file, which is written at the end.
        self._changes_before = connection.total_changes()

    def attempt(self, work: Callable[[], T]) -> T:
        """Do some work whole: when it raises, all it wrote and staged is undone."""
        self._connection.execute("SAVEPOINT attempt")
        before, self.staged = self.staged, Staged()
        self._outer.append(before)
        try:
            result = work()
        except BaseException:
            self.staged = self._outer.pop()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO attempt")
                self._connection.execute("RELEASE attempt")
                self.memory.reload()
            raise
        self._connection.execute("RELEASE attempt")
        self._outer.pop()
        before.merge(self.staged)
        self.staged = before
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
        self.execute(SQL.insert_audit, *row, as_json(before), as_json(after))

    def write_rows(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write many rows with few statements."""
        start = 0
        for size in chunk_sizes(len(rows)):
            values = list(chain.from_iterable(rows[start : start + size]))
            self._connection.execute(repeat_row(statement, size), values)
            start += size

    # -- jobs -----------------------------------------------------------------------------------------------

    def states(self, ids: Sequence[str]) -> dict[str, State]:
        """The moving rows of these jobs, by id."""
        return {state.id: state for state in self.read(list[State], SQL.state_of_jobs, as_json(ids))}

    def state(self, tenant: str, job_id: str) -> State:
        """The moving row of one job. Raises `JobNotFound` when it is not there or not in the tenant."""
        state = self.states([job_id]).get(job_id)
        if state is None or state.tenant != tenant:
            raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
        return state

    def insert_states(self, states: Sequence[State]) -> None:
        """Write the rows of new jobs."""
        tenants = self.memory.tenants
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

    def save_states(self, states: Sequence[State]) -> None:
        """Write moved rows back."""
        self.write_rows(SQL.save_states, [(s.number, *_moving(s)) for s in states])

    def whole_jobs(self, numbers: Sequence[int]) -> dict[int, JobRow]:
        """Whole jobs, by number."""
        return {row.state.number: row for row in self.read(list[JobRow], SQL.whole_jobs, as_json(numbers))}

    def job(self, number: int) -> Job:
        """One job that is known to be there."""
        row = self.whole_jobs([number])[number]
        return job_of(row.state, row.body)

    def queue_up(self, state: State, run_at: int) -> None:
        """Make a job wait: with the ready work of its lane when it is due, apart until then otherwise."""
        state.run_at = run_at
        state.due = run_at <= self.now
        if state.due:
            self.tell_ready(Lane(state.type, state.tenant, state.limit_key), first=state.place)
        else:
            self.memory.due_at(run_at)

    # -- limits ---------------------------------------------------------------------------------------------

    def unfinished(self, tenants: Iterable[str]) -> Counter[tuple[str, str, JobStatus]]:
        """How many unfinished jobs these tenants have now, by tenant, type and status."""
        asked = {tenant: self.memory.numbers[tenant] for tenant in tenants}
        rows = self.read(list[tuple[str, str, JobStatus, int]], SQL.unfinished_of_tenants, as_json([*asked.values()]))
        jobs = Counter({(tenant, type, status): number for tenant, type, status, number in rows})
        for staged in self._layers():
            for key, number in staged.counts.items():
                if key[0] in asked and key[2] not in FINISHED:
                    jobs[key] += number
        return jobs

    def enqueued(self, tenant: str) -> int:
        """How many jobs this transaction has counted against the rate of the tenant."""
        return sum(staged.enqueued[tenant] for staged in self._layers())

    def usage(self, tenant: str, owner: str) -> Kept:
        """What an owner keeps now, or the tenant as a whole."""
        staged = (layer.usage.get((tenant, owner), Kept()) for layer in self._layers())
        return sum(staged, start=self._usage_in_file(tenant, owner))

    def _usage_in_file(self, tenant: str, owner: str) -> Kept:
        key = tenant, owner
        if key not in self._usage_before:
            row = self.execute(SQL.usage_of_owner, self.memory.numbers[tenant], owner).fetchone()
            self._usage_before[key] = Kept() if row is None else Kept(*row)
        return self._usage_before[key]

    def _layers(self) -> tuple[Staged, ...]:
        return (*self._outer, self.staged)

    # -- at the end -----------------------------------------------------------------------------------------

    def tell_ready(self, lane: Lane, jobs: int = 1, *, first: Place = FIRST) -> None:
        """More jobs of this lane are ready, from this place on."""
        self.memory.add_lane(lane, first)
        self.staged.ready[lane.tenant, lane.type] += jobs

    def tell_room(self, tenant: str, type: str) -> None:
        """All ready jobs of this type may be handed out now, as far as anybody knows."""
        if tenant in self.memory.lanes.get(type, {}):
            jobs = self.unfinished([tenant])[tenant, type, JobStatus.QUEUED]
            self.staged.ready[tenant, type] += max(1, jobs)

    def moved(self, state: State, before: JobStatus | None, after: JobStatus | None) -> None:
        """Count a job that moved, and note one that finished; `None` is outside. When it no longer runs, others may."""
        if before is not None:
            self.staged.counts[state.tenant, state.type, before] -= 1
        if before is JobStatus.RUNNING:
            for type in self.memory.held_up_by(state.tenant, state.type):
                self.staged.ready[state.tenant, type] += 1
        if after is not None:
            self.staged.counts[state.tenant, state.type, after] += 1
            if after in FINISHED:
                self.staged.endings[state.tenant, state.type].append(state.number)
                if after is JobStatus.CANCELED and before is not JobStatus.RUNNING:
                    self.staged.canceled[state.type] += 1
        if state.number in self.memory.parents:
            if after in FINISHED:
                self.memory.ended.add(state.number)
            else:
                self.memory.ended.discard(state.number)
        if state.batch is not None:
            self._count_in_batch((state.tenant, state.batch), before, after)

    def _count_in_batch(self, batch: BatchKey, before: JobStatus | None, after: JobStatus | None) -> None:
        if before is None:
            self.staged.batches[batch][None] += 1
        elif before in FINISHED:
            self.staged.batches[batch][before] -= 1
        if after in FINISHED:
            self.staged.batches[batch][after] += 1

    def emit(self, name: str, state: State, *, will_retry: bool | None = None, error: str | None = None) -> None:
        """Append an event about a job, as it stands in `state`."""
        news = JobNews(
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
        self.staged.events[state.tenant].append((name, news))

    def tell_events(self, tenant: str) -> None:
        """Events of this tenant were written already."""
        self.staged.events.setdefault(tenant, [])

    def concerns(self, tenant: str) -> bool:
        """Whether something of this tenant is to be written at the end."""
        return any(
            tenant in staged.events
            or any(tenant == key[0] for key in (*staged.counts, *staged.endings, *staged.batches, *staged.usage))
            for staged in self._layers()
        )

    def flush(self) -> None:
        """Write the events, the counts, what finished and the clock of the whole transaction."""
        if self.staged.batches:
            self._count_batches()
        rows = []
        for tenant, entries in self.staged.events.items():
            for start in range(0, len(entries), EVENTS_PER_ROW_MAX):
                self.memory.last_batch += 1
                part = entries[start : start + EVENTS_PER_ROW_MAX]
                rows.append((self.memory.numbers[tenant], self.memory.last_batch, self.now, _encode(part)))
        if rows:
            self.write_rows(SQL.insert_events, rows)
        counts = [
            (self.memory.numbers[tenant], type, status, jobs)
            for (tenant, type, status), jobs in self.staged.counts.items()
            if jobs
        ]
        if counts:
            self.write_rows(SQL.add_counts, counts)
        if self.staged.endings:
            endings = [
                (self.memory.numbers[tenant], type, self.now, len(numbers), as_json(numbers))
                for (tenant, type), numbers in self.staged.endings.items()
            ]
            self.write_rows(SQL.insert_endings, endings)
        if self.staged.usage or self.staged.blobs:
            self._write_usage()
        if self._connection.total_changes() > self._changes_before:  # A claim that found nothing has nothing to sync.
            self.execute(SQL.keep_clock, self.now, self.memory.last_job_number)

    def _write_usage(self) -> None:
        numbers = self.memory.numbers
        rows = []
        for (tenant, owner), change in self.staged.usage.items():
            if change != Kept():
                kept = self._usage_in_file(tenant, owner) + change
                rows.append((numbers[tenant], owner, *msgspec.structs.astuple(kept)))
        self.write_rows(SQL.put_usage, rows)
        if empty := [row[:2] for row in rows if not any(row[2:])]:
            self.execute(SQL.remove_usage, as_json(empty))
        if any(self.staged.blobs.values()):
            self.execute(SQL.add_blob_totals, self.staged.blobs["blobs"], self.staged.blobs["bytes"])

    def _count_batches(self) -> None:
        """Write the numbers of batches, and tell of those in which nothing is left unfinished now."""
        tenants = self.memory.numbers
        rows = [
            (tenants[tenant], batch, ends[None], *(ends[status] for status in BATCH_ENDS))
            for (tenant, batch), ends in self.staged.batches.items()
        ]
        self.write_rows(SQL.add_batches, rows)
        touched = as_json([row[:2] for row in rows])
        for tenant, batch in self.read(list[tuple[str, Batch]], SQL.complete_batches, touched):
            self.staged.events[tenant].append(("batch.completed", batch))


def _moving(state: State) -> tuple[object, ...]:
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
        state.told_at,
        state.finished_at,
    )


def as_json(value: object) -> str:
    """A value bound to a statement as JSON text."""
    return _encode(value).decode()


def spread() -> float:
    """The chance that jitter uses."""
    return random.random()
