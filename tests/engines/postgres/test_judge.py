"""`judge` in SQL equals `judge` in Python: the same job and outcome lead to the same verdict.

Only the time of the next attempt may differ. Python multiplies by the factor once for every failure and rounds each
time; SQL takes a power, and multiplies in another order. Both truncate to microseconds, so two values on both
sides of a whole number end one microsecond apart, and the rounding of each step adds up in long delays.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.jobs.checks import ATTEMPTS_MAX, DELAY_MICROS_MAX, SECONDS_MAX, TIMESTAMP_MAX
from ingot.jobs.lifecycle import Verdict, backoff_micros, judge
from ingot.jobs.model import Backoff, Definition, Done, Failed, Lost, Outcome, Release, Settle, Snooze
from ingot.jobs.ports import MaintainJobs, SettleJobs
from ingot.kernel.errors import IngotError
from ingot.kernel.ids import new_id
from tests.factories import LEASE_SECONDS, Bench, open_bench
from tests.postgres import ChanceClock, database_for

COUNT_MAX: Final = 1_000_000
ROUNDING: Final = 2.0**-52  # The maximum relative error of one multiplication, on each side.
OUTCOME_NAMES: Final[dict[type, str]] = {Done: "succeeded", Snooze: "snoozed", Release: "released", Lost: "lost"}
NIL: Final = "00000000-0000-0000-0000-000000000000"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A running job and the outcome of its attempt."""

    failures: int
    crashes: int
    max_attempts: int
    cancel_requested: bool
    outcome: Outcome | Lost
    definition: Definition
    now: int = 0
    spread: float = 0.0

    def verdict(self) -> Verdict:
        """The verdict of Python."""
        return judge(self, self.outcome, self.definition, now=self.now, random_fraction=self.spread)

    def rounding(self) -> int:
        """The permitted difference of the time of the next attempt, in microseconds."""
        wait = backoff_micros(self.definition.backoff, self.failures + 1, random_fraction=self.spread)
        return 1 + int(2 * ROUNDING * wait * (self.failures + 4))


