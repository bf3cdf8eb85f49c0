"""The checker of SQLite stores can fail: it reports each error that is planted in a correct store or history."""

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
from tests.faults.recorded_calls import RecordedJobs, attempt_of, done
from tests.faults.sqlite_rules import RULES, TIME_ORDER
from tests.faults.tables import Tables, open_file, read_tables

LEASE_SECONDS = 10.0


Edit = Callable[[str, dict[str, Any]], list[tuple[str, dict[str, Any]]] | None]


class Recording:
    """A store file and its history, in which tests plant errors."""

    def __init__(self, connection: apsw.Connection, lines: list[Line]) -> None:
        self.connection = connection
        self.lines = lines
        self.tables: Tables = read_tables(connection)
        self.history: History = history_of(lines)
        connection.execute("PRAGMA ignore_check_constraints = ON; DROP TRIGGER states_move")

    def wrong(self) -> list[str]:
        """Return the violations that the checker reports."""
        self.connection.execute("PRAGMA ignore_check_constraints = OFF")
        return violations(self.connection, history_of(self.lines))

    def number_of(self, verb: str, matches: Callable[[dict[str, Any], Any], bool]) -> str:
        """Return the number of the first acknowledged call of an operation that matches."""
        return next(
            call.number for call in self.history.of(verb) if call.acked and matches(call.arguments, call.answer)
        )

    def drop(self, number: str) -> None:
        """Remove a call from the history."""
        self.lines[:] = [line for line in self.lines if line[1] != number]

    def refuse(self, number: str, code: str = "lease_lost") -> None:
        """Replace the result of a call by an error."""
        self._replace("ok", number, lambda content: ("fail", number, code))

    def answer(self, number: str, change: Callable[[Any], Any]) -> None:
        """Change the result of a call."""
        self._replace("ok", number, lambda content: ("ok", number, change(content)))

    def ask(self, number: str, **values: Any) -> None:
        """Change the arguments of a call."""
        self._replace("invoke", number, lambda content: ("invoke", number, [content[0], content[1] | values]))

    def _replace(self, what: str, number: str, change: Callable[[Any], Line]) -> None:
        self.lines[:] = [
            change(content) if (w, n) == (what, number) else (w, n, content) for w, n, content in self.lines
        ]

    def edit_events(self, change: Edit, *, every: bool = False) -> None:
        """Rewrite the first event for which `change` returns a replacement, or every such event."""
        edited = False
        rows = list(self.connection.execute("SELECT tenant, batch, entries FROM events ORDER BY batch"))
        for tenant, batch, entries in rows:
            events: list[Any] = []
            for name, data in msgspec.json.decode(entries):
                replacement = change(name, data) if every or not edited else None
                edited = edited or replacement is not None
                events += [(name, data)] if replacement is None else replacement
            values = (msgspec.json.encode(events), tenant, batch)
            self.connection.execute("UPDATE events SET entries = ? WHERE tenant = ? AND batch = ?", values)
        assert edited, "no event fits"


async def scenario(folder: Path, lines: list[Line]) -> None:
    """Let everything that can happen to a job happen once."""
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
            await recorded.settle(attempt_of(claim), done)
    await recorded.enqueue(plain, plain, plain)
    keyed = plain | {"idempotency_key": "k", "payload": 1}
    for options in (keyed, keyed, keyed | {"payload": 2}):
        await recorded.enqueue(options)
    for _ in range(2):
        await recorded.enqueue(plain | {"dedupe_key": "d", "tags": ["t"]})
    clock.advance(seconds=1)
    completed, failed, snoozed, released, dead = [attempt_of(claim) for claim in await recorded.claim("plain", limit=5)]
    await recorded.beat(completed)
    content = await recorded.settle(completed, done)
    await recorded.settle(completed, lambda number: content)
    await recorded.settle(failed, lambda number: Failed(error=number))
    await recorded.settle(snoozed, lambda number: Snooze(delay=5))
    await recorded.settle(released, lambda number: Release())
    await recorded.settle(dead, lambda number: Failed(error=number, retry=False))
    await recorded.retry(tenant, dead.job_id)
    await recorded.change(tenant, dead.job_id, priority=4, run_at=clock.micros())
    (waiting,) = await recorded.enqueue(plain)
    await recorded.cancel(tenant, waiting.job.id)
    (to_cancel,) = await recorded.claim("plain", limit=1)
    await recorded.cancel(tenant, to_cancel.job.id)
    await recorded.settle(attempt_of(to_cancel), lambda number: Release())
    clock.advance(seconds=LEASE_SECONDS)
    lost_attempts = [attempt_of(claim) for claim in await recorded.claim("plain", limit=2)]
    clock.advance(seconds=LEASE_SECONDS)
    await recorded.jobs.maintain()
    await recorded.settle(lost_attempts[0], done)
    await recorded.enqueue({"tenant": tenant, "type": "flaky"})
    await recorded.claim("flaky", limit=1)
    clock.advance(seconds=LEASE_SECONDS)
    await recorded.jobs.maintain()
    (running,) = await recorded.claim("plain", limit=1)
    await recorded.beat(attempt_of(running))
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
def recording(original: tuple[Path, list[Line]], tmp_path: Path) -> Iterator[Recording]:
    path, lines = original
    shutil.copyfile(path, tmp_path / FILE_NAME)
    connection = open_file(tmp_path / FILE_NAME)
    yield Recording(connection, lines.copy())
    connection.close()


