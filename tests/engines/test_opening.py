"""Opening Ingot in process: the folder, the default tenant, background loops and closing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import ingot
from ingot.blobs.errors import ObjectsElsewhere
from ingot.blobs.incoming import IncomingBlob
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import StoreError
from ingot.settings import Settings, SettingsError
from tests.postgres import empty_database


async def test_open_creates_the_folder_and_the_default_tenant(tmp_path: Path) -> None:
    async with ingot.open(tmp_path / "a" / "data") as opened:
        first = opened.default_tenant
    async with ingot.open(str(tmp_path / "a" / "data")) as opened:
        assert (opened.default_tenant, first.slug) == (first, "default")


async def test_a_folder_argument_takes_precedence_over_the_settings(tmp_path: Path) -> None:
    async with ingot.open(tmp_path / "named", settings=Settings(data=tmp_path / "set")):
        pass
    assert os.listdir(tmp_path) == ["named"]


async def test_the_lease_comes_from_the_settings(tmp_path: Path) -> None:
    clock = ManualClock()
    async with ingot.open(settings=Settings(data=tmp_path, lease_seconds=30), clock=clock, maintenance=False) as opened:
        await opened.jobs.enqueue(opened.default_tenant.id, "noop")
        (claim,) = await opened.jobs.claim("worker", ["noop"])
        assert (claim.lease_expires_at - clock.now()).total_seconds() == 30


async def test_a_due_job_reaches_a_waiting_claim(tmp_path: Path) -> None:
    async with ingot.open(tmp_path) as opened, asyncio.timeout(30):
        enqueued = await opened.jobs.enqueue(opened.default_tenant.id, "noop", delay=0.1)
        (claim,) = await opened.jobs.claim("worker", ["noop"], wait_seconds=60)
        assert claim.job.id == enqueued.job.id


async def test_a_due_job_is_found_by_a_claim_without_maintenance(tmp_path: Path) -> None:
    clock = ManualClock()
    async with ingot.open(tmp_path, clock=clock, maintenance=False) as opened:
        await opened.jobs.enqueue(opened.default_tenant.id, "noop", delay=10)
        clock.advance(seconds=10)
        assert len(await opened.jobs.claim("worker", ["noop"])) == 1


async def test_the_store_is_closed_after_the_block(tmp_path: Path) -> None:
    async with ingot.open(tmp_path) as opened:
        pass
    with pytest.raises(StoreError, match="closed"):
        await opened.jobs.enqueue(opened.default_tenant.id, "noop")


async def test_an_error_in_the_block_closes_the_store(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with ingot.open(tmp_path):
            raise ZeroDivisionError
    async with ingot.open(tmp_path):
        pass


async def test_jobs_of_canceled_claims_are_released_before_the_store_closes(tmp_path: Path) -> None:
    async with ingot.open(tmp_path) as opened:
        tenant = opened.default_tenant.id
        enqueued = [(await opened.jobs.enqueue(tenant, "noop", max_attempts=1)).job.id for _ in range(3)]
        claims = [asyncio.create_task(opened.jobs.claim(f"w{n}", ["noop"])) for n in range(3)]
        await asyncio.sleep(0)  # The commands have been sent.
        for claim in claims:
            claim.cancel()
        await asyncio.wait(claims)
    async with ingot.open(tmp_path) as opened:
        jobs = [await opened.jobs.get(tenant, id) for id in enqueued]
        states = {(job.status.value, job.attempts, job.failures, job.crashes) for job in jobs}
        assert states == {("queued", 1, 0, 0)}


@pytest.mark.postgres
async def test_a_database_from_the_settings_is_migrated_and_used(tmp_path: Path) -> None:
    database = await empty_database()
    settings = Settings(
        data=tmp_path / "unused", database_url=database.server_url, database_owner_url=database.owner_url
    )
    for _ in range(2):
        async with ingot.open(settings=settings) as opened, asyncio.timeout(30):
            enqueued = await opened.jobs.enqueue(opened.default_tenant.id, "noop", delay=0.1)
            (claim,) = await opened.jobs.claim("worker", ["noop"], wait_seconds=60)
            assert claim.job.id == enqueued.job.id
            await opened.jobs.complete(claim)
    async with ingot.open(settings=Settings(database_url=database.server_url)) as opened:
        assert (await opened.jobs.summary(opened.default_tenant.id)).counts[ingot.JobStatus.SUCCEEDED] == 2
    assert [one.name for one in (tmp_path / "unused").iterdir() if one.name.startswith("ingot")] == []


async def test_a_folder_together_with_a_database_is_refused(tmp_path: Path) -> None:
    settings = Settings(database_url="postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(SettingsError, match="INGOT_DATABASE_URL"):
        async with ingot.open(tmp_path / "named", settings=settings):
            pass
    assert os.listdir(tmp_path) == []


def test_every_public_name_exists() -> None:
    assert ingot.__all__ == sorted(ingot.__all__)
    assert all(getattr(ingot, name) is not None for name in ingot.__all__)


@pytest.mark.postgres
async def test_a_database_whose_blobs_are_in_another_folder_is_refused(tmp_path: Path) -> None:
    database = await empty_database()

    def settings(folder: str) -> Settings:
        return Settings(data=tmp_path / folder, database_url=database.server_url, database_owner_url=database.owner_url)

    async def parts(data: bytes) -> AsyncIterator[bytes]:
        yield data

    for folder, size in (("first", 5), ("second", 5), ("second", 100_000)):
        async with ingot.open(settings=settings(folder)) as opened:
            arrival = IncomingBlob(tenant=opened.default_tenant.id, owner="test")
            await opened.blobs.put(f"{folder}-{size}", parts(bytes(size)), arrival)
    with pytest.raises(ObjectsElsewhere):
        async with ingot.open(settings=settings("first")):
            pass
    async with ingot.open(settings=settings("second")) as opened:
        assert (await opened.blobs.get(opened.default_tenant.id, "second-100000")).size == 100_000
