"""Verifications in the background: each has its turn, and is renewed until then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest
from structlog.testing import capture_logs

from ingot.blobs import verification
from ingot.blobs.arrivals import KEEP
from ingot.blobs.model import OpenUpload, Trash, UploadState
from ingot.blobs.ports import GetUpload
from ingot.blobs.tally import Tally
from ingot.blobs.verification import LOST, VERIFIED_AT_ONCE, Verifier
from ingot.kernel.clock import MICROS
from tests.conformance.depot import Depot, depot
from tests.waiting import eventually

__all__ = ["depot"]

DATA = b"12345"


class Gated:
    """Objects of the same bytes, which are read when they may be."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def read(self, place: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        await self.open.wait()
        yield DATA[start:end]

    async def delete(self, trash: Trash) -> None:
        pass


async def verifying(depot: Depot, n: int, **announced: str) -> OpenUpload:
    """An upload that is to be verified."""
    id = (await depot.begin(len(DATA), size=len(DATA), place=f"place-{n}", **announced)).upload.id
    taken = await depot.take(id)
    return await depot.note(id, taken.epoch, received=len(DATA), verifying=True, keep=KEEP)


async def until(depot: Depot, holds: Callable[[OpenUpload], bool], one: OpenUpload) -> OpenUpload:
    async def found() -> OpenUpload | None:
        now = await depot.store.run(GetUpload(tenant=depot.tenant, id=one.upload.id))
        assert now is not None
        return now if holds(now) else None

    upload = await eventually(found)
    assert upload is not None
    return upload


async def test_one_that_waits_for_its_turn_is_renewed(depot: Depot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "RENEW_SECONDS", 0.05)
    objects = Gated()
    verifier = Verifier(depot.store, objects, None, Tally())  # type: ignore[arg-type]
    other = Verifier(depot.store, objects, None, Tally())  # type: ignore[arg-type]
    uploads = [await verifying(depot, n) for n in range(VERIFIED_AT_ONCE + 2)]
    try:
        for one in uploads:
            verifier.verify_soon(one)
        depot.bench.clock.advance(seconds=LOST / MICROS + 1)
        for one in uploads:
            before = one.upload.expires_at
            await until(depot, lambda now, before=before: now.upload.expires_at > before, one)  # type: ignore[misc]
        assert await other.look_for_lost(depot.bench.clock.micros()) == 0
        objects.open.set()
        for one in uploads:
            await until(depot, lambda now: now.upload.state is UploadState.DONE, one)
    finally:
        await verifier.close()
        await other.close()


async def test_wrong_bytes_are_told_in_a_plain_line(depot: Depot) -> None:
    objects = Gated()
    objects.open.set()
    verifier = Verifier(depot.store, objects, None, Tally())  # type: ignore[arg-type]
    one = await verifying(depot, 1, sha256="0" * 64)
    try:
        with capture_logs() as logs:
            verifier.verify_soon(one)
            await until(depot, lambda now: now.upload.state is UploadState.FAILED, one)
            await verifier.join()
    finally:
        await verifier.close()
    (line,) = logs
    assert (line["event"], line["log_level"], line["code"]) == ("upload_failed", "info", "wrong_digest")
    assert "exc_info" not in line
