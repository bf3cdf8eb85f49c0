"""Workers that pause for longer than their lease, are swept, and then make stale calls."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import apsw

from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.jobs import Claim, Definition, JobStatus, LeaseLost, Progress
from tests.factories import LEASE_SECONDS, Bench, open_bench
from tests.faults.invariants import Broken
from tests.faults.sqlite_rules import broken_rules
from tests.faults.tables import dump, open_file

STALE_CALLS_PER_CYCLE = 3

StaleCall = Callable[[Bench, Claim], Awaitable[object]]
STALE_CALLS: list[StaleCall] = [
    lambda bench, claim: bench.jobs.complete(claim, {"stale": True}),
    lambda bench, claim: bench.jobs.fail(claim, "stale"),
    lambda bench, claim: bench.jobs.fail(claim, "stale", retry=False),
    lambda bench, claim: bench.jobs.snooze(claim, 5),
    lambda bench, claim: bench.jobs.release(claim),
    lambda bench, claim: bench.jobs.heartbeat(claim.job.id, claim.fence),
    lambda bench, claim: bench.jobs.heartbeat(claim.job.id, claim.fence, progress=Progress(percent=99, stage="stale")),
]


async def run_paused_workers(folder: Path, *, cycles: int, seed: int) -> int:
    """Run many cycles on one store, and return how many stale calls were refused. Raises `Broken`."""
    chance = random.Random(seed)
    refused = 0
    async with open_bench("sqlite", folder) as bench:
        await bench.jobs.define(Definition(type="noop", crash_cap=10_000))
        with closing(open_file(folder / FILE_NAME)) as connection:
            for _ in range(cycles):
                refused += await _cycle(bench, connection, chance)
            if violations := broken_rules(connection):
                raise Broken(f"{violations}\nseed {seed}")
    return refused


async def take_over(bench: Bench, stale: Claim) -> Claim:
    """Claim a swept job with another worker, once it is in the queue again."""
    bench.clock.advance(seconds=5)
    (holder,) = await bench.jobs.claim("other", ["noop"])
    assert (holder.job.id, holder.fence > stale.fence) == (stale.job.id, True)
    return holder


async def _cycle(bench: Bench, connection: apsw.Connection, chance: random.Random) -> int:
    stale = await bench.make_claim()
    bench.clock.advance(seconds=LEASE_SECONDS)
    assert (await bench.jobs.maintain()).swept == 1
    holder = await take_over(bench, stale) if chance.random() < 0.7 else None
    ended = holder is not None and chance.random() < 0.5
    if holder is not None and ended:
        await bench.jobs.complete(holder, {"by": "holder"})
    refused = await _make_stale_calls(bench, stale, connection, chance)
    if holder is None:
        await bench.jobs.cancel(bench.tenant, stale.job.id)
    elif not ended and (await bench.jobs.complete(holder)).status is not JobStatus.SUCCEEDED:
        raise Broken("the holder lost its job to a stale worker")
    return refused


async def _make_stale_calls(bench: Bench, stale: Claim, connection: apsw.Connection, chance: random.Random) -> int:
    before, refused = dump(connection), 0
    for call in chance.sample(STALE_CALLS, STALE_CALLS_PER_CYCLE):
        try:
            await call(bench, stale)
        except LeaseLost:
            refused += 1
        else:
            raise Broken(f"a call of a stale worker of {stale.job.id} was accepted")
    if dump(connection) != before:
        raise Broken(f"a stale worker of {stale.job.id} changed something")
    return refused