def test_a_correct_store_and_history_have_no_violations(recording: Recording) -> None:
    assert recording.wrong() == []


ONE_OUTCOME = "(SELECT job, fence FROM outcomes LIMIT 1)"
PLANTED_IN_ROWS: dict[str, str] = {
    "quick_check": "UPDATE states SET priority = 9 WHERE number = 1",
    "J1 a job has a row in jobs and in states": "DELETE FROM jobs WHERE number = 3",
    "J3 an attempt is open exactly while its job runs under its fence": (
        f"DELETE FROM outcomes WHERE (job, fence) IN {ONE_OUTCOME}"
    ),
    "J3 an outcome and an attempt belong to a job": f"DELETE FROM attempts WHERE (job, fence) IN {ONE_OUTCOME}",
    "J4 a job's fence is that of its latest attempt": "UPDATE states SET fence = fence - 1 WHERE attempts = 1",
    "J4 no fence is of a future epoch": "UPDATE store SET epoch = 0",
    "J5 a job is due only when its time has come": "UPDATE states SET run_at = run_at + 99999999 WHERE due = 1",
    "J6 a job ends as its last attempt ended": "UPDATE states SET status = 'dead' WHERE status = 'succeeded'",
    "J6 a result comes only with success": "UPDATE outcomes SET result = x'31' WHERE outcome = 'failed'",
    "J7 attempts are numbered and counted": "UPDATE attempts SET number = number + 1 WHERE number = 1",
    "J7 failures and crashes do not exceed the outcomes": "UPDATE states SET crashes = 7 WHERE number = 2",
    "J11 an idempotency key and its job name each other": "DELETE FROM idempotency_keys",
    "J11 a dedupe key has one unfinished holder": (
        "DROP INDEX states_dedupe; UPDATE states SET dedupe_key = 'same' WHERE status IN ('queued', 'running')"
    ),
    "J17 a job returns within its delay": "UPDATE outcomes SET run_at = run_at + 10000000 WHERE outcome = 'failed'",
    "counts are exact": "UPDATE counts SET jobs = jobs + 1",
    "a job waits for others exactly while it is blocked": "UPDATE waits SET open = 1 - open",
    "batches are counted exactly": "UPDATE batches SET canceled = canceled + 1",
    "no time is above the store's clock": "UPDATE store SET clock = clock - 10000000",
    "jobs are created in the order of their numbers, and attempts do not end before they begin": (
        "UPDATE states SET lease_expires_at = started_at - 1 WHERE status = 'running'"
    ),
    TIME_ORDER: "UPDATE events SET at = at - 500000 WHERE batch = (SELECT max(batch) FROM events)",
    "a finished job is listed in the endings": "UPDATE endings SET finished_at = finished_at + 1",
    "a tag belongs to a job of its tenant": "UPDATE tags SET tenant = 99",
}


@pytest.mark.parametrize("rule", PLANTED_IN_ROWS)
def test_an_error_in_a_row_is_reported(recording: Recording, rule: str) -> None:
    recording.connection.execute(PLANTED_IN_ROWS[rule])
    assert [text for text in recording.wrong() if text.startswith(rule)]


def test_every_rule_has_a_planted_error() -> None:
    assert PLANTED_IN_ROWS.keys() - {"quick_check"} == RULES.keys()


