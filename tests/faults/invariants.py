"""What a store must hold after anything that happened to it: by itself, by its events, and by what it answered."""

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
from tests.faults.tables import EMPTY, AttemptRow, JobRow, Tables, is_made, open_file, read_tables

SHOWN_MAX = 12


class Broken(AssertionError):
    """An invariant does not hold."""


def check_file(path: Path, history: History) -> Tables:
    """Check a store file that no process has open. Raises `Broken` with all that is wrong."""
    if not path.exists():
        path.touch()  # The same as an empty file: a store that nobody has been told of.
    connection = open_file(path)
    try:
        wrong = violations(connection, history)
        tables = read_tables(connection) if is_made(connection) else EMPTY
    finally:
        connection.close()
    if wrong:
        more = f"\n… and {len(wrong) - SHOWN_MAX} more" if len(wrong) > SHOWN_MAX else ""
        raise Broken("\n".join(wrong[:SHOWN_MAX]) + more)
    return tables


def violations(connection: apsw.Connection, history: History) -> list[str]:
    """Everything that is wrong, in words."""
    if not is_made(connection):
        told = history.acked + len(history.notes)
        return [f"J1 the store is gone, and {told} things were acknowledged"] if told else []
    tables = read_tables(connection)
    replay = Replay(tables, DEFINITIONS)
    return [*broken_rules(connection), *replay.wrong, *Comparison(tables, replay, history).wrong()]


