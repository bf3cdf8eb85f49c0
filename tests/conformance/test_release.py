"""Workers that are put out: what they run is given back, uncounted, and they have no say in it any more."""

from __future__ import annotations

import pytest

from ingot.jobs import JobStatus, LeaseLost
from tests.factories import Bench


async def test_what_all_instances_of_a_credential_run_is_given_back(bench: Bench) -> None:
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


async def test_one_instance_can_be_put_out_alone(bench: Bench) -> None:
    claims = [await bench.make_claim(worker=f"press/host-{number}") for number in (1, 11)]
    assert await bench.jobs.give_back("press/host-1") == 1
    assert [(await bench.reload(claim)).status for claim in claims] == [JobStatus.QUEUED, JobStatus.RUNNING]


async def test_names_are_taken_as_they_are(bench: Bench) -> None:
    held = await bench.make_claim(worker="press")
    for name in ("%", "pres_", "p*", "press/"):
        assert await bench.jobs.give_back(name) == 0
    assert (await bench.reload(held)).status is JobStatus.RUNNING
