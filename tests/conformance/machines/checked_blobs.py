"""The blobs room and its model side by side: every call goes to both, and what they keep must be equal."""

from __future__ import annotations

import asyncio
import atexit
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import httpx
import msgspec
from structlog.testing import capture_logs

from ingot.blobs import scrub, service, uploads
from ingot.blobs.errors import BlobDamaged, WrongDigest
from ingot.blobs.garbage_collector import GarbageCollector
from ingot.blobs.incoming import IncomingBlob
from ingot.blobs.model import (
    INLINE_BYTES_MAX,
    BlobCollectionResult,
    BlobEventData,
    Content,
    PurgeResult,
    TrashedObject,
    UploadState,
    Usage,
)
from ingot.blobs.orphan_sweep import OrphanSweep
from ingot.blobs.ports import (
    FindBlob,
    FindKnownStorageKeys,
    GetUpload,
    ListBlobsToScrub,
    ListTrash,
    RegisterObjectStore,
    TransferPlan,
)
from ingot.events.audit import Act
from ingot.identity import Limits, Tenants
from ingot.kernel.clock import MICROS, to_micros
from ingot.kernel.errors import IngotError
from ingot.objects.layout import BLOBS_FOLDER, Layout
from ingot.objects.local import LocalStore
from ingot.objects.s3 import BucketStore
from tests import event_loop
from tests.conformance.machines.blob_model import VERIFY_BYTES, BlobModel, Coming, Owner, id_of, sha256_of
from tests.conformance.object_stores import STORES
from tests.conformance.tables import count_deleted, count_references
from tests.factories import LEASE_SECONDS, Bench, open_store
from tests.postgres import ChanceClock

GRACE_SECONDS = 3600
PIECE_BYTES = 7_000
SCRUBBED_MAX = 1000

T = TypeVar("T")
BlobKey = tuple[str, str]  # The tenant and the ID of a blob.


class Broken(Exception):
    """What the other side of a stream says when it breaks."""


@cache
def shelves() -> Path:
    """A folder for objects, which one warehouse after the other uses: it takes long to make one."""
    made = tempfile.TemporaryDirectory(prefix="ingot-machine-")
    atexit.register(made.cleanup)
    return Path(made.name)


def files_in(folder: Path) -> list[Path]:
    """The objects in a folder, finished or not."""
    return [*folder.glob("blobs/??/*"), *folder.glob("blobs/uploads/*")]


