"""The checks can fail: a store and a history that are in order are spoiled in one place, and the checker says where."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from ingot.engines.sqlite import SQLiteStore
from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.jobs import Failed, OnDead, Release, Snooze
from ingot.kernel.clock import ManualClock
from tests.faults.history import History, Line, ListRecorder
from tests.faults.invariants import Broken, check_file, violations
from tests.faults.powercut import history_of
from tests.faults.recorded_calls import RecordedJobs, done, held_by
from tests.faults.sqlite_rules import RULES
from tests.faults.tables import Tables, open_file, read_tables

LEASE_SECONDS = 10.0


Edit = Callable[[str, dict[str, Any]], list[tuple[str, dict[str, Any]]] | None]


class Evidence:
    """A store file and its history, to be tampered with."""

    def __init__(self, connection: apsw.Connection, lines: list[Line]) -> None:
        self.connection = connection
        self.lines = lines
        self.tables: Tables = read_tables(connection)
        self.history: History = history_of(lines)
        connection.execute("PRAGMA ignore_check_constraints = ON; DROP TRIGGER states_move")

    def wrong(self) -> list[str]:
        """What the checker says."""
        self.connection.execute("PRAGMA ignore_check_constraints = OFF")
        return violations(self.connection, history_of(self.lines))

    def number_of(self, verb: str, fits: Callable[[dict[str, Any], Any], bool]) -> str:
        """The first acknowledged call of a kind that fits."""
        return next(call.number for call in self.history.of(verb) if call.acked and fits(call.asked, call.answer))

    def drop(self, number: str) -> None:
        """The call was never heard of."""
        self.lines[:] = [line for line in self.lines if line[1] != number]

    def refuse(self, number: str, code: str = "lease_lost") -> None:
        """The call was answered with an error."""
        self._replace("ok", number, lambda said: ("fail", number, code))

    def answer(self, number: str, change: Callable[[Any], Any]) -> None:
        """The call was answered in another way."""
        self._replace("ok", number, lambda said: ("ok", number, change(said)))

    def ask(self, number: str, **values: Any) -> None:
        """Something else was asked."""
        self._replace("invoke", number, lambda said: ("invoke", number, [said[0], said[1] | values]))

    def _replace(self, what: str, number: str, change: Callable[[Any], Line]) -> None:
        self.lines[:] = [change(said) if (w, n) == (what, number) else (w, n, said) for w, n, said in self.lines]

    def edit_events(self, change: Edit, *, every: bool = False) -> None:
        """Rewrite the first event for which `change` has something else to say, or every such event."""
        edited = False
        rows = list(self.connection.execute("SELECT tenant, batch, entries FROM events ORDER BY batch"))
        for tenant, batch, entries in rows:
            events: list[Any] = []
            for name, news in msgspec.json.decode(entries):
                instead = change(name, news) if every or not edited else None
                edited = edited or instead is not None
                events += [(name, news)] if instead is None else instead
            values = (msgspec.json.encode(events), tenant, batch)
            self.connection.execute("UPDATE events SET entries = ? WHERE tenant = ? AND batch = ?", values)
        assert edited, "no event fits"


async def scenario(folder: Path, lines: list[Line]) -> None:
    """One of everything that can happen to a job."""
    clock = ManualClock()
    store = await SQLiteStore.open(folder, clock=clock, lease_seconds=LEASE_SECONDS)
    recorded = RecordedJobs(store, ListRecorder("1", lines), lease_seconds=LEASE_SECONDS)
    await recorded.prepare()
    tenant = recorded.tenants[0]
    line, plain = {"tenant": tenant, "type": "line"}, {"tenant": tenant, "type": "plain"}
    for _ in range(3):
        await recorded.enqueue(line, alone=True)
    for _ in range(3):
        for claim in await recorded.claim("line"):
            await recorded.settle(held_by(claim), done)
    await recorded.enqueue(plain, plain, plain)
    keyed = plain | {"idempotency_key": "k", "payload": 1}
    for wish in (keyed, keyed, keyed | {"payload": 2}):
        await recorded.enqueue(wish)
    for _ in range(2):
        await recorded.enqueue(plain | {"dedupe_key": "d", "tags": ["t"]})
    clock.advance(seconds=1)
    good, bad, late, back, dead = [held_by(claim) for claim in await recorded.claim("plain", limit=5)]
    await recorded.beat(good)
    said = await recorded.settle(good, done)
    await recorded.settle(good, lambda number: said)
    await recorded.settle(bad, lambda number: Failed(error=number))
    await recorded.settle(late, lambda number: Snooze(delay=5))
    await recorded.settle(back, lambda number: Release())
    await recorded.settle(dead, lambda number: Failed(error=number, retry=False))
    await recorded.retry(tenant, dead.job_id)
    await recorded.change(tenant, dead.job_id, priority=4, run_at=clock.micros())
    (waiting,) = await recorded.enqueue(plain)
    await recorded.cancel(tenant, waiting.job.id)
    (asked,) = await recorded.claim("plain", limit=1)
    await recorded.cancel(tenant, asked.job.id)
    await recorded.settle(held_by(asked), lambda number: Release())
    clock.advance(seconds=LEASE_SECONDS)
    lost = [held_by(claim) for claim in await recorded.claim("plain", limit=2)]
    clock.advance(seconds=LEASE_SECONDS)
    await recorded.jobs.maintain()
    await recorded.settle(lost[0], done)
    await recorded.enqueue({"tenant": tenant, "type": "flaky"})
    await recorded.claim("flaky", limit=1)
    clock.advance(seconds=LEASE_SECONDS)
    await recorded.jobs.maintain()
    (running,) = await recorded.claim("plain", limit=1)
    await recorded.beat(held_by(running))
    await recorded.enqueue(plain)
    (parent,) = await recorded.enqueue(plain | {"delay": 60, "batch": "batch"})
    for _ in range(2):
        await recorded.enqueue(plain | {"after": [parent.job.id]})
    await recorded.enqueue(plain | {"after": [parent.job.id], "on_dead": OnDead.RUN, "delay": 60})
    await recorded.cancel(tenant, parent.job.id)
    await recorded.enqueue(plain | {"after": [running.job.id]})
    await store.close()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Line]]:
    """The file and the history of the scenario."""
    folder, lines = tmp_path_factory.mktemp("original") / "data", list[Line]()
    asyncio.run(scenario(folder, lines))
    return folder / FILE_NAME, lines


@pytest.fixture
def evidence(original: tuple[Path, list[Line]], tmp_path: Path) -> Iterator[Evidence]:
    path, lines = original
    shutil.copyfile(path, tmp_path / FILE_NAME)
    connection = open_file(tmp_path / FILE_NAME)
    yield Evidence(connection, lines.copy())
    connection.close()


def test_a_store_and_a_history_in_order_are_not_accused(evidence: Evidence) -> None:
    assert evidence.wrong() == []


ONE_OUTCOME = "(SELECT job, fence FROM outcomes LIMIT 1)"
SPOILED_ROWS: dict[str, str] = {
    "quick_check": "UPDATE states SET priority = 9 WHERE number = 1",
    "J1 a job has a body and a moving row": "DELETE FROM jobs WHERE number = 3",
    "J3 an attempt is open exactly while its job runs under its fence": (
        f"DELETE FROM outcomes WHERE (job, fence) IN {ONE_OUTCOME}"
    ),
    "J3 an outcome and an attempt belong to a job": f"DELETE FROM attempts WHERE (job, fence) IN {ONE_OUTCOME}",
    "J4 a job's fence is that of its latest attempt": "UPDATE states SET fence = fence - 1 WHERE attempts = 1",
    "J4 no fence is of an epoch to come": "UPDATE store SET epoch = 0",
    "J5 a job is due only when its time has come": "UPDATE states SET run_at = run_at + 99999999 WHERE due = 1",
    "J6 a job ends as its last attempt ended": "UPDATE states SET status = 'dead' WHERE status = 'succeeded'",
    "J6 a result comes only with success": "UPDATE outcomes SET result = x'31' WHERE outcome = 'failed'",
    "J7 attempts are numbered and counted": "UPDATE attempts SET number = number + 1 WHERE number = 1",
    "J7 no more failures and crashes than attempts said": "UPDATE states SET crashes = 7 WHERE number = 2",
    "J11 an idempotency key and its job name each other": "DELETE FROM idempotency_keys",
    "J11 a dedupe key has one unfinished holder": (
        "DROP INDEX states_dedupe; UPDATE states SET dedupe_key = 'same' WHERE status IN ('queued', 'running')"
    ),
    "J17 a job returns in good time": "UPDATE outcomes SET run_at = run_at + 10000000 WHERE outcome = 'failed'",
    "counts are exact": "UPDATE counts SET jobs = jobs + 1",
    "a job waits for others exactly while it is blocked": "UPDATE waits SET open = 1 - open",
    "batches are counted exactly": "UPDATE batches SET canceled = canceled + 1",
    "no time is above the store's clock": "UPDATE store SET clock = clock - 10000000",
    "time never goes backwards": "UPDATE events SET at = at - 500000 WHERE batch = (SELECT max(batch) FROM events)",
    "a finished job is named among the endings": "UPDATE endings SET finished_at = finished_at + 1",
    "a tag belongs to a job of its tenant": "UPDATE tags SET tenant = 99",
}


@pytest.mark.parametrize("rule", SPOILED_ROWS)
def test_a_spoiled_row_is_reported(evidence: Evidence, rule: str) -> None:
    evidence.connection.execute(SPOILED_ROWS[rule])
    assert [text for text in evidence.wrong() if text.startswith(rule)]


def test_every_rule_is_known_to_fail() -> None:
    assert SPOILED_ROWS.keys() - {"quick_check"} == RULES.keys()


def _lose_event(name: str) -> Callable[[Evidence], object]:
    return lambda evidence: evidence.edit_events(lambda event, news: [] if event == name else None)


def _repeat_event(name: str) -> Callable[[Evidence], object]:
    return lambda evidence: evidence.edit_events(lambda event, news: [(event, news)] * 2 if event == name else None)


def _change_event(name: str, **values: Any) -> Callable[[Evidence], object]:
    return lambda evidence: evidence.edit_events(
        lambda event, news: [(event, news | values)] if event == name else None
    )


def _flip_retry(evidence: Evidence) -> None:
    evidence.edit_events(
        lambda event, news: [(event, news | {"will_retry": not news["will_retry"]})] if event == "job.failed" else None
    )


def _jump_the_line(evidence: Evidence) -> None:
    """A job that waited its turn is said to have been the more urgent one all the time."""
    line = [job for job in evidence.tables.jobs.values() if job.type == "line" and job.attempts and job.priority > 1]
    for job in line:
        evidence.connection.execute("UPDATE states SET priority = 1 WHERE id = ?", (job.id,))
    first = min(line, key=lambda job: job.fence)
    evidence.connection.execute("UPDATE states SET priority = 5 WHERE id = ?", (first.id,))
    evidence.edit_events(
        lambda name, news: (
            [(name, news | {"run_at": "2026-01-01T00:00:00Z"})]
            if name == "job.created" and news["type"] == "line"
            else None
        ),
        every=True,
    )


SPOILED_EVENTS: dict[str, Callable[[Evidence], object]] = {
    "J1 a job was made twice": _repeat_event("job.created"),
    "J5 a job moved before it was made": _lose_event("job.created"),
    "J5 an event tells": _change_event("job.started", attempts=77),
    "J5 a running job was started": _repeat_event("job.started"),
    "J4 the fence went from": _change_event("job.started", fence=0),
    "J7 a claim has no row": _change_event("job.started", fence=5),
    "J5 a queued job ended an attempt": _lose_event("job.started"),
    "J6 the attempt led to": lambda evidence: evidence.connection.execute(
        "UPDATE outcomes SET status_after = 'dead' WHERE outcome = 'succeeded'"
    ),
    "J6 the attempt ended at another time": lambda evidence: evidence.connection.execute(
        "UPDATE outcomes SET finished_at = finished_at + 1"
    ),
    "J6 the attempt": lambda evidence: evidence.connection.execute("UPDATE outcomes SET outcome = 'released'"),
    "J7 J8 a cap was not kept": _flip_retry,
    "J6 a succeeded job ended again": _repeat_event("job.completed"),
    "J5 a dead job died without a failure": _repeat_event("job.dead"),
    "J6 the end of the job": lambda evidence: evidence.edit_events(
        lambda name, news: [] if name == "job.dead" else None, every=True
    ),
    "J5 a queued job was retried": _repeat_event("job.retried"),
    "J5 a canceled job was canceled and nobody asked": _repeat_event("job.canceled"),
    "J17 it waits": lambda evidence: evidence.edit_events(
        lambda name, news: (
            [(name, news | {"run_at": "2099-01-01T00:00:00Z"})] if name == "job.failed" and news["will_retry"] else None
        )
    ),
    "J5 there is no such event": lambda evidence: evidence.edit_events(
        lambda name, news: [("job.exploded", news)] if name == "job.updated" else None
    ),
    "J5 the job .* its events lead to": lambda evidence: evidence.connection.execute(
        "UPDATE states SET failures = 1 WHERE failures = 0"
    ),
    "J5 the job .* waits for": lambda evidence: evidence.connection.execute("UPDATE states SET run_at = run_at + 1"),
    "J6 a doomed job went on": _lose_event("job.dead"),
    "J6 a doomed dead job was canceled": lambda evidence: evidence.edit_events(
        lambda name, news: [("job.canceled", news)] if name == "job.dead" else None
    ),
    "J6 a job that was to be canceled went back": lambda evidence: evidence.edit_events(
        lambda name, news: (
            [("job.updated", news | {"status": "queued"})]
            if name == "job.canceled" and news.get("cancel_requested")
            else None
        )
    ),
    "J6 the job .* ended 2 times": _repeat_event("job.completed"),
    "J17 a snoozed or released job waits": lambda evidence: evidence.connection.execute(
        "UPDATE outcomes SET run_at = run_at + 1 WHERE outcome = 'snoozed'"
    ),
    "J2 no event made the job": lambda evidence: evidence.connection.execute("DELETE FROM events"),
    "J2 events speak of a job that is not there": lambda evidence: evidence.connection.execute(
        "DELETE FROM states WHERE number = 1"
    ),
    "J13 the job": _jump_the_line,
}


@pytest.mark.parametrize("text", SPOILED_EVENTS)
def test_a_spoiled_log_is_reported(evidence: Evidence, text: str) -> None:
    SPOILED_EVENTS[text](evidence)
    wrong = evidence.wrong()
    assert any(re.match(text, line) for line in wrong), wrong[:5]


def _any(asked: Any, answer: Any) -> bool:
    return True


def _some(asked: Any, answer: Any) -> bool:
    return bool(answer)


def _lose_job(evidence: Evidence) -> None:
    evidence.connection.execute("DELETE FROM states WHERE number = 1; DELETE FROM jobs WHERE number = 1")


def _lose_part_of_a_batch(evidence: Evidence) -> None:
    number = evidence.number_of("enqueue", lambda asked, _: _unkeyed(asked) > 1)
    mark = next(o["mark"] for o in evidence.history.calls[number].asked["orders"] if not o["idempotency_key"])
    job = next(job for job in evidence.tables.jobs.values() if job.mark == mark)
    evidence.connection.execute("DELETE FROM states WHERE id = ?", (job.id,))


def _unkeyed(asked: dict[str, Any]) -> int:
    return sum(order["idempotency_key"] is None for order in asked["orders"])


def _double_key(evidence: Evidence) -> None:
    first, second = [job for job in evidence.tables.jobs.values() if job.idempotency_key is None][:2]
    evidence.connection.execute(
        "UPDATE jobs SET idempotency_key = 'twice' WHERE number IN (SELECT number FROM states WHERE id IN (?, ?))",
        (first.id, second.id),
    )
    evidence.connection.execute(
        "UPDATE states SET tenant = 1, type = 'plain' WHERE id IN (?, ?)", (first.id, second.id)
    )


def _claim_late(evidence: Evidence) -> None:
    number = evidence.number_of("claim", _some)
    mine = [line for line in evidence.lines if line[1] == number]
    evidence.drop(number)
    evidence.lines += mine


def _settle(said: str) -> Callable[[Evidence], str]:
    return lambda evidence: evidence.number_of("settle", lambda asked, _: asked["said"] == said)


def _settle_refused_while_running(evidence: Evidence) -> None:
    held = next(attempt for attempt in evidence.tables.attempts.values() if attempt.outcome is None)
    asked = {"id": held.job_id, "fence": held.fence, "said": "released", "text": None, "delay": None, "retry": True}
    evidence.lines += [("invoke", "1.999999", ["settle", asked]), ("fail", "1.999999", "lease_lost")]


def _settle_accepted_from_nobody(evidence: Evidence) -> None:
    asked = {"id": "x", "fence": 1, "said": "released", "text": None, "delay": None, "retry": True}
    said = {"status": "queued", "attempts": 1, "run_at": 0}
    evidence.lines += [("invoke", "1.999999", ["settle", asked]), ("ok", "1.999999", said)]


def _refuse_noted_progress(evidence: Evidence) -> None:
    evidence.refuse(next(attempt.stage for attempt in evidence.tables.attempts.values() if attempt.stage is not None))


def _steered(verb: str, count: int) -> Callable[[Evidence], object]:
    """As many more calls that were acknowledged, or none at all."""

    def tamper(evidence: Evidence) -> None:
        number = evidence.number_of(verb, _any)
        call = evidence.history.calls[number]
        for extra in range(count):
            evidence.lines += [("invoke", f"1.99{extra}", [verb, call.asked]), ("ok", f"1.99{extra}", call.answer)]
        if count == 0:
            for other in evidence.history.of(verb):
                if other.asked["id"] == call.asked["id"]:
                    evidence.drop(other.number)

    return tamper


SPOILED_HISTORY: dict[str, Callable[[Evidence], object]] = {
    "J1 the tenant": lambda evidence: evidence.lines.append(("note", "tenant", ["default", "another"])),
    "J1 the job .* was acknowledged and is lost": _lose_job,
    "J1 the job .* is not what call": lambda evidence: evidence.connection.execute("UPDATE jobs SET payload = x'31'"),
    "J1 the job .* was made by": lambda evidence: evidence.answer(
        evidence.number_of("enqueue", lambda asked, answer: not _created(asked, answer)),
        lambda said: [[job, True] for job, _ in said],
    ),
    "J2 nobody asked for the job": lambda evidence: evidence.drop(evidence.number_of("enqueue", _any)),
    "J2 the job .* is there although": lambda evidence: evidence.refuse(evidence.number_of("enqueue", _created)),
    "J2 the job .* is not what call": lambda evidence: evidence.connection.execute("UPDATE jobs SET payload = x'31'"),
    "J2 the order .* made two jobs": lambda evidence: evidence.connection.execute(
        "UPDATE jobs SET correlation_id = (SELECT correlation_id FROM jobs WHERE number = 1) WHERE number = 2"
    ),
    "J2 a part of the batch": _lose_part_of_a_batch,
    "J11 the key .* made two jobs": _double_key,
    "J11 call .* was given": lambda evidence: evidence.answer(
        evidence.number_of("enqueue", lambda asked, _: _unkeyed(asked) == 0),
        lambda said: [["another", created] for _, created in said],
    ),
    "J11 call .* was refused for another payload": lambda evidence: evidence.refuse(
        evidence.number_of("enqueue", lambda asked, answer: _unkeyed(asked) == 0 and not _created(asked, answer)),
        "idempotency_mismatch",
    ),
    "J12 claim": lambda evidence: evidence.ask(evidence.number_of("claim", _some), limit=0),
    "J3 claim .* was refused .* and still took": lambda evidence: evidence.refuse(evidence.number_of("claim", _some)),
    "J3 claim .* which it did not ask for": lambda evidence: evidence.ask(
        evidence.number_of("claim", _some), types=["absent"]
    ),
    "J3 claim .* was given": lambda evidence: evidence.answer(
        evidence.number_of("claim", _some), lambda said: said[1:]
    ),
    "J3 the job .* was handed out twice": lambda evidence: evidence.answer(
        evidence.number_of("claim", _some), lambda said: said * 2
    ),
    "J3 no claim of": lambda evidence: evidence.drop(evidence.number_of("claim", _some)),
    "J7 attempts and events of a start differ": _change_event("job.started", fence=5),
    "J4 claim .* got fence": _claim_late,
    "J4 settle .* was acknowledged and is lost": lambda evidence: evidence.connection.execute("DELETE FROM outcomes"),
    "J4 settle .* was acknowledged, and another outcome": lambda evidence: evidence.ask(
        _settle("succeeded")(evidence), text="another"
    ),
    "J4 settle .* was answered": lambda evidence: evidence.answer(
        _settle("snoozed")(evidence), lambda said: said | {"run_at": 1}
    ),
    "J4 the attempt .* and no call": lambda evidence: evidence.drop(_settle("failed")(evidence)),
    "J4 settle .* was refused with": lambda evidence: evidence.refuse(_settle("failed")(evidence), "job_not_found"),
    "J4 settle .* was refused while its attempt ran": _settle_refused_while_running,
    "J4 a settle of .* was accepted": _settle_accepted_from_nobody,
    "J4 the progress": _refuse_noted_progress,
    "J4 heartbeat .* was accepted": lambda evidence: evidence.ask(evidence.number_of("heartbeat", _any), fence=1),
    "J1 the job .* was steered": lambda evidence: evidence.ask(evidence.number_of("cancel", _any), id="absent"),
    "J5 .* retries of": _steered("retry", 5),
    "J5 nobody retried": _steered("retry", 0),
    "J5 nobody canceled": _steered("cancel", 0),
    "J5 .* cancels of": lambda evidence: evidence.edit_events(
        lambda name, news: [("job.updated", news)] if name == "job.canceled" else None, every=True
    ),
    "J1 the job .* is tagged": lambda evidence: evidence.connection.execute("UPDATE tags SET tag = 'another' || tag"),
    "the log has": _claim_late,
}


def _created(asked: Any, answer: Any) -> bool:
    return any(created for _, created in answer)


@pytest.mark.parametrize("text", SPOILED_HISTORY)
def test_a_spoiled_history_is_reported(evidence: Evidence, text: str) -> None:
    SPOILED_HISTORY[text](evidence)
    wrong = evidence.wrong()
    assert any(re.match(text, line) for line in wrong), wrong[:5]


def test_a_store_that_is_gone_is_reported(original: tuple[Path, list[Line]], tmp_path: Path) -> None:
    with pytest.raises(Broken, match="the store is gone"):
        check_file(tmp_path / FILE_NAME, history_of(original[1]))