def _lose_event(name: str) -> Callable[[Recording], object]:
    return lambda recording: recording.edit_events(lambda event, data: [] if event == name else None)


def _repeat_event(name: str) -> Callable[[Recording], object]:
    return lambda recording: recording.edit_events(lambda event, data: [(event, data)] * 2 if event == name else None)


def _change_event(name: str, **values: Any) -> Callable[[Recording], object]:
    return lambda recording: recording.edit_events(
        lambda event, data: [(event, data | values)] if event == name else None
    )


def _flip_retry(recording: Recording) -> None:
    recording.edit_events(
        lambda event, data: [(event, data | {"will_retry": not data["will_retry"]})] if event == "job.failed" else None
    )


def _start_out_of_turn(recording: Recording) -> None:
    """Raise the priority of jobs that started later, as if they had always been more urgent."""
    line = [job for job in recording.tables.jobs.values() if job.type == "line" and job.attempts and job.priority > 1]
    for job in line:
        recording.connection.execute("UPDATE states SET priority = 1 WHERE id = ?", (job.id,))
    first = min(line, key=lambda job: job.fence)
    recording.connection.execute("UPDATE states SET priority = 5 WHERE id = ?", (first.id,))
    recording.edit_events(
        lambda name, data: (
            [(name, data | {"run_at": "2026-01-01T00:00:00Z"})]
            if name == "job.created" and data["type"] == "line"
            else None
        ),
        every=True,
    )


PLANTED_IN_EVENTS: dict[str, Callable[[Recording], object]] = {
    "J1 a job was created twice": _repeat_event("job.created"),
    "J5 a job changed before it was created": _lose_event("job.created"),
    "J5 an event has": _change_event("job.started", attempts=77),
    "J5 a running job was started": _repeat_event("job.started"),
    "J4 the fence went from": _change_event("job.started", fence=0),
    "J7 a claim has no row": _change_event("job.started", fence=5),
    "J5 a queued job ended an attempt": _lose_event("job.started"),
    "J6 the attempt led to": lambda recording: recording.connection.execute(
        "UPDATE outcomes SET status_after = 'dead' WHERE outcome = 'succeeded'"
    ),
    "J6 the attempt ended at another time": lambda recording: recording.connection.execute(
        "UPDATE outcomes SET finished_at = finished_at + 1"
    ),
    "J6 the attempt": lambda recording: recording.connection.execute("UPDATE outcomes SET outcome = 'released'"),
    "J7 J8 a cap was not kept": _flip_retry,
    "J6 a succeeded job ended again": _repeat_event("job.completed"),
    "J5 a dead job died without a failure": _repeat_event("job.dead"),
    "J6 the end of the job": lambda recording: recording.edit_events(
        lambda name, data: [] if name == "job.dead" else None, every=True
    ),
    "J5 a queued job was retried": _repeat_event("job.retried"),
    "J5 a canceled job was canceled without a request": _repeat_event("job.canceled"),
    "J17 the delay is": lambda recording: recording.edit_events(
        lambda name, data: (
            [(name, data | {"run_at": "2099-01-01T00:00:00Z"})] if name == "job.failed" and data["will_retry"] else None
        )
    ),
    "J5 unknown event": lambda recording: recording.edit_events(
        lambda name, data: [("job.exploded", data)] if name == "job.updated" else None
    ),
    "J5 the job .* its events lead to": lambda recording: recording.connection.execute(
        "UPDATE states SET failures = 1 WHERE failures = 0"
    ),
    "J5 the job .* waits for": lambda recording: recording.connection.execute("UPDATE states SET run_at = run_at + 1"),
    "J6 a job continued after its last attempt": _lose_event("job.dead"),
    "J6 a dead job was canceled after": lambda recording: recording.edit_events(
        lambda name, data: [("job.canceled", data)] if name == "job.dead" else None
    ),
    "J6 a job with a requested cancel returned": lambda recording: recording.edit_events(
        lambda name, data: (
            [("job.updated", data | {"status": "queued"})]
            if name == "job.canceled" and data.get("cancel_requested")
            else None
        )
    ),
    "J6 the job .* ended 2 times": _repeat_event("job.completed"),
    "J17 a snoozed or released job waits": lambda recording: recording.connection.execute(
        "UPDATE outcomes SET run_at = run_at + 1 WHERE outcome = 'snoozed'"
    ),
    "J2 no event created the job": lambda recording: recording.connection.execute("DELETE FROM events"),
    "J2 events refer to a missing job": lambda recording: recording.connection.execute(
        "DELETE FROM states WHERE number = 1"
    ),
    "J13 the job": _start_out_of_turn,
}


