"""Many claimers at once: no job twice, no answer above its limit, no fence for two."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingot.jobs.job_options import new_job
from tests.conformance.claimers import TYPES, share_jobs, share_jobs_amid_trouble
from tests.factories import Bench

# `make soak` has more of each.
JOBS = 10_000
JOBS_WITH_TROUBLE = 4_000

example_number = count()


@pytest.mark.long
async def test_sixteen_claimers_share_ten_thousand_jobs_and_none_is_claimed_twice(bench: Bench) -> None:
    await share_jobs(bench, JOBS)


@pytest.mark.long
async def test_no_attempt_is_handed_out_twice_amid_silent_workers_sweeps_and_late_settles(bench: Bench) -> None:
    await share_jobs_amid_trouble(bench, JOBS_WITH_TROUBLE)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ready=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(1, 5)), max_size=40),
    claims=st.lists(
        st.tuples(
            st.sampled_from([1, 2, 3, 7, 30, 1000]),
            st.none() | st.integers(0, 1),
            st.sets(st.integers(0, 2), min_size=1),
        ),
        min_size=1,
        max_size=6,
    ),
)
async def test_a_claim_never_gets_more_than_its_limit_or_less_than_there_is(
    bench: Bench, ready: list[tuple[int, int, int]], claims: list[tuple[int, int | None, set[int]]]
) -> None:
    example = next(example_number)
    types = [f"{type}-{example}" for type in TYPES]
    tenants = [bench.tenant, (await bench.tenants.create(f"acme-{example}")).id]
    waiting = Counter((tenants[owner], types[type]) for owner, type, _ in ready)
    orders = [new_job(tenants[owner], types[type], priority=priority) for owner, type, priority in ready]
    await bench.jobs.enqueue_many(orders)
    for limit, owner, wanted in claims:
        scope = None if owner is None else tenants[owner]
        chosen = [types[type] for type in wanted]
        got = await bench.jobs.claim("w", chosen, limit=limit, tenant=scope)
        there = sum(n for (tenant, type), n in waiting.items() if type in chosen and scope in (None, tenant))
        assert len(got) == min(limit, there)
        taken = Counter((claim.job.tenant, claim.job.type) for claim in got)
        assert taken <= waiting
        assert all(type in chosen and scope in (None, tenant) for tenant, type in taken)
        waiting -= taken
