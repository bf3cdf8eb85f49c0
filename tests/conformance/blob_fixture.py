"""The blobs of one tenant, with a recount of its usage after every call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import msgspec
import pytest
from blake3 import blake3

from ingot.blobs.model import (
    BlobEventData,
    Content,
    FinishedUpload,
    Key,
    QuotaEventData,
    StoredUpload,
    TombstonedBlob,
    Upload,
    UploadState,
    Usage,
)
from ingot.blobs.ports import (
    BeginUpload,
    CollectBlob,
    DeleteKey,
    EndUpload,
    FinishUpload,
    ForgetTrash,
    GetKey,
    GetUpload,
    GetUsage,
    ListKeys,
    ListTombstonedBlobs,
    ListTrash,
    OpenKey,
    PreviewPurge,
    PutBlob,
    RecordUploadProgress,
    SweepUploads,
    TakeOverUpload,
)
from ingot.events.audit import PROCESS
from ingot.identity import Limits
from ingot.jobs import Enqueued, JobNotFound, NewJob
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import MICROS
from ingot.kernel.commands import Store
from ingot.kernel.ids import new_id
from tests.conformance.tables import count_deleted, count_references
from tests.factories import Bench

OWNER = "token:ann"
HOUR = 3600 * MICROS

R = TypeVar("R")


def content_of(data: bytes, storage_key: str | None = None) -> Content:
    """These bytes, at a place or inline."""
    return Content(
        id=blake3(data).hexdigest(),
        sha256=blake3(b"sha256 of " + data).hexdigest(),  # No engine computes one.
        size=len(data),
        storage_key=storage_key,
        inline=data if storage_key is None else None,
        part_checksums=b"" if storage_key is None else b"c" * 16,
    )


def stored(content: Content) -> Content:
    """A stored content without what `content_of` does not know."""
    return msgspec.structs.replace(content, tenant=None, etag=None)


def id_of(data: bytes) -> str:
    """The id of the blob with these bytes."""
    return content_of(data).id


class BlobFixture:
    """Every call is followed by a recount, whether it is refused or not."""

    def __init__(self, bench: Bench, tenant: str | None = None) -> None:
        self.bench = bench
        self.tenant = tenant or bench.tenant
        self.store = cast(Store, bench.store)
        self.begun: set[str] = set()
        self.owners: set[str] = {OWNER, PROCESS}
        self.jobs: dict[str, str] = {}  # Those that have files, and whose these are.

    async def begin(
        self, reserve: int = 0, *, id: str | None = None, owner: str = OWNER, **values: Any
    ) -> StoredUpload:
        """Begin an upload."""
        id = id or new_id()
        self.begun.add(id)
        self.owners.add(owner)
        values.setdefault("lifetime", HOUR)
        command = BeginUpload(id=id, tenant=self.tenant, owner=owner, reserve=reserve, **values)
        return await self._run(self.store.run(command))

    async def take(self, id: str) -> StoredUpload:
        """Go on with an upload."""
        return await self._run(self.store.run(TakeOverUpload(tenant=self.tenant, id=id)))

    async def note(self, id: str, epoch: int, **values: Any) -> StoredUpload:
        """Tell what is known of an upload."""
        values.setdefault("lifetime", HOUR)
        return await self._run(self.store.run(RecordUploadProgress(tenant=self.tenant, id=id, epoch=epoch, **values)))

    async def finish(self, id: str, content: Content | bytes, **values: Any) -> FinishedUpload:
        """All bytes of an upload are here."""
        content = content_of(content) if isinstance(content, bytes) else content
        values.setdefault("lifetime", HOUR)
        command = FinishUpload(tenant=self.tenant, id=id, content=content, **values)
        return await self._run(self.store.run(command))

    async def end(self, id: str, error: str | None = None, *, lifetime: int = HOUR) -> None:
        """Nothing comes of an upload."""
        await self._run(self.store.run(EndUpload(tenant=self.tenant, id=id, error=error, lifetime=lifetime)))

    async def put(self, key: str, content: Content | bytes, *, owner: str = OWNER, **values: Any) -> Key:
        """Put a blob under a key."""
        self.owners.add(owner)
        content = content_of(content) if isinstance(content, bytes) else content
        values.setdefault("id", new_id())
        command = PutBlob(tenant=self.tenant, owner=owner, key=key, content=content, **values)
        return await self._run(self.store.run(command))

    async def delete(self, key: str, if_match: str | None = None) -> Key:
        """Delete a key."""
        return await self._run(self.store.run(DeleteKey(tenant=self.tenant, key=key, if_match=if_match)))

    async def sweep(self, limit: int = 100) -> int:
        """End uploads whose time is over."""
        return await self._run(self.store.run(SweepUploads(limit=limit)))

    async def collect(self, *, grace: int = HOUR, limit: int = 100) -> list[int]:
        """A round of collecting: the sizes of what was taken away."""
        condemned = await self.store.run(ListTombstonedBlobs(grace=grace, limit=limit))
        sizes = [await self.collect_blob(blob.blob_id, grace=grace, holder=blob.holder) for blob in condemned]
        await self.check()
        return [size for size in sizes if size is not None]

    async def collect_blob(
        self, blob_id: str, *, grace: int = HOUR, holder: str | None = None, dry_run: bool = False
    ) -> int | None:
        """Collect one blob of the tenant, or of another one."""
        holder = holder or self.tenant
        return await self.store.run(CollectBlob(holder=holder, blob_id=blob_id, grace=grace, dry_run=dry_run))

    async def forget(self, *storage_keys: str) -> None:
        """The objects at these places are deleted."""
        await self._run(self.store.run(ForgetTrash(storage_keys=storage_keys)))

    async def deleted(self, owner: str | None = None) -> int:
        """The bytes that are deleted and still there."""
        return (await self.store.run(GetUsage(tenant=self.tenant, owner=owner))).deleted_bytes

    def order(
        self,
        type: str = "noop",
        payload: object = None,
        *,
        uploads: Sequence[str] = (),
        size: int = 5,
        announced: Mapping[str, bytes] | None = None,
        **options: Any,
    ) -> NewJob:
        """An order of `OWNER`, with uploads for inputs of these names: of so many bytes, or of those announced."""
        order = new_job(self.tenant, type, payload, **{"created_by": OWNER, **options})
        coming = [self.upload_of(order, name, size) for name in uploads]
        for name, data in (announced or {}).items():
            coming.append(self.upload_of(order, name, len(data), blob_id=id_of(data)))
        return msgspec.structs.replace(order, uploads=tuple(coming))

    def upload_of(self, order: NewJob, name: str, size: int = 5, **values: Any) -> BeginUpload:
        """The beginning of an upload for an input of an order."""
        return BeginUpload(
            **{
                "id": new_id(),
                "tenant": order.tenant,
                "owner": order.created_by or PROCESS,
                "reserve": size,
                "lifetime": HOUR,
                "size": size,
                "job_id": order.id,
                "file": "input",
                "name": name,
                "storage_key": f"{name} of {order.id}",
                **values,
            }
        )

    async def enqueue(self, *orders: NewJob) -> list[Enqueued]:
        """Enqueue jobs, all or none."""
        for order in orders:
            self.jobs[order.id] = order.created_by or PROCESS
            self.begun.update(upload.id for upload in order.uploads)
        return await self._run(self.bench.jobs.enqueue_many(orders))

    async def files(self, job_id: str) -> list[tuple[str, str, str]]:
        """The kind, the name and the blob of all files of a job."""
        return [(one.kind, one.name, one.blob_id) for one in await self.bench.jobs.files(self.tenant, job_id)]

    async def limit(self, quota: int | None) -> None:
        """Let the tenant keep so many bytes."""
        await self.bench.tenants.change(self.tenant, limits=Limits(quota_bytes=quota))

    async def _run(self, call: Awaitable[R]) -> R:
        try:
            return await call
        finally:
            await self.check()

    # -- looking --------------------------------------------------------------------------------------------

    async def keys(self, prefix: str = "") -> list[str]:
        """The names of all keys with a prefix."""
        found: list[str] = []
        while page := await self.store.run(
            ListKeys(tenant=self.tenant, prefix=prefix, after=found[-1] if found else "", limit=7)
        ):
            found += [key.key for key in page]
        return found

    async def read(self, key: str) -> bytes | None:
        """The bytes under a key, of one that is kept inline."""
        found = await self.store.run(OpenKey(tenant=self.tenant, key=key))
        return None if found is None else found[1].inline

    async def state(self, id: str) -> UploadState | None:
        """Where an upload stands."""
        found = await self.store.run(GetUpload(tenant=self.tenant, id=id))
        return None if found is None else found.upload.state

    async def usage(self, owner: str | None = None) -> tuple[int, int, int]:
        """The bytes, those reserved, and the keys."""
        found = await self.store.run(GetUsage(tenant=self.tenant, owner=owner))
        return found.bytes, found.reserved_bytes, found.keys

    async def trash(self) -> list[str]:
        """The places of what is to be deleted."""
        return sorted(one.storage_key for one in await self.store.run(ListTrash(limit=100)))

    async def condemned(self) -> set[str]:
        """Blobs that have a tombstone."""
        return {*await self.tombstoned()}

    async def tombstoned(self, *, grace: int = 0, limit: int = 100, after: str | None = None) -> list[str]:
        """The same in order, of those that have been there for so long."""
        position = None if after is None else TombstonedBlob(holder=self.tenant, blob_id=after)
        command = ListTombstonedBlobs(grace=grace, limit=limit, after=position)
        return [blob.blob_id for blob in await self.store.run(command)]

    async def references(self, blob_id: str) -> int:
        """How many references there are to a blob in all tenants, those of uploads under way with them."""
        return (await count_references(self.bench))[blob_id]

    async def news(self, name: str) -> list[BlobEventData | QuotaEventData]:
        """What all events with a name told."""
        kind: Any = QuotaEventData if name == "quota.warning" else BlobEventData
        events = await self.bench.events.read(self.tenant, limit=1000)
        return [msgspec.json.decode(event.data, type=kind) for event in events if event.name == name]

    # -- the recount ----------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Usage is what a recount says, of the tenant and of every owner."""
        counted, deleted = await self.recount(), await count_deleted(self.bench, self.tenant)
        for owner in (None, *self.owners):
            usage = await self.store.run(GetUsage(tenant=self.tenant, owner=owner))
            plain = msgspec.structs.replace(usage, quota_bytes=None, deleted_bytes=0, freed_from=None, freed_by=None)
            assert plain == counted.get(owner, Usage()), owner
            assert usage.deleted_bytes == (deleted.total() if owner is None else deleted[owner]), owner
            assert (usage.freed_by is None) is (usage.deleted_bytes == 0)
            purged = await self.store.run(PreviewPurge(tenant=self.tenant, owner=owner))
            assert purged.keys == usage.keys

    async def recount(self) -> dict[str | None, Usage]:
        """What keys, uploads and files of jobs of the tenant add up to, by owner and, under `None`, in all."""
        used: Counter[str] = Counter()
        reserved: Counter[str] = Counter()
        keys: Counter[str] = Counter()
        for name in await self.keys():
            key = await self.store.run(GetKey(tenant=self.tenant, key=name))
            assert key is not None
            used[key.owner] += key.size
            keys[key.owner] += 1
        for id in self.begun:
            found = await self.store.run(GetUpload(tenant=self.tenant, id=id))
            if found is not None:
                reserved[found.upload.owner] += found.reserved
                if found.upload.state is UploadState.DONE and _counts(found.upload):
                    used[found.upload.owner] += found.upload.size or 0
        for job_id, owner in self.jobs.items():
            with suppress(JobNotFound):
                used[owner] += sum(file.size for file in await self.bench.jobs.files(self.tenant, job_id))
        counted: dict[str | None, Usage] = {
            owner: Usage(bytes=used[owner], reserved_bytes=reserved[owner], keys=keys[owner])
            for owner in {*used, *reserved, *keys}
        }
        counted[None] = Usage(bytes=used.total(), reserved_bytes=reserved.total(), keys=keys.total())
        return counted


def _counts(done: Upload) -> bool:
    """Whether it counts by itself: keys do, and files of jobs."""
    return done.key is None and done.file in (None, "output")


@pytest.fixture
async def blobs(bench: Bench) -> BlobFixture:
    """The blobs of the tenant of the bench."""
    return BlobFixture(bench)