# Smaller first delays that grow for very long are covered by the last test.
first_seconds = st.just(0.0) | st.floats(1e-4, SECONDS_MAX) | st.sampled_from([1.0, 0.5, 1e-3, 3600.0])
factors = st.floats(1, 4) | st.floats(1, 1.01) | st.floats(1, SECONDS_MAX) | st.sampled_from([1.0, 2.0, SECONDS_MAX])
max_seconds = st.floats(0, SECONDS_MAX) | st.sampled_from([0.0, 3600.0, SECONDS_MAX])
backoffs = st.builds(Backoff, first_seconds=first_seconds, factor=factors, max_seconds=max_seconds)
spreads = st.integers(0, 2**53 - 1).map(lambda number: number / 2**53)  # Values that random() can return.
failures = st.integers(0, 8) | st.integers(0, ATTEMPTS_MAX - 1)
outcomes = st.one_of(
    st.just(Done()),
    st.builds(
        Failed,
        error=st.sampled_from(["broken", "", "\u00e9\U0001f600'\""]),
        retry=st.booleans(),
        timed_out=st.booleans(),
    ),
    st.builds(Snooze, delay=st.integers(0, DELAY_MICROS_MAX)),
    st.just(Release()),
    st.just(Lost()),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A case whose counters are often near their limits."""
    failed, crashed = draw(failures), draw(st.integers(0, 5) | st.integers(0, COUNT_MAX))
    near_attempts = st.integers(max(1, failed - 1), failed + 3)
    near_crashes = st.integers(max(1, crashed - 1), crashed + 3)
    return Case(
        failures=failed,
        crashes=crashed,
        max_attempts=draw(near_attempts | st.integers(1, ATTEMPTS_MAX)),
        cancel_requested=draw(st.booleans()),
        outcome=draw(outcomes),
        definition=Definition(
            type="noop", crash_cap=draw(near_crashes | st.integers(1, ATTEMPTS_MAX)), backoff=draw(backoffs)
        ),
        now=draw(st.integers(0, TIMESTAMP_MAX)),
        spread=draw(spreads),
    )


JUDGE: Final = """
    SELECT v.* FROM unnest(
        $1::text[], $2::boolean[], $3::bigint[], $4::text[], $5::integer[], $6::integer[], $7::integer[], $8::boolean[],
        $9::integer[], $10::double precision[], $11::double precision[], $12::double precision[], $13::bigint[],
        $14::double precision[]
    ) WITH ORDINALITY AS c (
        outcome, retry, delay, error, failures, crashes, max_attempts, cancel_requested, crash_cap, first_seconds,
        factor, max_seconds, now, spread, ordinal
    )
    CROSS JOIN LATERAL ingot.judge(
        c.outcome, c.retry, c.delay, c.error, c.failures, c.crashes, c.max_attempts, c.cancel_requested, c.crash_cap,
        c.first_seconds, c.factor, c.max_seconds, c.now, c.spread
    ) AS v
    ORDER BY c.ordinal
"""
BACKOFF: Final = """
    SELECT ingot.backoff(c.first_seconds, c.factor, c.max_seconds, c.failures, c.spread) FROM unnest(
        $1::double precision[], $2::double precision[], $3::double precision[], $4::integer[], $5::double precision[]
    ) WITH ORDINALITY AS c (first_seconds, factor, max_seconds, failures, spread, ordinal)
    ORDER BY c.ordinal
"""


def outcome_name(outcome: Outcome | Lost) -> str:
    """The name that SQL has for an outcome."""
    if isinstance(outcome, Failed):
        return "timed_out" if outcome.timed_out else "failed"
    return OUTCOME_NAMES[type(outcome)]


def columns(examples: list[Case]) -> list[list[Any]]:
    """The cases as the array arguments of the query."""
    failed = [case.outcome if isinstance(case.outcome, Failed) else None for case in examples]
    return [
        [outcome_name(case.outcome) for case in examples],
        [failure is None or failure.retry for failure in failed],
        [case.outcome.delay if isinstance(case.outcome, Snooze) else 0 for case in examples],
        [failure and failure.error for failure in failed],
        [case.failures for case in examples],
        [case.crashes for case in examples],
        [case.max_attempts for case in examples],
        [case.cancel_requested for case in examples],
        [case.definition.crash_cap for case in examples],
        [float(case.definition.backoff.first_seconds) for case in examples],
        [float(case.definition.backoff.factor) for case in examples],
        [float(case.definition.backoff.max_seconds) for case in examples],
        [case.now for case in examples],
        [case.spread for case in examples],
    ]


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Raw]:
    connection = await asyncpg.connect((await database_for(tmp_path)).owner_url)
    yield connection
    await connection.close()


# One connection serves all examples, each with many cases: at least 750 in total. A failure names its case, so
# shrinking the list, which takes minutes, would not help.
many = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


@many
@given(examples=st.lists(cases(), min_size=25, max_size=40))
async def test_sql_and_python_reach_the_same_verdict(owner: Raw, examples: list[Case]) -> None:
    rows = await owner.fetch(JUDGE, *columns(examples))
    for case, row in zip(examples, rows, strict=True):
        verdict = case.verdict()
        expected = (verdict.status, verdict.failures, verdict.crashes, verdict.error)
        assert expected == (row["status"], row["failures_after"], row["crashes_after"], row["error"]), case
        if verdict.run_at is not None:
            exact = not isinstance(case.outcome, Failed)
            assert abs(verdict.run_at - row["run_at_after"]) <= (0 if exact else case.rounding()), case


async def test_sql_covers_every_outcome(owner: Raw) -> None:
    definition = Definition(type="noop", crash_cap=1)
    timed_out = Failed(error="slow", timed_out=True)
    ended: list[Outcome | Lost] = [Done(), Failed(error="no"), timed_out, Snooze(delay=5), Release(), Lost()]
    examples = [
        Case(failures=0, crashes=0, max_attempts=1, cancel_requested=False, outcome=outcome, definition=definition)
        for outcome in ended
    ]
    examples += [msgspec.structs.replace(case, cancel_requested=True) for case in examples]
    rows = await owner.fetch(JUDGE, *columns(examples))
    assert [row["status"] for row in rows[:6]] == ["succeeded", "dead", "dead", "queued", "queued", "dead"]
    assert [row["status"] for row in rows[6:]] == ["succeeded"] + ["canceled"] * 5
    assert [(row["failures_after"], row["crashes_after"]) for row in rows[:6]] == [
        (0, 0),
        (1, 0),
        (1, 0),
        (0, 0),
        (0, 0),
        (0, 1),
    ]
    assert {(row["failures_after"], row["crashes_after"]) for row in rows[6:]} == {(0, 0)}


@many
@given(
    examples=st.lists(
        st.tuples(backoffs, st.integers(1, 8) | st.integers(1, ATTEMPTS_MAX), spreads), min_size=25, max_size=40
    ),
)
async def test_sql_and_python_compute_the_same_backoff(owner: Raw, examples: list[tuple[Backoff, int, float]]) -> None:
    rows = await owner.fetch(
        BACKOFF,
        [float(backoff.first_seconds) for backoff, _, _ in examples],
        [float(backoff.factor) for backoff, _, _ in examples],
        [float(backoff.max_seconds) for backoff, _, _ in examples],
        [number for _, number, _ in examples],
        [spread for _, _, spread in examples],
    )
    for (backoff, number, spread), (waits,) in zip(examples, rows, strict=True):
        expected = backoff_micros(backoff, number, random_fraction=spread)
        assert abs(expected - waits) <= 1 + int(2 * ROUNDING * expected * (number + 4)), (backoff, number, spread)
        assert 0 <= waits <= 1_000_000 * backoff.max_seconds


@pytest.mark.parametrize("backoff", [Backoff(), Backoff(factor=SECONDS_MAX), Backoff(first_seconds=0.1, factor=1.001)])
async def test_backoffs_up_to_an_hour_differ_by_at_most_one_microsecond(owner: Raw, backoff: Backoff) -> None:
    numbers = range(1, ATTEMPTS_MAX + 1)
    values = ([value] * ATTEMPTS_MAX for value in msgspec.structs.astuple(backoff))
    rows = await owner.fetch(BACKOFF, *values, numbers, [0.125] * ATTEMPTS_MAX)
    expected = [backoff_micros(backoff, number, random_fraction=0.125) for number in numbers]
    assert [number for number, row in zip(numbers, rows, strict=True) if abs(row[0] - expected[number - 1]) > 1] == []


# -- through the store --------------------------------------------------------------------------------------


class JudgeStore:
    """A store into which running jobs with any counters can be inserted."""

    def __init__(self, bench: Bench, clock: ChanceClock, owner: Raw) -> None:
        assert isinstance(bench.store, PostgresStore)
        self.bench = bench
        self.store = bench.store
        self.clock = clock
        self.owner = owner

    async def put(self, examples: list[Case]) -> list[str]:
        """Insert a running job with its own type for each case; lost ones have an expired lease."""
        ids = [new_id() for _ in examples]
        tenant, now, count = self.bench.tenant, self.clock.micros(), len(examples)
        await self.owner.executemany(
            "INSERT INTO ingot.records (kind, tenant, name, version, body, created_at, updated_at)"
            " VALUES ('definition', $1, $2, 1, $3, 0, 0)",
            [
                (NIL, f"t-{id}", msgspec.json.encode(case.definition).decode())
                for id, case in zip(ids, examples, strict=True)
            ],
        )
        await self.owner.execute(
            "INSERT INTO ingot.jobs (id, tenant, type, payload, created_at, source, depth)"
            " SELECT id, $2, 't-' || id, 'null', $3, 'manual', 0 FROM unnest($1::uuid[]) AS u (id)",
            ids,
            tenant,
            now,
        )
        await self.owner.execute(
            "INSERT INTO ingot.leases (id, tenant, type, limit_key, priority, run_at, attempts, failures, crashes,"
            " max_attempts, fence, worker_id, started_at, expires_at, cancel_requested, changed_by)"
            " SELECT id, $2, 't-' || id, '', 3, 0, 1, failures, crashes, max_attempts, 7, 'w', $3, expires_at,"
            " canceled, pg_current_xact_id() FROM unnest($1::uuid[], $4::integer[], $5::integer[], $6::integer[],"
            " $7::bigint[], $8::boolean[]) AS u (id, failures, crashes, max_attempts, expires_at, canceled)",
            ids,
            tenant,
            now,
            [case.failures for case in examples],
            [case.crashes for case in examples],
            [case.max_attempts for case in examples],
            [now if isinstance(case.outcome, Lost) else now + 10**15 for case in examples],
            [case.cancel_requested for case in examples],
        )
        assert count == await self.owner.fetchval("SELECT count(*) FROM ingot.leases WHERE id = ANY ($1)", ids)
        return ids


@pytest.fixture
async def judge_store(tmp_path: Path) -> AsyncIterator[JudgeStore]:
    clock = ChanceClock()
    async with open_bench("postgres", tmp_path / "data", clock) as bench:
        owner = await asyncpg.connect((await database_for(tmp_path / "data")).owner_url)
        yield JudgeStore(bench, clock, owner)
        await owner.close()


@many
@given(examples=st.lists(cases(), min_size=20, max_size=30), chance=spreads)
async def test_jobs_in_the_store_change_according_to_the_verdict(
    judge_store: JudgeStore, examples: list[Case], chance: float
) -> None:
    judge_store.clock.chance = chance
    judge_store.clock.advance(seconds=LEASE_SECONDS)
    now = judge_store.clock.micros()
    examples = [msgspec.structs.replace(case, now=now, spread=chance) for case in examples]
    ids = await judge_store.put(examples)
    settles = [
        Settle(job_id=id, fence=7, outcome=case.outcome)
        for id, case in zip(ids, examples, strict=True)
        if not isinstance(case.outcome, Lost)
    ]
    answers = await judge_store.store.run(SettleJobs(settles=settles)) if settles else []
    assert [answer for answer in answers if isinstance(answer, IngotError)] == []
    judge_store.store.lane_cache.record_expiry(now)
    await judge_store.store.run(MaintainJobs())
    statuses = {answer.job_id: answer.status for answer in answers if not isinstance(answer, IngotError)}
    for id, case in zip(ids, examples, strict=True):
        job = await judge_store.bench.jobs.get(judge_store.bench.tenant, id)
        verdict = case.verdict()
        assert (verdict.status, verdict.failures, verdict.crashes) == (job.status, job.failures, job.crashes), case
        assert statuses.get(id, verdict.status) == verdict.status
        (attempt,) = await judge_store.bench.jobs.attempts(judge_store.bench.tenant, id)
        assert (verdict.outcome, verdict.status, verdict.error) == (
            attempt.outcome,
            attempt.status_after,
            attempt.error,
        )


@pytest.mark.parametrize(
    ("backoff", "number"),
    [(Backoff(first_seconds=1e-5, factor=2.0), 1_025), (Backoff(first_seconds=1e-300, factor=10.0), 400)],
)
async def test_a_tiny_first_delay_grows_to_the_maximum_in_sql(owner: Raw, backoff: Backoff, number: int) -> None:
    expected = backoff_micros(backoff, number, random_fraction=0.0)
    values = (backoff.first_seconds, backoff.factor, backoff.max_seconds, number)
    assert expected == await owner.fetchval("SELECT ingot.backoff($1, $2, $3, $4, 0)", *values)
