"""Batches of commands on PostgreSQL: gathered without a timer, replayed one by one after a failure, no deadlocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from ingot.engines.postgres.command_batcher import BATCH_ROWS_MAX, IN_FLIGHT_MAX, CommandBatcher
from ingot.engines.postgres.command_batches import TENANT_CLAIMS_MAX
from ingot.engines.postgres.connection import CONNECTIONS_MAX
from ingot.engines.tenant_queues import QUEUED_COMMANDS_MAX
from ingot.jobs import Done, Settled
from ingot.jobs.job_options import new_job
from ingot.kernel.errors import IngotError, InvalidInput, OutcomeUnknown, StoreBusy, StoreError
from ingot.kernel.logs import context_fields
from tests.factories import Bench, open_bench
from tests.postgres import database_for
from tests.waiting import SECONDS_MAX, eventually

LEASE = 60_000_000
CANCELS_MAX = CONNECTIONS_MAX // 2  # Of one tenant that run at once.
COUNT_BLOCKED_SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


class Echo:
    """Returns every command as its result, holds batches until the gate opens, and fails for commands in `bad`."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.bad: set[int] = set()

    async def run(self, commands: list[int]) -> list[int | IngotError]:
        self.batches.append(commands)
        await self.gate.wait()
        if self.bad & set(commands):
            raise InvalidInput(f"{self.bad} cannot be run")
        return list(commands)


def _weight_of_one(_: int) -> int:
    return 1


