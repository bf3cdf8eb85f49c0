"""Many concurrent claimers: no job is claimed twice, no claim exceeds its limit, no fence is used twice."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingot.jobs.job_options import new_job
from tests.conformance.claimers import TYPES, share_jobs, share_jobs_amid_trouble
from tests.factories import Bench

# `make soak` runs more jobs.
JOBS = 10_000
JOBS_WITH_FAILURES = 4_000

example_number = count()


@pytest.mark.long
async def test_sixteen_claimers_claim_each_of_ten_thousand_jobs_once(bench: Bench) -> None:
    await share_jobs(bench, JOBS)


@pytest.mark.long
async def test_each_attempt_is_claimed_once_despite_lost_workers_and_late_settles(bench: Bench) -> None:
    await share_jobs_amid_trouble(bench, JOBS_WITH_FAILURES)


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
async def test_a_claim_returns_as_many_jobs_as_are_ready_up_to_its_limit(
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
        claimed = await bench.jobs.claim("w", chosen, limit=limit, tenant=scope)
        available = sum(n for (tenant, type), n in waiting.items() if type in chosen and scope in (None, tenant))
        assert len(claimed) == min(limit, available)
        taken = Counter((claim.job.tenant, claim.job.type) for claim in claimed)
        assert taken <= waiting
        assert all(type in chosen and scope in (None, tenant) for tenant, type in taken)
        waiting -= taken
