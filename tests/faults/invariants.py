"""Invariants of a store after any fault: of its rows, of its events, and of the results that it has returned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from tests.faults.history import Call, History
from tests.faults.recorded_calls import DEFINITIONS
from tests.faults.replay import Replay
from tests.faults.sqlite_rules import broken_rules
from tests.faults.tables import EMPTY, AttemptRow, JobRow, Tables, is_migrated, open_file, read_tables

SHOWN_MAX = 12


class Broken(AssertionError):
    """An invariant does not hold."""


def check_file(path: Path, history: History) -> Tables:
    """Check a store file that no process has open. Raises `Broken` with all violations."""
    if not path.exists():
        path.touch()  # A missing file is equivalent to an empty one.
    connection = open_file(path)
    try:
        wrong = violations(connection, history)
        tables = read_tables(connection) if is_migrated(connection) else EMPTY
    finally:
        connection.close()
    if wrong:
        more = f"\n… and {len(wrong) - SHOWN_MAX} more" if len(wrong) > SHOWN_MAX else ""
        raise Broken("\n".join(wrong[:SHOWN_MAX]) + more)
    return tables


def violations(connection: apsw.Connection, history: History) -> list[str]:
    """Return a description of each violation."""
    if not is_migrated(connection):
        acknowledged = history.acked + len(history.notes)
        return [f"J1 the store is missing, and {acknowledged} calls were acknowledged"] if acknowledged else []
    tables = read_tables(connection)
    replay = Replay(tables, DEFINITIONS)
    return [*broken_rules(connection), *replay.wrong, *Comparison(tables, replay, history).wrong()]


class Comparison:
    """Compares a store with the history of its calls."""

    def __init__(self, tables: Tables, replay: Replay, history: History) -> None:
        self._tables = tables
        self._replay = replay
        self._history = history
        self._orders: dict[str, tuple[Call, dict[str, Any]]] = {
            order["mark"]: (call, order) for call in history.of("enqueue") for order in call.arguments["orders"]
        }
        self._settles: defaultdict[tuple[str, int], list[Call]] = defaultdict(list)
        for call in history.of("settle"):
            self._settles[call.arguments["id"], call.arguments["fence"]].append(call)

    def wrong(self) -> list[str]:
        """Return a description of each contradiction."""
        return [
            *self._tenants(),
            *self._acked_enqueues(),
            *self._jobs(),
            *self._whole_batches(),
            *self._idempotency(),
            *self._claims(),
            *self._attempts(),
            *self._fences(),
            *self._acked_settles(),
            *self._outcomes(),
            *self._heartbeats(),
            *self._cancels_retries_and_changes(),
            *self._order_of_events(),
        ]

    def _tenants(self) -> Iterator[str]:
        for slug, tenant in (content for key, content in self._history.notes if key == "tenant"):
            if self._tables.tenants.get(slug) != tenant:
                yield f"J1 the tenant {slug} was {tenant} and is {self._tables.tenants.get(slug)}"

    # -- enqueues -------------------------------------------------------------------------------------------

    def _acked_enqueues(self) -> Iterator[str]:
        for call in self._history.of("enqueue"):
            if not call.acked:
                continue
            for order, (job_id, created) in zip(call.arguments["orders"], call.answer, strict=True):
                job = self._tables.jobs.get(job_id)
                if job is None:
                    yield f"J1 the job {job_id} of call {call.number} was acknowledged and is lost"
                elif (job.tenant, job.type) != (order["tenant"], order["type"]) or job.payload != order["payload"]:
                    yield f"J1 the job {job_id} is not what call {call.number} asked for"
                elif created and (job.mark != order["mark"] or order["id"] not in (None, job_id)):
                    yield f"J1 the job {job_id} was created by {job.mark}, not by {order['mark']}"

    def _jobs(self) -> Iterator[str]:
        marks: dict[str, str] = {}
        for job in self._tables.jobs.values():
            if job.mark not in self._orders:
                yield f"J2 no call enqueued the job {job.id} ({job.mark})"
                continue
            call, order = self._orders[job.mark]
            if call.refused:
                yield f"J2 the job {job.id} exists although call {call.number} was refused ({call.error})"
            elif _identity(job) != _identity_of(order) or order["id"] not in (None, job.id):
                yield f"J2 the job {job.id} is not what call {call.number} asked for"
            if job.mark in marks:
                yield f"J2 the order {job.mark} created two jobs, {marks[job.mark]} and {job.id}"
            marks[job.mark] = job.id

    def _whole_batches(self) -> Iterator[str]:
        """A batch is accepted as a whole or not at all. An order with a key may refer to an older job."""
        taken = {job.mark for job in self._tables.jobs.values()}
        for call in self._history.of("enqueue"):
            are_stored = {order["mark"] in taken for order in call.arguments["orders"] if not order["idempotency_key"]}
            if len(are_stored) > 1:
                yield f"J2 only a part of the batch {call.number} is stored"

    def _idempotency(self) -> Iterator[str]:
        keys: dict[tuple[str, str, str], JobRow] = {}
        for job in self._tables.jobs.values():
            if job.idempotency_key is not None:
                key = job.tenant, job.type, job.idempotency_key
                if key in keys:
                    yield f"J11 the key {key} created two jobs, {keys[key].id} and {job.id}"
                keys[key] = job
        for call in self._history.of("enqueue"):
            payloads = {}
            for index, order in enumerate(call.arguments["orders"]):
                if order["idempotency_key"] is None:
                    continue
                key = order["tenant"], order["type"], order["idempotency_key"]
                payloads[key] = order["payload"]
                owner = keys.get(key)
                if call.acked and (owner is None or call.answer[index][0] != owner.id):
                    yield f"J11 call {call.number} received {call.answer[index][0]} for the key {key}"
            differs = [key for key, payload in payloads.items() if key in keys and keys[key].payload != payload]
            if call.error == "idempotency_mismatch" and not differs and len(payloads) == len(call.arguments["orders"]):
                yield f"J11 call {call.number} was refused for another payload, and all payloads match"

    # -- claims ---------------------------------------------------------------------------------------------

    def _claims(self) -> Iterator[str]:
        """Each claim received exactly the attempts that carry its number, once, and no more than its limit."""
        by_worker: defaultdict[str, set[tuple[str, int, int]]] = defaultdict(set)
        for attempt in self._tables.attempts.values():
            by_worker[attempt.worker_id].add((attempt.job_id, attempt.fence, attempt.number))
        seen: set[tuple[str, int]] = set()
        for call in self._history.of("claim"):
            taken = by_worker.pop(call.number, set())
            if len(taken) > call.arguments["limit"]:
                yield f"J12 claim {call.number} took {len(taken)} jobs; its limit was {call.arguments['limit']}"
            if call.refused and taken:
                yield f"J3 claim {call.number} was refused ({call.error}) and still took {len(taken)} jobs"
            for job_id, _, _ in taken:
                job = self._tables.jobs.get(job_id)
                if job and (
                    job.type not in call.arguments["types"] or call.arguments["tenant"] not in (None, job.tenant)
                ):
                    yield f"J3 claim {call.number} took the job {job_id}, which does not match it"
            if not call.acked:
                continue
            received = [tuple(claim) for claim in call.answer]
            if set(received) != taken or len(received) != len(taken):
                yield f"J3 claim {call.number} received {received}; the store has {sorted(taken)}"
            for job_id, fence, _ in received:
                if (job_id, fence) in seen:
                    yield f"J3 the job {job_id} was handed out twice under fence {fence}"
                seen.add((job_id, fence))
        for worker, taken in by_worker.items():
            yield f"J3 no claim of {worker} was recorded, and it has {len(taken)} attempts"

    def _attempts(self) -> Iterator[str]:
        started = {(event.data.id, event.data.fence) for event in self._tables.events if event.name == "job.started"}
        if started != self._tables.attempts.keys():
            yield f"J7 attempts and events of a start differ: {sorted(started ^ self._tables.attempts.keys())[:3]}"

    def _fences(self) -> Iterator[str]:
        """A claim that begins after another one returned gets a higher fence, whatever failed in between."""
        fences = {attempt.worker_id: attempt.fence for attempt in self._tables.attempts.values()}
        claims = [call for call in self._history.of("claim") if call.number in fences]
        answers = iter(sorted((call for call in claims if call.acked), key=lambda call: call.before))
        answered, highest = next(answers, None), 0
        for call in claims:
            while answered is not None and answered.before < call.invoked:
                highest = max(highest, fences[answered.number])
                answered = next(answers, None)
            if fences[call.number] <= highest:
                yield f"J4 claim {call.number} got fence {fences[call.number]} after {highest} was answered"

    # -- settles and heartbeats -----------------------------------------------------------------------------

    def _acked_settles(self) -> Iterator[str]:
        for call in self._history.of("settle"):
            if not call.acked:
                continue
            arguments, answer = call.arguments, call.answer
            attempt = self._tables.attempts.get((arguments["id"], arguments["fence"]))
            if attempt is None or attempt.outcome is None:
                yield f"J4 settle {call.number} was acknowledged and is lost"
            elif not _has_outcome(attempt, arguments):
                yield f"J4 settle {call.number} was acknowledged, and the store has another outcome stands"
            elif (attempt.status_after, attempt.attempts, attempt.run_at) != (
                answer["status"],
                answer["attempts"],
                answer["run_at"],
            ):
                yield f"J4 settle {call.number} was answered {answer}, and the store has {attempt}"

    def _outcomes(self) -> Iterator[str]:
        """Every outcome except a lost lease comes from a call that was not refused, and every refusal has a reason."""
        for (job_id, fence), attempt in self._tables.attempts.items():
            calls = self._settles.get((job_id, fence), [])
            sources = [call for call in calls if _has_outcome(attempt, call.arguments) and not call.refused]
            if attempt.outcome not in (None, "lost") and not sources:
                yield f"J4 the attempt {fence} of {job_id} is {attempt.outcome}, and no call can have set that"
            earliest_end = min((call.invoked for call in sources), default=0)
            for call in calls:
                if call.error is not None:
                    yield from self._refusal(call, attempt, earliest_end if sources else 0)
        for (job_id, fence), calls in self._settles.items():
            if (job_id, fence) not in self._tables.attempts and any(call.acked for call in calls):
                yield f"J4 a settle of {job_id} under fence {fence} was accepted, and there is no such attempt"

    def _refusal(self, call: Call, attempt: AttemptRow, earliest_end: int) -> Iterator[str]:
        """A call is refused only before its attempt began or after it ended."""
        if call.error == "storage_full":
            return
        if call.error != "lease_lost":
            yield f"J4 {call.verb} {call.number} was refused with {call.error}"
        elif self._began_before(attempt, call) and (attempt.outcome is None or call.before < earliest_end):
            yield f"J4 {call.verb} {call.number} was refused while its attempt ran"

    def _began_before(self, attempt: AttemptRow, call: Call) -> bool:
        claim = self._history.calls.get(attempt.worker_id)
        return claim is not None and (claim.before < call.invoked or _run(claim) < _run(call))

    def _heartbeats(self) -> Iterator[str]:
        heartbeats = {call.number: call for call in self._history.of("heartbeat")}
        stages = [((job.id, job.fence), job.stage) for job in self._tables.jobs.values()]
        stages += [(key, attempt.stage) for key, attempt in self._tables.attempts.items()]
        for key, stage in stages:
            if stage is None:
                continue
            call = heartbeats.get(stage)
            if call is None or call.refused or (call.arguments["id"], call.arguments["fence"]) != key:
                yield f"J4 the progress {stage} of {key} was reported by no call that can have done so"
        for call in heartbeats.values():
            attempt = self._tables.attempts.get((call.arguments["id"], call.arguments["fence"]))
            if call.acked and attempt is None:
                yield f"J4 heartbeat {call.number} was accepted, and there is no such attempt"
            if call.refused and attempt is not None:
                yield from self._refusal(call, attempt, 0)

    # -- cancels, retries and changes -----------------------------------------------------------------------

    def _cancels_retries_and_changes(self) -> Iterator[str]:
        """The log contains all acknowledged cancels, retries and changes, and no others."""
        by_job: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
        for call in self._history.of("cancel", "retry", "change"):
            by_job[call.verb, call.arguments["id"]].append(call)
        for (verb, job_id), calls in by_job.items():
            job = self._replay.jobs.get(job_id)
            acked = sum(call.acked for call in calls)
            possible = sum(not call.refused for call in calls)
            if job is None:
                if acked:
                    yield f"J1 the job {job_id} received a {verb} and is lost"
            elif verb == "retry" and not acked <= job.retries <= possible:
                yield f"J5 {acked} to {possible} retries of {job_id} happened; the log has {job.retries}"
            elif verb == "cancel" and not min(acked, 1) - job.cascaded <= job.cancels <= possible:
                yield f"J5 {acked} to {possible} cancels of {job_id} happened; the log has {job.cancels}"
            elif verb == "change":
                yield from self._changed(job_id, calls)
        for job_id, job in self._replay.jobs.items():
            if job.retries and ("retry", job_id) not in by_job:
                yield f"J5 the log has a retry of {job_id} that no call made"
            if (job.cancels or job.cancel_requested) and ("cancel", job_id) not in by_job:
                yield f"J5 the log has a cancel of {job_id} that no call made"

    def _changed(self, job_id: str, calls: list[Call]) -> Iterator[str]:
        """The job has the tag of the last change, or of one that was under way at the same time."""
        tags = {tag for job, tag in self._tables.tags if job == job_id}
        acked = [call for call in calls if call.acked]
        if not acked:
            return
        last = max(acked, key=lambda call: call.invoked)
        possible_tags = {call.arguments["tag"] for call in calls if not call.refused and call.before >= last.invoked}
        if len(tags) != 1 or not tags <= possible_tags:
            yield f"J1 the job {job_id} is tagged {tags}; the last changes are {possible_tags}"

    # -- real time ------------------------------------------------------------------------------------------

    def _order_of_events(self) -> Iterator[str]:
        """The log is a possible order of the calls: no event precedes that of a call which had already returned."""
        latest = 0
        for event in self._tables.events:
            call = self._cause(event.name, event.data)
            if call is None:
                continue
            latest = max(latest, call.invoked)
            if call.before < latest:
                yield f"the log has {event.name} of {event.data.id} after events of calls that began later"

    def _cause(self, name: str, data: Any) -> Call | None:
        """Return the call that caused an event, if only one can have done so."""
        if name == "job.created":
            job = self._tables.jobs.get(data.id)
            return None if job is None else self._orders.get(job.mark, (None, None))[0]
        if name == "job.started":
            return self._history.calls.get(data.worker_id)
        if name == "job.completed":
            attempt = self._tables.attempts.get((data.id, data.fence))
            if attempt is None:
                return None
            sources = [
                call
                for call in self._settles.get((data.id, data.fence), [])
                if _has_outcome(attempt, call.arguments) and not call.refused
            ]
            return sources[0] if len(sources) == 1 else None
        return None


def _has_outcome(attempt: AttemptRow, arguments: dict[str, Any]) -> bool:
    """Whether the attempt has the outcome of a settle with these arguments."""
    reported = "released" if attempt.outcome == "canceled" else attempt.outcome
    if reported != arguments["outcome"] or bool(attempt.retry) != arguments["retry"]:
        return False
    if arguments["outcome"] == "snoozed" and attempt.run_at is not None:
        return attempt.run_at - (attempt.finished_at or 0) == int(arguments["delay"])
    return bool((attempt.result if arguments["outcome"] == "succeeded" else attempt.error) == arguments["text"])


def _identity(job: JobRow) -> tuple[str | None, ...]:
    return job.tenant, job.type, job.payload, job.dedupe_key, job.idempotency_key


def _identity_of(order: dict[str, Any]) -> tuple[str | None, ...]:
    return order["tenant"], order["type"], order["payload"], order["dedupe_key"], order["idempotency_key"]


def _run(call: Call) -> int:
    """Return the number of the process that made a call. A process begins when the previous one has ended."""
    return int(call.number.partition(".")[0])