class CheckedBlobs:
    """One engine and one object store in a folder of their own, with the room in front of them, beside the model."""

    def __init__(self, engine: str, objects: str) -> None:
        self._engine = engine
        self._kind = objects
        self._folder = tempfile.TemporaryDirectory(prefix="ingot-machine-")
        self._open_things = AsyncExitStack()
        self._plans: dict[str, TransferPlan] = {}
        self._sent: set[str] = set()
        self._late: dict[str, tuple[TransferPlan, bytes]] = {}  # What clients can still send, by storage key.
        self._strays: set[str] = set()
        self._steps = 0
        self.failed = False
        self.clock = ChanceClock()
        self.owners = [Owner("token:ann"), Owner("token:bob", 90_000)]
        self.run(self._open())

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for a call. After one that failed, there is nothing to compare any more."""
        try:
            return event_loop.run(call)
        except BaseException:
            self.failed = True
            raise

    def close(self) -> None:
        """Let everything go."""
        try:
            self.run(self._open_things.aclose())
        finally:
            self._folder.cleanup()
            for path in files_in(shelves()):
                path.unlink()

    async def _open(self) -> None:
        enter = self._open_things.enter_async_context
        self._open_things.enter_context(patch.object(uploads, "SYNC_VERIFY_BYTES_MAX", VERIFY_BYTES))
        self._open_things.enter_context(capture_logs())  # Of damage that is done on purpose.
        store = await open_store(self._engine, Path(self._folder.name) / "data", self.clock)
        self._open_things.push_async_callback(store.close)
        objects = await enter(STORES[self._kind](shelves()))
        assert isinstance(objects, LocalStore | BucketStore)
        self.objects = objects
        self._stranger = await enter(httpx.AsyncClient(timeout=30, verify=False))
        self.clock.advance(seconds=LEASE_SECONDS)
        self.bench = Bench(store, self.clock, await Tenants(store).ensure_default())
        self.store = store
        tenants = [self.bench.tenant, (await self.bench.tenants.create("other")).id]
        self.blobs = service.Blobs(store, objects)
        bucket = objects if isinstance(objects, BucketStore) else None
        url_lifetime = 0 if bucket is None else (bucket.write_url_seconds + uploads.LATE_SECONDS) * MICROS
        seals = bucket is not None and not bucket.conditional_writes
        self.model = BlobModel(tenants, GRACE_SECONDS * MICROS, url_lifetime, seals)
        await store.run(RegisterObjectStore(store_id=objects.store_id, grace=self.model.grace))
        self.uploads = uploads.Uploads(store, objects, bucket)
        self._open_things.push_async_callback(self.uploads.verifier.close)
        self.collector = GarbageCollector(store, objects, every_seconds=1, grace_seconds=GRACE_SECONDS)
        self.scrub = scrub.Scrub(store, objects, self.clock, bytes_per_second=0)
        # Nothing is under way between two steps, so that an object may be new and a stray.
        self.orphan_sweep = OrphanSweep(store, objects, database_id="machine", orphan_age=0)

    @property
    def receives(self) -> bool:
        """Whether bytes of uploads come to us."""
        return isinstance(self.objects, LocalStore)

    def pass_time(self, seconds: float) -> None:
        """Let time go by."""
        self.clock.advance(seconds=seconds)

    # -- calls ----------------------------------------------------------------------------------------------

    async def _both(self, real: Awaitable[T], modelled: Callable[[], Any]) -> tuple[T | None, Any]:
        """Ask both. What one raises the other has to raise."""
        self.model.now = self.clock.micros()
        answer: T | None = None
        found = expected = told = None
        try:
            answer = await real
        except (IngotError, OSError, Broken) as error:
            found = error
        try:
            told = modelled()
        except (IngotError, OSError, Broken) as error:
            expected = error
        assert type(found) is type(expected), f"{found!r} instead of {expected!r}"
        self.model.settle()
        return answer, told

    async def put(
        self,
        tenant: str,
        owner: Owner,
        key: str,
        data: bytes,
        *,
        if_match: str | None = None,
        told: bool = True,
        wrong: bool = False,
        breaks: bool = False,
    ) -> None:
        """Put bytes under a key: with their size told or not, with a wrong digest, or with a stream that breaks."""

        async def parts() -> AsyncIterator[bytes]:
            for start in range(0, len(data), PIECE_BYTES):
                if breaks and start + PIECE_BYTES >= len(data):
                    break
                yield data[start : start + PIECE_BYTES]
            if breaks:
                raise Broken

        arrival = IncomingBlob(
            tenant=tenant,
            owner=owner.name,
            size=len(data) if told else None,
            sha256=sha256_of(data + b"x") if wrong else None,
            owner_quota=owner.quota,
        )
        ends = Broken if breaks else WrongDigest if wrong else None
        # A stream that breaks among the first bytes breaks before anything is begun.
        begun = min(len(data), PIECE_BYTES * ((len(data) - 1) // PIECE_BYTES)) if breaks else len(data)

        def modelled() -> None:
            if breaks and begun <= INLINE_BYTES_MAX:
                raise Broken
            counted = data if told else data[:begun]  # Of a stream of unknown size only what has come.
            self.model.put(tenant, owner, key, counted, if_match=if_match, breaks=ends)

        answer, _ = await self._both(self.blobs.put(key, parts(), arrival, if_match=if_match), modelled)
        if answer is not None:
            assert (answer.blob_id, answer.size, answer.owner) == (id_of(data), len(data), owner.name)

    async def begin(
        self,
        tenant: str,
        owner: Owner,
        data: bytes,
        *,
        announced: str | None = None,
        key: str | None = None,
        if_match: str | None = None,
    ) -> None:
        """Begin an upload of these bytes, with the id of a blob, which may be that of others."""
        arrival = IncomingBlob(
            tenant=tenant, owner=owner.name, size=len(data), blob_id=announced, owner_quota=owner.quota
        )
        coming = Coming("", tenant, owner.name, data, announced, key, if_match, 0)
        known: list[str] = []

        async def real() -> uploads.UploadWithPlan:
            begun = await self.uploads.begin(arrival, key=key, if_match=if_match)
            known.append(begun.upload.id)
            return begun

        answer, at_once = await self._both(
            real(), lambda: self.model.begin(known[0] if known else "", tenant, owner, coming, size=len(data))
        )
        if answer is not None:
            assert (answer.upload.state is UploadState.DONE) == at_once
            if answer.plan is not None:
                self._plans[answer.upload.id] = answer.plan

    async def send(self, upload: Coming, count: int, *, tenant: str, breaks: bool = False, shift: int = 0) -> None:
        """Send some more bytes of an upload, from where it is or from elsewhere. To a bucket, all of them."""
        if not self.receives:
            await self._send_to_bucket(upload)
            return
        offset = upload.received + shift
        count = min(count, len(upload.data) - upload.received)
        data = upload.data[upload.received : upload.received + count]

        async def parts() -> AsyncIterator[bytes]:
            for start in range(0, len(data), PIECE_BYTES):
                yield data[start : start + PIECE_BYTES]
            if breaks:
                raise OSError

        answer, _ = await self._both(
            self.uploads.receive(tenant, upload.id, offset, parts()),
            lambda: self.model.receive(tenant, upload.id, offset, count, breaks=breaks),
        )
        if answer is not None:
            assert answer.received == upload.received

    async def _send_to_bucket(self, upload: Coming) -> None:
        plan = self._plans.get(upload.id)
        if plan is None or plan.url is None or upload.state is not UploadState.OPEN:
            return
        headers = {name: value for name, value in plan.headers.items() if name.lower() != "content-length"}
        answer = await self._stranger.put(plan.url, headers=headers, content=upload.data)
        assert answer.is_success != (upload.id in self._sent), answer.text
        self._sent.add(upload.id)

    async def send_late(self) -> None:
        """Send the objects of uploads that have ended. The URLs work, so the bytes count and are deleted."""
        for storage_key, (plan, data) in list(self._late.items()):
            del self._late[storage_key]
            if await self.store.run(FindKnownStorageKeys(storage_keys=[storage_key])) and plan.url is not None:
                headers = {name: value for name, value in plan.headers.items() if name.lower() != "content-length"}
                await self._stranger.put(plan.url, headers=headers, content=data)

    async def look(self, upload: Coming, tenant: str) -> None:
        """Ask for the offset of an upload."""
        answer, _ = await self._both(
            self.uploads.take_over(tenant, upload.id), lambda: self.model.look(tenant, upload.id)
        )
        if answer is not None:
            assert answer.received == upload.received

    async def complete(self, upload: Coming, tenant: str, *, announced: str | None = None) -> None:
        """Complete an upload, perhaps with the id of a blob, and wait for what goes on in the background."""
        here = upload.received if self.receives else len(upload.data) if upload.id in self._sent else -1
        answer, told = await self._both(
            self.uploads.complete(tenant, upload.id, blob_id=announced),
            lambda: self.model.complete(tenant, upload.id, here=here, announced=announced),
        )
        await self.uploads.verifier.join()
        if answer is not None:
            assert answer.upload.state is told

    async def give_up(self, upload: Coming, tenant: str) -> None:
        """Give up an upload."""
        plan, storage_key = self._plans.get(upload.id), (await self._row(upload)).storage_key
        await self._both(self.uploads.cancel(tenant, upload.id), lambda: self.model.give_up(tenant, upload.id))
        if plan is not None and storage_key is not None and upload.id not in self.model.uploads:
            self._late[storage_key] = plan, upload.data

    async def delete(self, tenant: str, key: str, if_match: str | None) -> None:
        """Delete a key."""
        real = self.blobs.delete(tenant, key, if_match=if_match)
        await self._both(real, lambda: self.model.delete(tenant, key, if_match))

    async def purge(self, tenant: str, owner: str | None) -> None:
        """Delete all keys of an owner."""
        seen = await self.blobs.purge(tenant, owner, act=Act(), dry_run=True)
        done, told = await self._both(
            self.blobs.purge(tenant, owner, act=Act(), dry_run=False), lambda: self.model.purge(tenant, owner)
        )
        assert (seen.keys, seen.bytes) == told
        assert done == PurgeResult(keys=told[0], bytes=told[1])

    async def collect(self) -> None:
        """A round of the collector."""
        done, told = await self._both(self.collector.run_once(), self.model.collect)
        assert done is not None
        assert (done.uploads, done.blobs, done.objects, done.bytes) == told, f"{done} instead of {told}"
        assert done.waiting_bytes == self.model.deleted_bytes()
        assert (done.freed_from, done.freed_by) == self._freed_times(done.waiting_bytes)

    def _freed_times(self, waiting_bytes: int) -> tuple[datetime | None, datetime | None]:
        return self.model.freed_times() if waiting_bytes else (None, None)

    async def preview(self) -> None:
        """What a round would take away. Nothing goes."""
        self.model.now = self.clock.micros()
        going = self.model.condemned()
        size = sum(len(self.model.blobs[blob].data) for blob in going)
        waiting = self.model.deleted_bytes() - size
        freed_from, freed_by = self._freed_times(waiting)
        assert await self.collector.preview() == BlobCollectionResult(
            blobs=len(going),
            bytes=size,
            objects=len(self.model.due_trash()),
            waiting_bytes=waiting,
            freed_from=freed_from,
            freed_by=freed_by,
            dry_run=True,
        )

    async def leave_behind(self, *, finished: bool) -> None:
        """An object, or what there is of one, that no row names."""
        writer = await self.objects.write(storage_key := self.objects.new_storage_key(), size=None)
        await writer.write(b"nobody's")
        await (writer.finish() if finished else writer.abort())
        if finished or self.receives:
            self._strays.add(storage_key)

    async def take_stock(self) -> None:
        """One round of the orphan sweep."""
        before = await self._places()
        assert await self.orphan_sweep.run_once() == len(self._strays)
        assert await self._places() == before - self._strays
        self._strays.clear()

    async def limit(self, tenant: str, quota: int | None) -> None:
        """Give a tenant another quota."""
        await self.bench.tenants.change(tenant, limits=Limits(quota_bytes=quota))
        self.model.quotas[tenant] = quota

    async def hurt(self, blob_key: BlobKey, how: str) -> None:
        """Damage the object of a blob."""
        storage_key = (await self._contents())[blob_key].storage_key
        if storage_key is None or self.model.blobs[blob_key].broken:
            return
        if how == "gone" or not isinstance(self.objects, LocalStore):
            await self.objects.delete(TrashedObject(storage_key=storage_key))
        else:
            path = Layout(str(shelves() / BLOBS_FOLDER)).object_path(storage_key)
            with open(path, "r+b") as file:  # noqa: ASYNC230 - a few bytes
                size = os.fstat(file.fileno()).st_size
                file.seek(size // 2)
                byte = file.read(1)[0]
                file.seek(size // 2)
                file.write(bytes([byte ^ 1]))
                if how == "short":
                    file.truncate(size - 1)
        self.model.blobs[blob_key].broken = True

    async def read(self, tenant: str, blob_id: str) -> None:
        """Read a blob that its tenant sees; one that is broken is known to be so afterwards."""
        blob_key = (tenant, blob_id)
        if not self.model.seen(tenant, blob_id):
            return

        async def real() -> bytes:
            opened, _ = await self.blobs.open_blob(tenant, blob_id)
            return await opened.read_all()

        answer, told = await self._both(real(), lambda: self.model.read(tenant, blob_id))
        assert answer == told
        async with asyncio.timeout(10):  # The damage is noted in the background.
            while self.model.blobs[blob_key].damaged and not (await self._contents())[blob_key].damaged:
                pass

    async def look_at_all(self) -> None:
        """The scrub reads every blob."""
        for blob_key, content in (await self._contents()).items():
            blob = self.model.blobs[blob_key]
            blob.damaged = blob.broken
            assert await self.scrub.scrub_blob(content) is not blob.broken

    # -- the end of what nobody needs -----------------------------------------------------------------------

    async def wait_for_the_end(self) -> None:
        """After the grace and two rounds there is nothing but what something refers to, or has just lost."""
        await self.collect()
        self.pass_time(max(GRACE_SECONDS, self.model.url_lifetime / MICROS))
        await self.collect()
        await self.collect()
        await self.take_stock()
        now = self.clock.micros()
        assert all(self.model.references(*key) or one.free_since == now for key, one in self.model.blobs.items())
        assert all(one.sent_until == now + self.model.url_lifetime for one in self.model.trash)
        contents = await self._contents()
        assert contents.keys() == self.model.blobs.keys()
        kept = {
            one.storage_key for key, one in contents.items() if one.storage_key and not self.model.blobs[key].broken
        }
        opened = [one for one in self.model.uploads.values() if one.under_way]
        on_their_way = {(await self._row(one)).storage_key for one in opened}
        storage_keys = await self._places()
        assert kept <= storage_keys <= kept | on_their_way | {one.storage_key for one in contents.values()}

    # -- comparing ------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """All that the room tells is what the model says."""
        self.model.now = self.clock.micros()
        self._steps += 1
        await asyncio.gather(
            *map(self._check_keys, self.model.tenants),
            *map(self._check_usage, self.model.tenants),
            self._check_uploads(),
            self._check_blobs(),
            self._check_objects(),
        )

    async def _check_keys(self, tenant: str) -> None:
        expected = {name: key for (of, name), key in self.model.keys.items() if of == tenant}
        found = (await self.blobs.keys(tenant, limit=1000)).items
        assert [key.key for key in found] == sorted(expected, key=str.encode)
        for key in found:
            named = expected[key.key]
            assert (key.blob_id, key.sha256, key.size) == (id_of(named.data), sha256_of(named.data), len(named.data))
            assert key.owner == named.owner
            await self._check_bytes(tenant, key.key, named.data)

    async def _check_bytes(self, tenant: str, key: str, data: bytes) -> None:
        blob = self.model.blobs[tenant, id_of(data)]
        if blob.damaged:
            try:
                await self.blobs.open_key(tenant, key)
            except BlobDamaged:
                return
            raise AssertionError("what is damaged was given away")
        if not blob.broken and (self.receives or self._steps % 5 == 0):  # A bucket takes longer.
            assert await (await self.blobs.open_key(tenant, key))[1].read_all() == data

    async def _check_usage(self, tenant: str) -> None:
        counted = await self._recount(tenant)
        for owner in (None, *(one.name for one in self.owners)):
            told = msgspec.structs.replace(await self.blobs.usage(tenant, owner), quota_bytes=None)
            assert told == self.model.usage(tenant, owner) == counted[owner]

    async def _recount(self, tenant: str) -> dict[str | None, Usage]:
        """What rows add up to."""
        counted: dict[str | None, Usage] = {}
        keys = (await self.blobs.keys(tenant, limit=1000)).items
        deleted_bytes = await count_deleted(self.bench, tenant)
        freed = (None, None) if not deleted_bytes.total() else self.model.freed_times(tenant)
        rows = [await self._row(one) for one in self.model.uploads.values() if one.tenant == tenant]
        for owner in (None, *(one.name for one in self.owners)):
            own = [key.size for key in keys if owner in (None, key.owner)]
            mine = [row for row in rows if owner in (None, row.upload.owner)]
            done = [row.upload for row in mine if row.upload.state is UploadState.DONE and row.upload.key is None]
            deleted = deleted_bytes.total() if owner is None else deleted_bytes[owner]
            counted[owner] = Usage(
                bytes=sum(own) + sum(one.size or 0 for one in done),
                reserved_bytes=sum(row.reserved for row in mine),
                deleted_bytes=deleted,
                freed_from=freed[0] if deleted else None,
                freed_by=freed[1] if deleted else None,
                keys=len(own),
            )
        return counted

    async def _row(self, upload: Coming) -> Any:
        row = await self.store.run(GetUpload(tenant=upload.tenant, id=upload.id))
        assert row is not None, "an upload that is not swept is there"
        return row

    async def _check_uploads(self) -> None:
        for one in self.model.uploads.values():
            found = (await self._row(one)).upload
            told = found.state, found.error, found.owner, found.key, to_micros(found.expires_at)
            assert told == (one.state, one.error, one.owner, one.key, one.expires_at)
            if self.receives or one.state is UploadState.DONE:
                assert found.received == one.received
            (stranger,) = set(self.model.tenants) - {one.tenant}
            assert await self.store.run(GetUpload(tenant=stranger, id=one.id)) is None

    async def _contents(self) -> dict[BlobKey, Content]:
        found = await self.store.run(ListBlobsToScrub(before=self.clock.micros() + 1, limit=SCRUBBED_MAX))
        return {(content.tenant or "", content.id): content for content in found}

    async def _check_blobs(self) -> None:
        contents = await self._contents()
        assert contents.keys() == self.model.blobs.keys()
        for key, blob in self.model.blobs.items():
            content = contents[key]
            assert (content.size, content.sha256) == (len(blob.data), sha256_of(blob.data))
            assert content.damaged is blob.damaged
            assert (content.storage_key is None) == (len(blob.data) <= INLINE_BYTES_MAX)
        objects = [one.storage_key for one in contents.values() if one.storage_key is not None]
        assert len(set(objects)) == len(objects), "tenants do not share objects"
        references = await count_references(self.bench)
        ids = {id for _, id in contents}
        expected = {id: sum(self.model.references(tenant, id) for tenant in self.model.tenants) for id in ids}
        assert {id: references[id] for id in ids} == expected
        await asyncio.gather(*map(self._check_seen, ids))
        figures = await self.blobs.metrics()
        sizes = [len(blob.data) for blob in self.model.blobs.values()]
        damaged = sum(blob.damaged for blob in self.model.blobs.values())
        assert (figures.blobs, figures.bytes, figures.damaged) == (len(sizes), sum(sizes), damaged)
        buried = sum(blob.free_since is not None for blob in self.model.blobs.values())
        assert (figures.tombstones, figures.trash) == (buried, len(self.model.trash))
        assert figures.deleted_bytes == self.model.deleted_bytes()
        assert (figures.freed_from, figures.freed_by) == self._freed_times(figures.deleted_bytes)

    async def _check_seen(self, blob_id: str) -> None:
        """Nobody sees a blob but through what refers to it in its tenant."""
        for tenant in self.model.tenants:
            seen = await self.store.run(FindBlob(tenant=tenant, blob_id=blob_id))
            names = set() if seen is None else {one.name for one in seen[1]}
            assert names == self.model.seen(tenant, blob_id)

    async def _check_objects(self) -> None:
        """Every object is somebody's, and what is somebody's is there."""
        contents = await self._contents()
        whole = {
            one.storage_key for key, one in contents.items() if one.storage_key and not self.model.blobs[key].broken
        }
        storage_keys = await self._places()
        known = await self.store.run(FindKnownStorageKeys(storage_keys=list(storage_keys)))
        assert whole | self._strays <= storage_keys <= known | self._strays
        assert len(await self.store.run(ListTrash(limit=1000))) == len(self.model.due_trash())

    async def _places(self) -> set[str]:
        if isinstance(self.objects, LocalStore):
            return {path.name for path in files_in(shelves())}
        return {storage_key async for storage_key, _ in self.objects.list_objects()}

    async def check_news(self) -> None:
        """Everything stored and deleted was told once."""
        for tenant in self.model.tenants:
            events = await self.bench.events.read(tenant, limit=1000)
            found = [
                (event.name, news.blob_id, news.key)
                for event in events
                if event.name.startswith("blob.")
                for news in [msgspec.json.decode(event.data, type=BlobEventData)]
            ]
            assert sorted(found, key=repr) == sorted(self.model.news.get(tenant, []), key=repr)