async def _yield_to_loop(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_batch_whose_response_was_lost_is_not_run_again() -> None:
    batches: list[list[int]] = []

    async def run(commands: list[int]) -> list[int | IngotError]:
        batches.append(commands)
        raise OutcomeUnknown("The first response was lost, and the retry was refused.") from InvalidInput("refused")

    batcher = CommandBatcher(run, weigh=_weight_of_one)
    errors = await asyncio.gather(*map(batcher.submit, range(3)), return_exceptions=True)
    assert batches == [[0, 1, 2]]
    assert [type(error) for error in errors] == [OutcomeUnknown] * 3


class ErrorWithPlace(StoreError):
    """An error whose constructor has other parameters than that of `StoreError`."""

    def __init__(self, *, place: int) -> None:
        super().__init__(f"place {place}")
        self.place = place


async def test_every_command_gets_its_own_copy_of_an_error_with_other_parameters() -> None:
    async def run(commands: list[int]) -> list[int | IngotError]:
        raise ErrorWithPlace(place=7) from ConnectionResetError()

    batcher = CommandBatcher(run, weigh=_weight_of_one)
    errors = await asyncio.gather(*map(batcher.submit, range(3)), return_exceptions=True)
    assert [(type(error), str(error), getattr(error, "place", None)) for error in errors] == [
        (ErrorWithPlace, "place 7", 7)
    ] * 3
    assert len(set(map(id, errors))) == 3


async def test_commands_whose_results_are_missing_have_an_unknown_outcome() -> None:
    async def run(commands: list[int]) -> list[int | IngotError]:
        return list(commands[:-1])

    batcher = CommandBatcher(run, weigh=_weight_of_one)
    async with asyncio.timeout(SECONDS_MAX):
        results = await asyncio.gather(*map(batcher.submit, range(3)), return_exceptions=True)
    assert results[:2] == [0, 1]
    assert isinstance(results[2], OutcomeUnknown)


async def test_a_batch_has_no_context_fields_and_reports_its_size_once() -> None:
    seen: list[object] = []
    sizes: list[int] = []

    async def run(commands: list[int]) -> list[int | IngotError]:
        seen.append(context_fields.get())
        if 13 in commands and len(commands) > 1:
            raise InvalidInput("not together")
        return list(commands)

    batches: CommandBatcher[int, int] = CommandBatcher(run, weigh=_weight_of_one, on_commit=sizes.append)
    context_fields.set({"request_id": "r1"})
    assert await asyncio.gather(*map(batches.submit, [1, 2])) == [1, 2]
    assert await asyncio.gather(*map(batches.submit, [12, 13])) == [12, 13]
    assert seen == [None] * 4
    assert sizes == [2, 1, 1]


async def test_commands_gather_while_batches_are_in_flight() -> None:
    echo = Echo()
    batches: CommandBatcher[int, int] = CommandBatcher(echo.run, weigh=_weight_of_one)
    answers = []
    for number in range(IN_FLIGHT_MAX):
        answers.append(batches.submit(number))
        await _yield_to_loop()
    answers += [batches.submit(number) for number in range(IN_FLIGHT_MAX, 20)]
    await _yield_to_loop()
    assert batches.waiting_commands == 20 - IN_FLIGHT_MAX
    assert echo.batches == [[number] for number in range(IN_FLIGHT_MAX)]
    echo.gate.set()
    assert await asyncio.gather(*answers) == list(range(20))
    assert echo.batches[IN_FLIGHT_MAX] == list(range(IN_FLIGHT_MAX, 20))


async def test_at_most_in_flight_max_batches_run_at_once() -> None:
    echo = Echo()
    batches: CommandBatcher[int, int] = CommandBatcher(echo.run, weigh=_weight_of_one, in_flight_max=1)
    answers = []
    for number in range(3):
        answers.append(batches.submit(number))
        await _yield_to_loop()
    assert echo.batches == [[0]]
    echo.gate.set()
    assert await asyncio.gather(*answers) == [0, 1, 2]
    assert echo.batches == [[0], [1, 2]]


async def test_commands_of_one_loop_iteration_form_one_batch() -> None:
    echo = Echo()
    echo.gate.set()
    batches: CommandBatcher[int, int] = CommandBatcher(echo.run, weigh=_weight_of_one)
    assert await asyncio.gather(*(batches.submit(number) for number in range(50))) == list(range(50))
    assert echo.batches == [list(range(50))]


async def test_a_batch_has_a_maximum_number_of_rows_and_at_least_one_command() -> None:
    echo = Echo()
    echo.gate.set()
    batches: CommandBatcher[int, int] = CommandBatcher(echo.run, weigh=lambda rows: rows)
    sizes = [BATCH_ROWS_MAX - 1, 1, 1, 10 * BATCH_ROWS_MAX, 5]
    await asyncio.gather(*(batches.submit(rows) for rows in sizes))
    assert echo.batches == [[BATCH_ROWS_MAX - 1, 1], [1], [10 * BATCH_ROWS_MAX], [5]]


async def test_a_failed_batch_is_replayed_one_by_one_and_only_the_invalid_command_fails() -> None:
    echo = Echo()
    echo.gate.set()
    echo.bad = {3}
    batches: CommandBatcher[int, int] = CommandBatcher(echo.run, weigh=_weight_of_one)
    answers = await asyncio.gather(*(batches.submit(number) for number in range(5)), return_exceptions=True)
    assert [answer for answer in answers if not isinstance(answer, Exception)] == [0, 1, 2, 4]
    assert isinstance(answers[3], InvalidInput)


async def test_a_canceled_caller_does_not_affect_others_of_the_batch() -> None:
    echo = Echo()
    batches: CommandBatcher[int, int] = CommandBatcher(echo.run, weigh=_weight_of_one)
    first, second = batches.submit(1), batches.submit(2)
    await _yield_to_loop()
    first.cancel()
    echo.gate.set()
    assert await second == 2


async def test_commands_are_refused_when_the_queue_is_full_or_closed() -> None:
    echo = Echo()
    batches: CommandBatcher[int, int] = CommandBatcher(echo.run, weigh=_weight_of_one)
    count = QUEUED_COMMANDS_MAX // 2
    answers = [batches.submit(number) for number in range(count)]
    with pytest.raises(StoreBusy):
        await batches.submit(count)
    echo.gate.set()
    await batches.close()
    assert await asyncio.gather(*answers) == list(range(count))
    with pytest.raises(StoreError, match="closed"):
        await batches.submit(0)


def _tenant_batcher(echo: Echo, **options: Any) -> CommandBatcher[int, int]:
    """Return a batcher for commands whose tenant is their number of thousands."""
    return CommandBatcher(echo.run, tenant_of=lambda command: str(command // 1000), **options)


@pytest.mark.parametrize("in_flight_max", [1, IN_FLIGHT_MAX])
async def test_large_commands_of_one_tenant_leave_a_slot_to_others(in_flight_max: int) -> None:
    echo = Echo()
    batches = _tenant_batcher(echo, weigh=lambda _: BATCH_ROWS_MAX, in_flight_max=in_flight_max)
    flood = [batches.submit(number) for number in range(10)]
    await _yield_to_loop()
    assert echo.batches == [[number] for number in range(in_flight_max)]
    other = batches.submit(1000)
    await _yield_to_loop()
    assert echo.batches[-1] == [1000]
    echo.gate.set()
    assert await asyncio.gather(*flood, other) == [*range(10), 1000]


async def test_a_batch_has_equal_shares_of_rows_of_each_tenant() -> None:
    echo = Echo()
    echo.gate.set()
    weights = {0: 100, 1: 1, 2: BATCH_ROWS_MAX}
    batches = _tenant_batcher(echo, weigh=lambda command: weights[command // 1000])
    flood = [batches.submit(number) for number in range(20)]
    others = [batches.submit(1000 + number) for number in range(200)]
    large = batches.submit(2000)
    await asyncio.gather(*flood, *others, large)
    first = echo.batches[0]
    assert [command for command in first if command >= 1000] == list(range(1000, 1200))
    assert [command for command in first if command < 1000] == [0, 1, 2]
    assert [2000] in echo.batches[:2], "a command that did not fit has the next turn"


async def test_a_flood_of_one_tenant_leaves_space_in_the_queue() -> None:
    echo = Echo()
    batches = _tenant_batcher(echo, weigh=_weight_of_one)
    flood = [batches.submit(0) for _ in range(2 * QUEUED_COMMANDS_MAX)]
    others = [batches.submit(1000) for _ in range(QUEUED_COMMANDS_MAX // 8)]
    echo.gate.set()
    answers = await asyncio.gather(*flood, return_exceptions=True)
    assert len([answer for answer in answers if isinstance(answer, StoreBusy)]) == 3 * QUEUED_COMMANDS_MAX // 2
    assert await asyncio.gather(*others) == [1000] * len(others)


Call = Callable[[Any, list[str], list[int]], Coroutine[Any, Any, object]]


async def _renew(connection: Any, ids: list[str], fences: list[int]) -> object:
    blank = [None] * len(ids)
    leases = [LEASE] * len(ids)
    return await connection.fetch(
        "SELECT * FROM ingot.renew($1, $2, $3, $4, $5, $6)", ids, fences, blank, leases, blank, blank
    )


async def _settle(connection: Any, ids: list[str], fences: list[int]) -> object:
    blank, count = [None] * len(ids), len(ids)
    outcomes = ["snoozed"] * count, [True] * count, [0] * count
    return await connection.fetch(
        "SELECT * FROM ingot.settle($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        ids,
        fences,
        blank,
        *outcomes,
        blank,
        blank,
        blank,
    )


@pytest.mark.parametrize("call", [_renew, _settle])
async def test_batches_over_the_same_jobs_in_opposite_orders_never_deadlock(tmp_path: Path, call: Call) -> None:
    async with open_bench("postgres", tmp_path / "data") as bench:
        await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(9)])
        ids, fences = zip(*[(c.job.id, c.fence) for c in await bench.jobs.claim("w", ["noop"], limit=9)], strict=True)
        url = (await database_for(tmp_path / "data")).server_url
        watcher, holder, *others = [await asyncpg.connect(url) for _ in range(4)]

        async def all_wait() -> bool:
            return bool(
                await watcher.fetchval(COUNT_BLOCKED_SESSIONS) == len(others)
            )  # Statistics are fixed within a transaction.

        try:
            async with (
                holder.transaction()
            ):  # Both calls wait for the row in the middle, and hold the rows they locked before it.
                await _renew(holder, [ids[4]], [fences[4]])
                calls = [
                    asyncio.create_task(call(other, list(ids[::step]), list(fences[::step])))
                    for other, step in zip(others, [1, -1], strict=True)
                ]
                await eventually(all_wait)
            results = [await asyncio.gather(call, return_exceptions=True) for call in calls]
        finally:
            for connection in (watcher, holder, *others):
                await connection.close()
    assert not any(isinstance(answer, asyncpg.DeadlockDetectedError) for (answer,) in results)


async def test_claims_of_one_tenant_for_many_types_leave_connections_to_others(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as bench:
        types = [f"type-{n}" for n in range(2 * TENANT_CLAIMS_MAX)]
        await bench.jobs.enqueue_many([new_job(bench.tenant, type) for type in types])
        url = (await database_for(tmp_path / "data")).owner_url
        watcher, holder = [await asyncpg.connect(url) for _ in range(2)]

        async def blocked_claims() -> int:
            return int(await watcher.fetchval(COUNT_BLOCKED_SESSIONS))

        async def is_full() -> bool:
            return await blocked_claims() >= TENANT_CLAIMS_MAX

        try:
            async with holder.transaction():
                await holder.execute("LOCK TABLE ingot.leases IN EXCLUSIVE MODE")
                claims = [asyncio.create_task(bench.jobs.claim("w", [type], tenant=bench.tenant)) for type in types]
                await eventually(is_full)
                await asyncio.sleep(0.05)
                assert await blocked_claims() == TENANT_CLAIMS_MAX
            assert [len(jobs) for jobs in await asyncio.gather(*claims)] == [1] * len(types)
        finally:
            for connection in (watcher, holder):
                await connection.close()


async def test_cancels_of_one_tenant_leave_connections_to_others(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as bench:
        jobs = 3 * CANCELS_MAX
        await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(jobs)])
        claims = await bench.jobs.claim("w", ["noop"], tenant=bench.tenant, limit=jobs)
        url = (await database_for(tmp_path / "data")).owner_url
        watcher, holder = [await asyncpg.connect(url) for _ in range(2)]

        async def blocked_cancels() -> int:
            return int(await watcher.fetchval(COUNT_BLOCKED_SESSIONS))

        async def is_full() -> bool:
            return await blocked_cancels() >= CANCELS_MAX

        try:
            async with holder.transaction():
                await holder.execute("LOCK TABLE ingot.leases IN EXCLUSIVE MODE")
                cancels = [asyncio.create_task(bench.jobs.cancel(bench.tenant, claim.job.id)) for claim in claims]
                await eventually(is_full)
                await asyncio.sleep(0.05)
                assert await blocked_cancels() == CANCELS_MAX
            assert all(job.cancel_requested for job in await asyncio.gather(*cancels))
        finally:
            for connection in (watcher, holder):
                await connection.close()


async def test_concurrent_settles_each_get_their_own_result(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as bench:
        await _settle_by_many(bench)


async def _settle_by_many(bench: Bench) -> None:
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", number) for number in range(200)])
    claims = await bench.jobs.claim("w", ["noop"], limit=200)
    answers = await asyncio.gather(
        *(bench.jobs.settle(claim.job.id, claim.fence + claim.job.read() % 2, Done()) for claim in claims),
        return_exceptions=True,
    )
    for claim, answer in zip(claims, answers, strict=True):
        assert isinstance(answer, Settled) == (claim.job.read() % 2 == 0)
        assert not isinstance(answer, Settled) or answer.job_id == claim.job.id
