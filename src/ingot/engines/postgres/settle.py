"""Calls about running attempts: renew leases, append logs, and record outcomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from ingot.engines.postgres.command_batcher import send_distinct
from ingot.engines.postgres.connection import Database, Record
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.job_rows import STATUSES
from ingot.engines.postgres.lane_cache import NIL_ID, LaneCache
from ingot.jobs.attempt_logs import LOG_TAIL_CHARS_MAX
from ingot.jobs.errors import JobNotFound, LeaseLost
from ingot.jobs.files import FindRunningJob, OpenJobFile, OutputMissing
from ingot.jobs.lanes import Lane
from ingot.jobs.lifecycle import matches_worker
from ingot.jobs.model import AttemptOutcome, Done, Failed, Heartbeat, JobStatus, Outcome, Settle, Settled, Snooze
from ingot.jobs.ports import AppendLogs, AttemptHeartbeat, LogEntry, RenewLeases, SettleJobs
from ingot.kernel.clock import to_datetime, to_datetime_or_none
from ingot.kernel.errors import IngotError
from ingot.kernel.ids import is_id

FENCE_MAX: Final = 2**63 - 1
SUCCEEDED_VALUES: Final = ("succeeded", True, 0, None, None, None)

A = TypeVar("A")
C = TypeVar("C", Settle, AttemptHeartbeat, LogEntry)


async def settle(
    db: Database, lane_cache: LaneCache, commands: Sequence[SettleJobs]
) -> list[list[Settled | IngotError]]:
    """Record outcomes of attempts in one call. Each attempt is judged on its own."""
    groups = [command.settles for command in commands]
    return await _run_grouped(groups, partial(_settle, db, lane_cache))


async def renew(
    db: Database, lane_cache: LaneCache, commands: Sequence[RenewLeases]
) -> list[list[Heartbeat | IngotError]]:
    """Renew leases in one call. Each lease is checked on its own."""
    groups = [command.beats for command in commands]
    return await _run_grouped(groups, partial(_renew, db, lane_cache))


async def append_logs(db: Database, commands: Sequence[AppendLogs]) -> list[list[int | IngotError]]:
    """Append to the logs of attempts in one call. Each attempt is checked on its own."""
    groups = [command.entries for command in commands]
    return await _run_grouped(groups, partial(_append, db))


async def _run_grouped(
    groups: Sequence[Sequence[C]], run: Callable[[list[C]], Awaitable[list[A | IngotError]]]
) -> list[list[A | IngotError]]:
    """Run all calls and return the answers by group. Calls about the same job run one after another, in order."""
    calls = [call for group in groups for call in group]
    are_distinct = len({call.job_id for call in calls}) == len(calls)
    answers: list[A | IngotError] = await (
        run(calls) if are_distinct else send_distinct(calls, attrgetter("job_id"), run)
    )
    in_order = iter(answers)
    return [list(islice(in_order, len(group))) for group in groups]


async def _settle(db: Database, lane_cache: LaneCache, calls: list[Settle]) -> list[Settled | IngotError]:
    values = [_outcome_values(call.outcome) for call in calls]
    columns = (*map(_column, zip(*values, strict=True), SUCCEEDED_VALUES), _worker_column(calls), _output_column(calls))
    rows = await db.call(CALL.settle, *leases_of(calls), *columns)
    answers: dict[int, Settled | IngotError] = {}
    for row in rows:
        if row["places"] and row["status"] is None:
            answers[row["places"][0] - 1] = OutputMissing(f"the output {row['type']} was not uploaded under this fence")
            continue
        status, attempts, run_at = row["status"], row["attempts"], row["run_at"]
        for number in row["places"] or ():
            answers[number - 1] = _settled(calls[number - 1].job_id, row["tenant"], status, attempts, run_at)
        record_ended_attempts(lane_cache, row)
    lane_cache.notify_events_written(row["tenant"] for row in rows if row["places"] and row["tenant"])
    return await _complete(db, calls, answers, _repeat_answer)


async def _renew(db: Database, lane_cache: LaneCache, calls: list[AttemptHeartbeat]) -> list[Heartbeat | IngotError]:
    rows = await db.call(
        CALL.renew,
        *leases_of(calls),
        [call.lease for call in calls],
        [call.percent for call in calls],
        [call.stage for call in calls],
        _worker_column(calls),
    )
    answers: dict[int, Heartbeat | IngotError] = {}
    for row in rows:
        lane_cache.record_expiry(row["expires_at"])
        answers[row["place"] - 1] = Heartbeat(
            job_id=calls[row["place"] - 1].job_id,
            lease_expires_at=to_datetime(row["expires_at"]),
            cancel_requested=row["cancel_requested"],
        )
    return await _complete(db, calls, answers, _lost_lease_error)


async def _append(db: Database, calls: list[LogEntry]) -> list[int | IngotError]:
    texts, offsets = [call.text for call in calls], [call.offset for call in calls]
    # Without an offset, a repeated call cannot be distinguished from a new one with the same text.
    once = None in offsets
    values = (*leases_of(calls), texts, offsets, LOG_TAIL_CHARS_MAX, _worker_column(calls))
    rows = await db.call(CALL.append_logs, *values, once=once)
    answers: dict[int, int | IngotError] = {row["place"] - 1: row["ends"] for row in rows}
    return await _complete(db, calls, answers, _lost_lease_error)


def _outcome_values(outcome: Outcome) -> tuple[str, bool, int, int | None, str | None, bytes | None]:
    """Return the values of an outcome: its name, whether to retry, the delay, exit code, error and result."""
    match outcome:
        case Done(result=None):
            return SUCCEEDED_VALUES
        case Done(result=result):
            return "succeeded", True, 0, None, None, result
        case Failed(error=error, retry=retry, exit_code=exit_code):
            return "timed_out" if outcome.timed_out else "failed", retry, 0, exit_code, error, None
        case Snooze(delay=delay):
            return "snoozed", True, delay, None, None, None
        case _:
            return "released", True, 0, None, None, None


def _output_column(calls: Sequence[Settle]) -> list[str | None] | None:
    """Return the output names of each attempt as JSON, or `None` if no attempt has outputs."""
    outputs = [call.outcome.outputs if isinstance(call.outcome, Done) else () for call in calls]
    if not any(outputs):
        return None
    return [msgspec.json.encode(names).decode() if names else None for names in outputs]


def _column(values: tuple[Any, ...], default: Any) -> tuple[Any, ...] | None:
    """Return a column for `ingot.settle`, or `None` if all values are the default."""
    return None if values.count(default) == len(values) else values


def record_ended_attempts(lane_cache: LaneCache, row: Record) -> None:
    """Record attempts that ended, and jobs that were queued again."""
    if row["places"] is None:
        lane_cache.notify_jobs_ended(row["parents"] or (), [(row["tenant"], row["batch"])] if row["batch"] else ())
        return
    lane_cache.resume_lanes(row["tenant"], len(row["places"]))
    lane_cache.notify_attempts_ended(row["type"], row["outcome"], row["status"], row["micros"])
    if row["status"] != JobStatus.QUEUED:
        return
    if row["first"] is not None:
        lane = Lane(row["type"], row["tenant"], row["limit_key"])
        lane_cache.announce_ready(lane, len(row["places"]), first=(*row["first"], NIL_ID))
    else:
        lane_cache.record_due_time(row["run_at"])


def leases_of(calls: Sequence[C]) -> tuple[list[str], list[int], tuple[str | None, ...] | None]:
    """Return the columns of job IDs, fences and tenants.

    Fences and tenants that no row can have are replaced by values of the right type that match no row. The service has
    checked the job IDs.
    """
    return (
        [call.job_id for call in calls],
        [call.fence if 0 <= call.fence <= FENCE_MAX else -1 for call in calls],
        _column(tuple(call.tenant if call.tenant is None or is_id(call.tenant) else NIL_ID for call in calls), None),
    )


def _worker_column(calls: Sequence[C]) -> tuple[str | None, ...] | None:
    return _column(tuple(call.worker for call in calls), None)


async def _complete(
    db: Database,
    calls: list[C],
    answers: dict[int, A | IngotError],
    explain: Callable[[C, Record | None], A | IngotError],
) -> list[A | IngotError]:
    """Return all answers in order. `explain` makes the missing ones from the current state of the attempts."""
    missing = [index for index in range(len(calls)) if index not in answers]
    if missing:
        ids, fences, _ = leases_of([calls[index] for index in missing])
        rows = await db.call(CALL.find_attempts, ids, fences, read_only=True)
        attempts = {row["place"]: row for row in rows}
        answers |= {index: explain(calls[index], attempts.get(number)) for number, index in enumerate(missing, start=1)}
    return [answers[index] for index in range(len(calls))]


def _settled(job_id: str, tenant: str, status: str, attempts: int, run_at: int | None) -> Settled:
    status_after = STATUSES[status]
    is_queued = status_after is JobStatus.QUEUED
    return Settled(
        job_id=job_id,
        tenant=tenant,
        status=status_after,
        attempts=attempts,
        will_retry=is_queued,
        run_at=to_datetime_or_none(run_at) if is_queued else None,
    )


def _repeat_answer(call: Settle, row: Record | None) -> Settled | IngotError:
    """Return the first answer if this settle repeats the outcome of the same attempt, otherwise an error."""
    error = _lost_lease_error(call, row)
    is_own = row is not None and matches_worker(row["worker_id"] or "", call.worker)
    if isinstance(error, LeaseLost) and row is not None and is_own and _is_same_outcome(row, call.outcome):
        return _settled(call.job_id, row["tenant"], row["status_after"], row["attempts"], row["run_at"])
    return error


def _lost_lease_error(call: Settle | AttemptHeartbeat | LogEntry, row: Record | None) -> IngotError:
    return lease_error(call, row, holder=None) or LeaseLost("the attempt belongs to another worker")


def lease_error(
    call: Settle | AttemptHeartbeat | LogEntry | FindRunningJob | OpenJobFile, row: Record | None, *, holder: str | None
) -> IngotError | None:
    """Return why a call is not about the running attempt, or `None` if it is.

    With `holder`, the worker of the running attempt, the call must also come from this worker.
    """
    if row is None or call.tenant not in (None, row["tenant"]):
        return JobNotFound(f"there is no job {call.job_id[:64]!r} in this tenant")
    if row["status"] != JobStatus.RUNNING:
        return LeaseLost(f"the job is {row['status']} now")
    if row["held_fence"] != call.fence:
        return LeaseLost(f"the job now runs under fence {row['held_fence']}, got fence {call.fence}")
    return (
        None
        if holder is None or matches_worker(holder, call.worker)
        else LeaseLost("the attempt belongs to another worker")
    )


def _is_same_outcome(row: Record, outcome: Outcome) -> bool:
    reported = "released" if row["outcome"] == AttemptOutcome.CANCELED else row["outcome"]
    if reported != _outcome_values(outcome)[0]:
        return False
    match outcome:
        case Done():
            return bool((row["result"] or b"null") == (outcome.result or b"null"))
        case Failed():
            return (outcome.error, outcome.retry, outcome.exit_code) == (row["error"], row["retry"], row["exit_code"])
        case Snooze():
            # After a cancel, no time is stored to compare.
            canceled = row["status_after"] != JobStatus.QUEUED
            return canceled or bool(row["run_at"] - row["finished_at"] == outcome.delay)
        case _:
            return True
