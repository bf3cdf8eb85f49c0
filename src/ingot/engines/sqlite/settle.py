"""Calls of workers about their attempts: renew leases, append logs and settle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ingot.engines.sqlite.dependents import release_dependents
from ingot.engines.sqlite.job_files import AttemptOutputs
from ingot.engines.sqlite.job_rows import JobState, OutcomeRow
from ingot.engines.sqlite.leases import AttemptCall, find_leased_job
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json, random_fraction
from ingot.jobs.attempt_logs import LOG_TAIL_CHARS_MAX, drop_stored_prefix
from ingot.jobs.errors import LeaseLost
from ingot.jobs.lifecycle import FINISHED, UNSUCCESSFUL_OUTCOMES, Verdict, judge, matches_worker
from ingot.jobs.model import (
    AttemptOutcome,
    Done,
    Failed,
    Heartbeat,
    JobStatus,
    Lost,
    Outcome,
    Settle,
    Settled,
    Snooze,
)
from ingot.jobs.ports import AppendLogs, AttemptHeartbeat, LogEntry, RenewLeases, SettleJobs
from ingot.kernel.clock import MICROS, to_datetime, to_datetime_or_none
from ingot.kernel.errors import IngotError

PROGRESS_EVENT_INTERVAL_MICROS = MICROS


A = TypeVar("A")
C = TypeVar("C", bound=AttemptCall)


def settle_jobs(tx: Transaction, commands: Sequence[SettleJobs]) -> list[list[Settled | IngotError]]:
    """Judge each attempt separately, and write all outcomes together."""
    batch = _SettleBatch(tx, [call for command in commands for call in command.settles])
    answers = _answer_each(batch.settle, [command.settles for command in commands])
    batch.write()
    release_dependents(tx)
    return answers


def renew_leases(tx: Transaction, commands: Sequence[RenewLeases]) -> list[list[Heartbeat | IngotError]]:
    """Renew each lease separately, and write all states together."""
    states = tx.job_states([beat.job_id for command in commands for beat in command.beats])
    renewed: dict[str, JobState] = {}

    def renew_one(beat: AttemptHeartbeat) -> Heartbeat:
        state = find_leased_job(states, beat)
        state.lease_expires_at = tx.now + beat.lease
        tx.writer_state.record_expiry(state.lease_expires_at)
        if beat.percent is not None:
            state.percent, state.stage = beat.percent, beat.stage
            if tx.now - state.progress_reported_at >= PROGRESS_EVENT_INTERVAL_MICROS:
                state.progress_reported_at = tx.now
                tx.emit("job.updated", state)
        renewed[state.id] = state
        return Heartbeat(
            job_id=state.id,
            lease_expires_at=to_datetime(state.lease_expires_at),
            cancel_requested=state.cancel_requested,
        )

    answers = _answer_each(renew_one, [command.beats for command in commands])
    tx.save_states(list(renewed.values()))
    return answers


def append_logs(tx: Transaction, commands: Sequence[AppendLogs]) -> list[list[int | IngotError]]:
    """Append to each log separately, and write all chunks together."""
    entries = [entry for command in commands for entry in command.entries]
    states = tx.job_states([entry.job_id for entry in entries])
    attempts = {
        (state.number, entry.fence)
        for entry in entries
        if (state := states.get(entry.job_id)) is not None and state.fence == entry.fence
    }
    rows = tx.read(list[tuple[int, int, int]], SQL.ends_of_logs, as_json(sorted(attempts)))
    ends = {(job, fence): end for job, fence, end in rows}
    chunks: dict[tuple[int, int], list[tuple[object, ...]]] = {}

    def append_one(entry: LogEntry) -> int:
        attempt = find_leased_job(states, entry).number, entry.fence
        start, text = drop_stored_prefix(entry.text, entry.offset, end=ends[attempt])
        if text:
            chunks.setdefault(attempt, []).append((*attempt, start, len(text), text))
            ends[attempt] = start + len(text)
        return ends[attempt]

    answers = _answer_each(append_one, [command.entries for command in commands])
    tx.write_rows(SQL.insert_logs, [chunk for attempt_chunks in chunks.values() for chunk in attempt_chunks])
    for attempt in chunks:
        if (trim_before := ends[attempt] - LOG_TAIL_CHARS_MAX) > 0:
            tx.execute(SQL.trim_logs, *attempt, trim_before)
    return answers


def _answer_each(run: Callable[[C], A], groups: Sequence[Sequence[C]]) -> list[list[A | IngotError]]:
    results: list[list[A | IngotError]] = []
    for calls in groups:
        answers: list[A | IngotError] = []
        for call in calls:
            try:
                answers.append(run(call))
            except IngotError as error:
                answers.append(error)
        results.append(answers)
    return results


class _SettleBatch:
    """A batch of settles, in which the same job may occur more than once."""

    def __init__(self, tx: Transaction, settles: Sequence[Settle]) -> None:
        self._tx = tx
        self._states = tx.job_states([settle.job_id for settle in settles])
        self._ended_states: dict[str, JobState] = {}
        self._outcomes: list[tuple[object, ...]] = []
        # The outcome, the answer and the worker of each attempt that this batch settled.
        self._settled: dict[tuple[str, int], tuple[Outcome, Settled, str]] = {}
        self._earlier_outcomes = self._read_earlier_outcomes(settles)
        done_settles = [
            settle for settle in settles if isinstance(settle.outcome, Done) and settle.job_id in self._states
        ]
        self._outputs = AttemptOutputs(tx, [(self._states[settle.job_id], settle.fence) for settle in done_settles])

    def _read_earlier_outcomes(self, settles: Sequence[Settle]) -> dict[tuple[int, int], OutcomeRow]:
        """Return the outcomes of attempts that earlier transactions settled."""
        attempts = []
        for settle in settles:
            state = self._states.get(settle.job_id)
            if state is not None and (state.status is not JobStatus.RUNNING or state.fence != settle.fence):
                attempts.append((state.number, settle.fence))
        if not attempts:
            return {}
        rows = self._tx.read(list[OutcomeRow], SQL.outcomes_of_attempts, as_json(attempts))
        return {(row.job, row.fence): row for row in rows}

    def settle(self, settle: Settle) -> Settled:
        """Settle one attempt. Raises `JobNotFound`, `LeaseLost` or `OutputMissing`."""
        try:
            state = find_leased_job(self._states, settle)
        except LeaseLost:
            earlier_answer = self._repeat_answer(settle)
            if earlier_answer is None:
                raise
            return earlier_answer
        if isinstance(settle.outcome, Done):
            self._outputs.check_uploaded(state, settle.outcome.outputs)
        worker_id = state.worker_id or ""
        answer = end_attempt(self._tx, state, settle.outcome, self._outcomes)
        self._ended_states[state.id] = state
        if answer.status is JobStatus.SUCCEEDED:
            self._outputs.add_succeeded(state)
        self._settled[state.id, settle.fence] = settle.outcome, answer, worker_id
        return answer

    def _repeat_answer(self, settle: Settle) -> Settled | None:
        """Return the first answer if the same outcome was settled before, or else `None`."""
        key = settle.job_id, settle.fence
        if key in self._settled:
            outcome, answer, worker_id = self._settled[key]
            return answer if outcome == settle.outcome and matches_worker(worker_id, settle.worker) else None
        row = self._earlier_outcomes.get((self._states[settle.job_id].number, settle.fence))
        if row is None or not matches_worker(row.worker_id, settle.worker) or not _is_same_outcome(row, settle.outcome):
            return None
        return Settled(
            job_id=settle.job_id,
            tenant=self._states[settle.job_id].tenant,
            status=row.status_after,
            attempts=row.attempts,
            will_retry=row.status_after is JobStatus.QUEUED,
            run_at=to_datetime_or_none(row.run_at),
        )

    def write(self) -> None:
        """Write the states, outcomes and outputs of the settled attempts."""
        tx, done = self._tx, JobStatus.SUCCEEDED
        # Most attempts succeed, and the states of their jobs all change in the same way.
        if succeeded := [state.number for state in self._ended_states.values() if state.status is done]:
            tx.execute(SQL.mark_jobs_succeeded, tx.now, as_json(succeeded))
        tx.save_states([state for state in self._ended_states.values() if state.status is not done])
        tx.write_rows(SQL.insert_outcomes, self._outcomes)
        self._outputs.write()


def end_attempt(
    tx: Transaction,
    state: JobState,
    outcome: Outcome | Lost,
    outcomes: list[tuple[object, ...]],
) -> Settled:
    """End the attempt of a running job as `judge` decides. The caller writes the state, and the rows in `outcomes`."""
    definition = tx.writer_state.definition(state.tenant, state.type)
    verdict = judge(state, outcome, definition, now=tx.now, random_fraction=random_fraction())
    outcomes.append(
        (
            state.number,
            state.fence,
            verdict.outcome,
            outcome.retry if isinstance(outcome, Failed) else True,
            verdict.status,
            verdict.run_at,
            state.attempts,
            tx.now,
            outcome.exit_code if isinstance(outcome, Failed) else None,
            verdict.error,
            outcome.result if isinstance(outcome, Done) else None,
            state.percent,
            state.stage,
        )
    )
    tx.effects.attempt_ends.append(
        (state.type, verdict.outcome, verdict.status, max(0, tx.now - (state.started_at or tx.now)))
    )
    state.status, state.failures, state.crashes = verdict.status, verdict.failures, verdict.crashes
    state.lease_expires_at = state.worker_id = state.percent = state.stage = None
    if verdict.status in FINISHED:
        state.finished_at = tx.now
    elif verdict.run_at is not None:
        tx.queue_job(state, verdict.run_at)
    tx.record_transition(state, JobStatus.RUNNING, verdict.status)
    _append_end_events(tx, state, verdict)
    return Settled(
        job_id=state.id,
        tenant=state.tenant,
        status=verdict.status,
        attempts=state.attempts,
        will_retry=verdict.status is JobStatus.QUEUED,
        run_at=to_datetime_or_none(verdict.run_at),
    )


def _append_end_events(tx: Transaction, state: JobState, verdict: Verdict) -> None:
    if verdict.outcome in UNSUCCESSFUL_OUTCOMES:
        tx.emit("job.failed", state, will_retry=verdict.status is JobStatus.QUEUED, error=verdict.error)
    match verdict.status:
        case JobStatus.SUCCEEDED:
            tx.emit("job.completed", state)
        case JobStatus.DEAD:
            tx.emit("job.dead", state, error=verdict.error)
        case JobStatus.CANCELED:
            tx.emit("job.canceled", state)
        case _ if verdict.outcome in (AttemptOutcome.SNOOZED, AttemptOutcome.RELEASED):
            tx.emit("job.updated", state)


def _is_same_outcome(row: OutcomeRow, outcome: Outcome) -> bool:
    match outcome:
        case Done():
            same_result = bytes(row.result) == (outcome.result or b"null")
            return row.outcome is AttemptOutcome.SUCCEEDED and same_result
        case Failed():
            reported = (outcome.timed_out, outcome.error, outcome.retry, outcome.exit_code)
            has_failed = row.outcome in (AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT)
            timed_out = row.outcome is AttemptOutcome.TIMED_OUT
            return has_failed and reported == (timed_out, row.error, row.retry, row.exit_code)
        case Snooze():
            # If the job was canceled instead, no time was recorded.
            same_time = row.run_at is None or row.run_at - row.finished_at == outcome.delay
            return row.outcome is AttemptOutcome.SNOOZED and same_time
        case _:
            return row.outcome in (AttemptOutcome.RELEASED, AttemptOutcome.CANCELED)