@pytest.mark.parametrize("text", PLANTED_IN_EVENTS)
def test_an_error_in_the_event_log_is_reported(recording: Recording, text: str) -> None:
    PLANTED_IN_EVENTS[text](recording)
    wrong = recording.wrong()
    assert any(re.match(text, line) for line in wrong), wrong[:5]


def _any(arguments: Any, answer: Any) -> bool:
    return True


def _some(arguments: Any, answer: Any) -> bool:
    return bool(answer)


def _lose_job(recording: Recording) -> None:
    recording.connection.execute("DELETE FROM states WHERE number = 1; DELETE FROM jobs WHERE number = 1")


def _lose_part_of_a_batch(recording: Recording) -> None:
    number = recording.number_of("enqueue", lambda arguments, _: _unkeyed(arguments) > 1)
    mark = next(o["mark"] for o in recording.history.calls[number].arguments["orders"] if not o["idempotency_key"])
    job = next(job for job in recording.tables.jobs.values() if job.mark == mark)
    recording.connection.execute("DELETE FROM states WHERE id = ?", (job.id,))


def _unkeyed(arguments: dict[str, Any]) -> int:
    return sum(order["idempotency_key"] is None for order in arguments["orders"])


def _double_key(recording: Recording) -> None:
    first, second = [job for job in recording.tables.jobs.values() if job.idempotency_key is None][:2]
    recording.connection.execute(
        "UPDATE jobs SET idempotency_key = 'twice' WHERE number IN (SELECT number FROM states WHERE id IN (?, ?))",
        (first.id, second.id),
    )
    recording.connection.execute(
        "UPDATE states SET tenant = 1, type = 'plain' WHERE id IN (?, ?)", (first.id, second.id)
    )


def _claim_late(recording: Recording) -> None:
    number = recording.number_of("claim", _some)
    claim_lines = [line for line in recording.lines if line[1] == number]
    recording.drop(number)
    recording.lines += claim_lines


def _settle(content: str) -> Callable[[Recording], str]:
    return lambda recording: recording.number_of("settle", lambda arguments, _: arguments["outcome"] == content)


def _settle_refused_while_running(recording: Recording) -> None:
    open_attempt = next(attempt for attempt in recording.tables.attempts.values() if attempt.outcome is None)
    arguments = {
        "id": open_attempt.job_id,
        "fence": open_attempt.fence,
        "outcome": "released",
        "text": None,
        "delay": None,
        "retry": True,
    }
    recording.lines += [("invoke", "1.999999", ["settle", arguments]), ("fail", "1.999999", "lease_lost")]


def _settle_accepted_from_nobody(recording: Recording) -> None:
    arguments = {"id": "x", "fence": 1, "outcome": "released", "text": None, "delay": None, "retry": True}
    content = {"status": "queued", "attempts": 1, "run_at": 0}
    recording.lines += [("invoke", "1.999999", ["settle", arguments]), ("ok", "1.999999", content)]


def _refuse_noted_progress(recording: Recording) -> None:
    recording.refuse(next(attempt.stage for attempt in recording.tables.attempts.values() if attempt.stage is not None))


def _repeat_calls(verb: str, count: int) -> Callable[[Recording], object]:
    """Add `count` acknowledged calls, or remove all of them if it is 0."""

    def tamper(recording: Recording) -> None:
        number = recording.number_of(verb, _any)
        call = recording.history.calls[number]
        for extra in range(count):
            recording.lines += [("invoke", f"1.99{extra}", [verb, call.arguments]), ("ok", f"1.99{extra}", call.answer)]
        if count == 0:
            for other in recording.history.of(verb):
                if other.arguments["id"] == call.arguments["id"]:
                    recording.drop(other.number)

    return tamper