class Comparison:
    """A store beside the history of the calls made on it."""

    def __init__(self, tables: Tables, replay: Replay, history: History) -> None:
        self._tables = tables
        self._replay = replay
        self._history = history
        self._orders: dict[str, tuple[Call, dict[str, Any]]] = {
            order["mark"]: (call, order) for call in history.of("enqueue") for order in call.asked["orders"]
        }
        self._settles: defaultdict[tuple[str, int], list[Call]] = defaultdict(list)
        for call in history.of("settle"):
            self._settles[call.asked["id"], call.asked["fence"]].append(call)

    def wrong(self) -> list[str]:
        """What does not fit."""
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
            *self._beats(),
            *self._steering(),
            *self._order_of_events(),
        ]

    def _tenants(self) -> Iterator[str]:
        for slug, tenant in (said for key, said in self._history.notes if key == "tenant"):
            if self._tables.tenants.get(slug) != tenant:
                yield f"J1 the tenant {slug} was {tenant} and is {self._tables.tenants.get(slug)}"

    # -- enqueues -------------------------------------------------------------------------------------------

    def _acked_enqueues(self) -> Iterator[str]:
        for call in self._history.of("enqueue"):
            if not call.acked:
                continue
            for order, (job_id, created) in zip(call.asked["orders"], call.answer, strict=True):
                job = self._tables.jobs.get(job_id)
                if job is None:
                    yield f"J1 the job {job_id} of call {call.number} was acknowledged and is lost"
                elif (job.tenant, job.type) != (order["tenant"], order["type"]) or job.payload != order["payload"]:
                    yield f"J1 the job {job_id} is not what call {call.number} asked for"
                elif created and (job.mark != order["mark"] or order["id"] not in (None, job_id)):
                    yield f"J1 the job {job_id} was made by {job.mark}, not by {order['mark']}"

    def _jobs(self) -> Iterator[str]:
        marks: dict[str, str] = {}
        for job in self._tables.jobs.values():
            if job.mark not in self._orders:
                yield f"J2 nobody asked for the job {job.id} ({job.mark})"
                continue
            call, order = self._orders[job.mark]
            if call.refused:
                yield f"J2 the job {job.id} is there although call {call.number} was refused ({call.error})"
            elif _identity(job) != _identity_of(order) or order["id"] not in (None, job.id):
                yield f"J2 the job {job.id} is not what call {call.number} asked for"
            if job.mark in marks:
                yield f"J2 the order {job.mark} made two jobs, {marks[job.mark]} and {job.id}"
            marks[job.mark] = job.id

    def _whole_batches(self) -> Iterator[str]:
        """A batch is accepted whole or not at all; a keyed order may have found its job there before."""
        made = {job.mark for job in self._tables.jobs.values()}
        for call in self._history.of("enqueue"):
            there = {order["mark"] in made for order in call.asked["orders"] if not order["idempotency_key"]}
            if len(there) > 1:
                yield f"J2 a part of the batch {call.number} is there"

    def _idempotency(self) -> Iterator[str]:
        keys: dict[tuple[str, str, str], JobRow] = {}
        for job in self._tables.jobs.values():
            if job.idempotency_key is not None:
                key = job.tenant, job.type, job.idempotency_key
                if key in keys:
                    yield f"J11 the key {key} made two jobs, {keys[key].id} and {job.id}"
                keys[key] = job
        for call in self._history.of("enqueue"):
            payloads = {}
            for place, order in enumerate(call.asked["orders"]):
                if order["idempotency_key"] is None:
                    continue
                key = order["tenant"], order["type"], order["idempotency_key"]
                payloads[key] = order["payload"]
                holder = keys.get(key)
                if call.acked and (holder is None or call.answer[place][0] != holder.id):
                    yield f"J11 call {call.number} was given {call.answer[place][0]} for the key {key}"
            differs = [key for key, payload in payloads.items() if key in keys and keys[key].payload != payload]
            if call.error == "idempotency_mismatch" and not differs and len(payloads) == len(call.asked["orders"]):
                yield f"J11 call {call.number} was refused for another payload, and there is none"

    # -- claims ---------------------------------------------------------------------------------------------

    def _claims(self) -> Iterator[str]:
        """Each claim received exactly the attempts that carry its number, once, and no more than it asked for."""
        by_worker: defaultdict[str, set[tuple[str, int, int]]] = defaultdict(set)
        for attempt in self._tables.attempts.values():
            by_worker[attempt.worker_id].add((attempt.job_id, attempt.fence, attempt.number))
        seen: set[tuple[str, int]] = set()
        for call in self._history.of("claim"):
            made = by_worker.pop(call.number, set())
            if len(made) > call.asked["limit"]:
                yield f"J12 claim {call.number} took {len(made)} jobs; its limit was {call.asked['limit']}"
            if call.refused and made:
                yield f"J3 claim {call.number} was refused ({call.error}) and still took {len(made)} jobs"
            for job_id, _, _ in made:
                job = self._tables.jobs.get(job_id)
                if job and (job.type not in call.asked["types"] or call.asked["tenant"] not in (None, job.tenant)):
                    yield f"J3 claim {call.number} took the job {job_id}, which it did not ask for"
            if not call.acked:
                continue
            given = [tuple(claim) for claim in call.answer]
            if set(given) != made or len(given) != len(made):
                yield f"J3 claim {call.number} was given {given}; the store knows of {sorted(made)}"
            for job_id, fence, _ in given:
                if (job_id, fence) in seen:
                    yield f"J3 the job {job_id} was handed out twice under fence {fence}"
                seen.add((job_id, fence))
        for worker, made in by_worker.items():
            yield f"J3 no claim of {worker} was made, and it has {len(made)} attempts"

    def _attempts(self) -> Iterator[str]:
        started = {(event.news.id, event.news.fence) for event in self._tables.events if event.name == "job.started"}
        if started != self._tables.attempts.keys():
            yield f"J7 attempts and events of a start differ: {sorted(started ^ self._tables.attempts.keys())[:3]}"

    def _fences(self) -> Iterator[str]:
        """A claim made after another one was answered gets a higher fence, whatever died in between."""
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
            asked, answer = call.asked, call.answer
            attempt = self._tables.attempts.get((asked["id"], asked["fence"]))
            if attempt is None or attempt.outcome is None:
                yield f"J4 settle {call.number} was acknowledged and is lost"
            elif not _says(attempt, asked):
                yield f"J4 settle {call.number} was acknowledged, and another outcome stands"
            elif (attempt.status_after, attempt.attempts, attempt.run_at) != (
                answer["status"],
                answer["attempts"],
                answer["run_at"],
            ):
                yield f"J4 settle {call.number} was answered {answer}, and {attempt} stands"

    def _outcomes(self) -> Iterator[str]:
        """Every outcome but a lost lease was said by a call that was not refused, and refusals had a reason."""
        for (job_id, fence), attempt in self._tables.attempts.items():
            calls = self._settles.get((job_id, fence), [])
            sayers = [call for call in calls if _says(attempt, call.asked) and not call.refused]
            if attempt.outcome not in (None, "lost") and not sayers:
                yield f"J4 the attempt {fence} of {job_id} {attempt.outcome}, and no call that may have said so"
            ended_from = min((call.invoked for call in sayers), default=0)
            for call in calls:
                if call.error is not None:
                    yield from self._refusal(call, attempt, ended_from if sayers else 0)
        for (job_id, fence), calls in self._settles.items():
            if (job_id, fence) not in self._tables.attempts and any(call.acked for call in calls):
                yield f"J4 a settle of {job_id} under fence {fence} was accepted, and there is no such attempt"

    def _refusal(self, call: Call, attempt: AttemptRow, ended_from: int) -> Iterator[str]:
        """A call is refused only before its attempt began or after it ended."""
        if call.error == "storage_full":
            return
        if call.error != "lease_lost":
            yield f"J4 {call.verb} {call.number} was refused with {call.error}"
        elif self._began_before(attempt, call) and (attempt.outcome is None or call.before < ended_from):
            yield f"J4 {call.verb} {call.number} was refused while its attempt ran"

    def _began_before(self, attempt: AttemptRow, call: Call) -> bool:
        claim = self._history.calls.get(attempt.worker_id)
        return claim is not None and (claim.before < call.invoked or _run(claim) < _run(call))

    def _beats(self) -> Iterator[str]:
        beats = {call.number: call for call in self._history.of("heartbeat")}
        stages = [((job.id, job.fence), job.stage) for job in self._tables.jobs.values()]
        stages += [(key, attempt.stage) for key, attempt in self._tables.attempts.items()]
        for key, stage in stages:
            if stage is None:
                continue
            call = beats.get(stage)
            if call is None or call.refused or (call.asked["id"], call.asked["fence"]) != key:
                yield f"J4 the progress {stage} of {key} was noted by no call that may have done so"
        for call in beats.values():
            attempt = self._tables.attempts.get((call.asked["id"], call.asked["fence"]))
            if call.acked and attempt is None:
                yield f"J4 heartbeat {call.number} was accepted, and there is no such attempt"
            if call.refused and attempt is not None:
                yield from self._refusal(call, attempt, 0)

    # -- steering -------------------------------------------------------------------------------------------

    def _steering(self) -> Iterator[str]:
        """Cancels, retries and changes that were acknowledged are in the log, and no others are."""
        by_job: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
        for call in self._history.of("cancel", "retry", "change"):
            by_job[call.verb, call.asked["id"]].append(call)
        for (verb, job_id), calls in by_job.items():
            job = self._replay.jobs.get(job_id)
            acked = sum(call.acked for call in calls)
            possible = sum(not call.refused for call in calls)
            if job is None:
                if acked:
                    yield f"J1 the job {job_id} was steered ({verb}) and is lost"
            elif verb == "retry" and not acked <= job.retries <= possible:
                yield f"J5 {acked} to {possible} retries of {job_id} happened; the log has {job.retries}"
            elif verb == "cancel" and not min(acked, 1) - job.swept_along <= job.cancels <= possible:
                yield f"J5 {acked} to {possible} cancels of {job_id} happened; the log has {job.cancels}"
            elif verb == "change":
                yield from self._changed(job_id, calls)
        for job_id, job in self._replay.jobs.items():
            if job.retries and ("retry", job_id) not in by_job:
                yield f"J5 nobody retried the job {job_id}, and the log says so"
            if (job.cancels or job.cancel_requested) and ("cancel", job_id) not in by_job:
                yield f"J5 nobody canceled the job {job_id}, and the log says so"

    def _changed(self, job_id: str, calls: list[Call]) -> Iterator[str]:
        """The tag of the last change stands: no change that was acknowledged before another began can outlive it."""
        tags = {tag for job, tag in self._tables.tags if job == job_id}
        acked = [call for call in calls if call.acked]
        if not acked:
            return
        last = max(acked, key=lambda call: call.invoked)
        may_stand = {call.asked["tag"] for call in calls if not call.refused and call.before >= last.invoked}
        if len(tags) != 1 or not tags <= may_stand:
            yield f"J1 the job {job_id} is tagged {tags}; the last changes are {may_stand}"

    # -- real time ------------------------------------------------------------------------------------------

    def _order_of_events(self) -> Iterator[str]:
        """The log is an order in which the calls can have happened: none stands before one answered before it began."""
        latest = 0
        for event in self._tables.events:
            call = self._cause(event.name, event.news)
            if call is None:
                continue
            latest = max(latest, call.invoked)
            if call.before < latest:
                yield f"the log has {event.name} of {event.news.id} after things that began when it was over"

    def _cause(self, name: str, news: Any) -> Call | None:
        """The call an event comes from, where exactly one can have caused it."""
        if name == "job.created":
            job = self._tables.jobs.get(news.id)
            return None if job is None else self._orders.get(job.mark, (None, None))[0]
        if name == "job.started":
            return self._history.calls.get(news.worker_id)
        if name == "job.completed":
            attempt = self._tables.attempts.get((news.id, news.fence))
            if attempt is None:
                return None
            sayers = [
                call
                for call in self._settles.get((news.id, news.fence), [])
                if _says(attempt, call.asked) and not call.refused
            ]
            return sayers[0] if len(sayers) == 1 else None
        return None


def _says(attempt: AttemptRow, asked: dict[str, Any]) -> bool:
    """Whether this is the outcome that a settle asked for."""
    if attempt.outcome != asked["said"] or bool(attempt.retry) != asked["retry"]:
        return False
    if asked["said"] == "snoozed" and attempt.run_at is not None:
        return attempt.run_at - (attempt.finished_at or 0) == int(asked["delay"])
    return bool((attempt.result if asked["said"] == "succeeded" else attempt.error) == asked["text"])


def _identity(job: JobRow) -> tuple[str | None, ...]:
    return job.tenant, job.type, job.payload, job.dedupe_key, job.idempotency_key


def _identity_of(order: dict[str, Any]) -> tuple[str | None, ...]:
    return order["tenant"], order["type"], order["payload"], order["dedupe_key"], order["idempotency_key"]


def _run(call: Call) -> int:
    """Which process made a call. What one of them did, acknowledged or not, was over before the next began."""
    return int(call.number.partition(".")[0])
