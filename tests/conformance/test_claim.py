"""Claims: order, limit, fences."""

from __future__ import annotations

import asyncio

from tests.factories import Bench


async def test_two_workers_never_claim_the_same_job(bench: Bench) -> None:
    await bench.make_job()
    answers = await asyncio.gather(bench.jobs.claim("w1", ["noop"]), bench.jobs.claim("w2", ["noop"]))
    assert sorted(map(len, answers)) == [0, 1]