PLANTED_IN_HISTORY: dict[str, Callable[[Recording], object]] = {
    "J1 the tenant": lambda recording: recording.lines.append(("note", "tenant", ["default", "another"])),
    "J1 the job .* was acknowledged and is lost": _lose_job,
    "J1 the job .* is not what call": lambda recording: recording.connection.execute("UPDATE jobs SET payload = x'31'"),
    "J1 the job .* was created by": lambda recording: recording.answer(
        recording.number_of("enqueue", lambda arguments, answer: not _created(arguments, answer)),
        lambda content: [[job, True] for job, _ in content],
    ),
    "J2 no call enqueued the job": lambda recording: recording.drop(recording.number_of("enqueue", _any)),
    "J2 the job .* exists although": lambda recording: recording.refuse(recording.number_of("enqueue", _created)),
    "J2 the job .* is not what call": lambda recording: recording.connection.execute("UPDATE jobs SET payload = x'31'"),
    "J2 the order .* created two jobs": lambda recording: recording.connection.execute(
        "UPDATE jobs SET correlation_id = (SELECT correlation_id FROM jobs WHERE number = 1) WHERE number = 2"
    ),
    "J2 only a part of the batch": _lose_part_of_a_batch,
    "J11 the key .* created two jobs": _double_key,
    "J11 call .* received": lambda recording: recording.answer(
        recording.number_of("enqueue", lambda arguments, _: _unkeyed(arguments) == 0),
        lambda content: [["another", created] for _, created in content],
    ),
    "J11 call .* was refused for another payload": lambda recording: recording.refuse(
        recording.number_of(
            "enqueue", lambda arguments, answer: _unkeyed(arguments) == 0 and not _created(arguments, answer)
        ),
        "idempotency_mismatch",
    ),
    "J12 claim": lambda recording: recording.ask(recording.number_of("claim", _some), limit=0),
    "J3 claim .* was refused .* and still took": lambda recording: recording.refuse(
        recording.number_of("claim", _some)
    ),
    "J3 claim .* which does not match it": lambda recording: recording.ask(
        recording.number_of("claim", _some), types=["absent"]
    ),
    "J3 claim .* received": lambda recording: recording.answer(
        recording.number_of("claim", _some), lambda content: content[1:]
    ),
    "J3 the job .* was handed out twice": lambda recording: recording.answer(
        recording.number_of("claim", _some), lambda content: content * 2
    ),
    "J3 no claim of": lambda recording: recording.drop(recording.number_of("claim", _some)),
    "J7 attempts and events of a start differ": _change_event("job.started", fence=5),
    "J4 claim .* got fence": _claim_late,
    "J4 settle .* was acknowledged and is lost": lambda recording: recording.connection.execute("DELETE FROM outcomes"),
    "J4 settle .* was acknowledged, and the store has another outcome": lambda recording: recording.ask(
        _settle("succeeded")(recording), text="another"
    ),
    "J4 settle .* was answered": lambda recording: recording.answer(
        _settle("snoozed")(recording), lambda content: content | {"run_at": 1}
    ),
    "J4 the attempt .* and no call": lambda recording: recording.drop(_settle("failed")(recording)),
    "J4 settle .* was refused with": lambda recording: recording.refuse(_settle("failed")(recording), "job_not_found"),
    "J4 settle .* was refused while its attempt ran": _settle_refused_while_running,
    "J4 a settle of .* was accepted": _settle_accepted_from_nobody,
    "J4 the progress": _refuse_noted_progress,
    "J4 heartbeat .* was accepted": lambda recording: recording.ask(recording.number_of("heartbeat", _any), fence=1),
    "J1 the job .* received": lambda recording: recording.ask(recording.number_of("cancel", _any), id="absent"),
    "J5 .* retries of": _repeat_calls("retry", 5),
    "J5 the log has a retry": _repeat_calls("retry", 0),
    "J5 the log has a cancel": _repeat_calls("cancel", 0),
    "J5 .* cancels of": lambda recording: recording.edit_events(
        lambda name, data: [("job.updated", data)] if name == "job.canceled" else None, every=True
    ),
    "J1 the job .* is tagged": lambda recording: recording.connection.execute("UPDATE tags SET tag = 'another' || tag"),
    "the log has": _claim_late,
}


def _created(arguments: Any, answer: Any) -> bool:
    return any(created for _, created in answer)


@pytest.mark.parametrize("text", PLANTED_IN_HISTORY)
def test_an_error_in_the_history_is_reported(recording: Recording, text: str) -> None:
    PLANTED_IN_HISTORY[text](recording)
    wrong = recording.wrong()
    assert any(re.match(text, line) for line in wrong), wrong[:5]


def test_a_missing_store_is_reported(original: tuple[Path, list[Line]], tmp_path: Path) -> None:
    with pytest.raises(Broken, match="the store is missing"):
        check_file(tmp_path / FILE_NAME, history_of(original[1]))
