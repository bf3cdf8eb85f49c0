"""Workers whose credential is disabled: their jobs are released and not counted, and their fences become invalid."""

from __future__ import annotations

import pytest

from ingot.jobs import JobStatus, LeaseLost
from tests.factories import Bench


async def test_jobs_of_all_instances_of_a_credential_are_released(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    own = [
        await bench.make_claim(worker="press"),
        await bench.make_claim(worker="press/host-1"),
        await bench.make_claim(worker="press/host-2", tenant=other.id),
    ]
    others = [await bench.make_claim(worker=name) for name in ("press2", "pres", "other/press", "PRESS")]
    assert await bench.jobs.give_back("press") == 3
    for claim in own:
        job = await bench.reload(claim)
        assert (job.status, job.failures, job.crashes, job.worker_id) == (JobStatus.QUEUED, 0, 0, None)
        with pytest.raises(LeaseLost):
            await bench.jobs.complete(claim)
    for claim in others:
        assert (await bench.reload(claim)).status is JobStatus.RUNNING
    assert await bench.jobs.give_back("press") == 0


async def test_jobs_of_one_instance_can_be_released_alone(bench: Bench) -> None:
    claims = [await bench.make_claim(worker=f"press/host-{number}") for number in (1, 11)]
    assert await bench.jobs.give_back("press/host-1") == 1
    assert [(await bench.reload(claim)).status for claim in claims] == [JobStatus.QUEUED, JobStatus.RUNNING]


async def test_worker_names_contain_no_wildcards(bench: Bench) -> None:
    claim = await bench.make_claim(worker="press")
    for name in ("%", "pres_", "p*", "press/"):
        assert await bench.jobs.give_back(name) == 0
    assert (await bench.reload(claim)).status is JobStatus.RUNNING
