"""Background verification: every upload is verified in turn, and renewed while it waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest
from structlog.testing import capture_logs

from ingot.blobs import verification
from ingot.blobs.counters import BlobCounters
from ingot.blobs.incoming import UPLOAD_LIFETIME_MICROS
from ingot.blobs.model import StoredUpload, TrashedObject, UploadState
from ingot.blobs.ports import GetUpload
from ingot.blobs.verification import ABANDONED_AFTER_MICROS, CONCURRENT_VERIFICATIONS_MAX, Verifier
from ingot.kernel.clock import MICROS
from tests.conformance.blob_fixture import BlobFixture, blobs
from tests.waiting import eventually

__all__ = ["blobs"]

DATA = b"12345"


class GatedObjects:
    """An object store in which all objects have the same bytes, and reads wait for an event."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def read(self, storage_key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        await self.open.wait()
        yield DATA[start:end]

    async def delete(self, trash: TrashedObject) -> None:
        pass


async def make_verifying_upload(blobs: BlobFixture, n: int, **announced: str) -> StoredUpload:
    """Make an upload that waits for verification."""
    id = (await blobs.begin(len(DATA), size=len(DATA), storage_key=f"storage_key-{n}", **announced)).upload.id
    taken = await blobs.take(id)
    return await blobs.note(id, taken.epoch, received=len(DATA), verifying=True, lifetime=UPLOAD_LIFETIME_MICROS)


async def wait_for_upload(blobs: BlobFixture, holds: Callable[[StoredUpload], bool], one: StoredUpload) -> StoredUpload:
    async def matching() -> StoredUpload | None:
        now = await blobs.store.run(GetUpload(tenant=blobs.tenant, id=one.upload.id))
        assert now is not None
        return now if holds(now) else None

    upload = await eventually(matching)
    assert upload is not None
    return upload


async def test_an_upload_that_waits_for_verification_is_renewed(
    blobs: BlobFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "RENEW_SECONDS", 0.05)
    objects = GatedObjects()
    verifier = Verifier(blobs.store, objects, None, BlobCounters())  # type: ignore[arg-type]
    other = Verifier(blobs.store, objects, None, BlobCounters())  # type: ignore[arg-type]
    uploads = [await make_verifying_upload(blobs, n) for n in range(CONCURRENT_VERIFICATIONS_MAX + 2)]
    try:
        for one in uploads:
            verifier.verify_in_background(one)
        blobs.bench.clock.advance(seconds=ABANDONED_AFTER_MICROS / MICROS + 1)
        for one in uploads:
            before = one.upload.expires_at
            await wait_for_upload(blobs, lambda now, before=before: now.upload.expires_at > before, one)  # type: ignore[misc]
        assert await other.resume_abandoned(blobs.bench.clock.micros()) == 0
        objects.open.set()
        for one in uploads:
            await wait_for_upload(blobs, lambda now: now.upload.state is UploadState.DONE, one)
    finally:
        await verifier.close()
        await other.close()


async def test_wrong_bytes_are_logged_without_a_traceback(blobs: BlobFixture) -> None:
    objects = GatedObjects()
    objects.open.set()
    verifier = Verifier(blobs.store, objects, None, BlobCounters())  # type: ignore[arg-type]
    one = await make_verifying_upload(blobs, 1, sha256="0" * 64)
    try:
        with capture_logs() as logs:
            verifier.verify_in_background(one)
            await wait_for_upload(blobs, lambda now: now.upload.state is UploadState.FAILED, one)
            await verifier.join()
    finally:
        await verifier.close()
    (line,) = logs
    assert (line["event"], line["log_level"], line["code"]) == ("upload_failed", "info", "wrong_digest")
    assert "exc_info" not in line
