"""Keys and blobs: what comes in with one call, and how it is read, listed and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from ingot.blobs import checks
from ingot.blobs.counters import BlobCounters
from ingot.blobs.errors import BlobDamaged, BlobNotFound, KeyNotFound, QuotaExceeded
from ingot.blobs.hashing import Hasher, inline_content
from ingot.blobs.incoming import CALL_LIFETIME_MICROS, BoundedWriter, IncomingBlob, check_announced
from ingot.blobs.model import (
    FULL_SCOPE,
    INLINE_BYTES_MAX,
    BlobMetrics,
    BlobScope,
    Content,
    Key,
    PurgeResult,
    Reference,
    StoredUpload,
    Usage,
)
from ingot.blobs.open_blob import OpenBlob
from ingot.blobs.ports import (
    BeginUpload,
    DeleteKey,
    EndUpload,
    FindBlob,
    FinishUpload,
    GetBlobMetrics,
    GetKey,
    GetReusableBytes,
    GetUsage,
    ListKeys,
    ObjectStore,
    ObjectWriter,
    OpenKey,
    PreviewPurge,
    PurgeKeys,
    PutBlob,
    RecordScrub,
)
from ingot.events.audit import Act, new_act
from ingot.kernel.commands import Store
from ingot.kernel.errors import StorageFull
from ingot.kernel.ids import new_id
from ingot.kernel.logs import report
from ingot.kernel.pages import Page, check_limit, decode_cursor_position, encode_cursor

BLOB_BYTES_MAX: Final = 1024**4
PURGE_BATCH_KEYS: Final = 500
REUSABLE_BYTES_MIN: Final = 1024 * 1024  # So much is left in the database for what is no blob.


class Blobs:
    """The blobs of all tenants, over an engine and an object store."""

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        *,
        counters: BlobCounters | None = None,
        bytes_max: int = BLOB_BYTES_MAX,
    ) -> None:
        self._store = store
        self._objects = objects
        self.counters = counters or BlobCounters()
        self.bytes_max = bytes_max
        self._damage_report_tasks: set[asyncio.Task[None]] = set()

    # -- bytes come in --------------------------------------------------------------------------------------

    async def put(
        self, key: str, parts: AsyncIterator[bytes], arrival: IncomingBlob, *, if_match: str | None = None
    ) -> Key:
        """Take in a blob, and set a key to it when all of it is here and safe.

        Raises `KeyExists` when there is one, or with `if_match` (the id of a blob, or `*`) `KeyChanged` when it is that
        of another; `QuotaExceeded`, `StorageFull`, `BlobTooLarge`, `WrongDigest`, `WrongLength`. Nothing is left
        behind then.
        """
        with self.counters.count_operation("put"):
            name, told = checks.key(key), arrival.checked(self.bytes_max)
            head = await _read_head(parts)
            if len(head) <= INLINE_BYTES_MAX:
                made = await self._put_small(name, head, told, if_match)
            else:
                made = await self._put_large(name, head, parts, told, if_match)
            self.counters.bytes_in += made.size
            return made

    async def _put_small(self, key: str, data: bytes, told: IncomingBlob, if_match: str | None) -> Key:
        await check_database_space(self._store, self._objects, len(data))
        content = inline_content(data)
        check_announced(content, size=told.size, blob_id=told.blob_id, sha256=told.sha256)
        return await self._store.run(
            PutBlob(
                id=new_id(),
                tenant=told.tenant,
                owner=told.owner,
                key=key,
                content=content,
                content_type=told.content_type,
                original_name=told.original_name,
                if_match=if_match,
                owner_quota=told.owner_quota,
            )
        )

    async def _put_large(
        self, key: str, head: bytes, parts: AsyncIterator[bytes], told: IncomingBlob, if_match: str | None
    ) -> Key:
        storage_key = self._objects.new_storage_key()
        store_id = self._objects.store_id
        command = told.begin_command(
            key=key, if_match=if_match, storage_key=storage_key, store_id=store_id, lifetime=CALL_LIFETIME_MICROS
        )
        begun = await self._begin_upload(command, least=len(head))
        writer, hasher = None, Hasher()
        try:
            writer = await self._objects.write(storage_key, size=told.size)
            intake = BoundedWriter(
                self._store,
                begun,
                writer,
                bytes_max=self.bytes_max,
                lifetime=CALL_LIFETIME_MICROS,
                owner_quota=told.owner_quota,
                hasher=hasher,
            )
            await intake.write_all(_prepend(head, parts))
            content = hasher.content(storage_key=storage_key)
            check_announced(content, size=told.size, blob_id=told.blob_id, sha256=told.sha256)
            await writer.finish()
            finish = FinishUpload(
                tenant=told.tenant,
                id=begun.upload.id,
                content=content,
                lifetime=0,
                epoch=begun.epoch,
                owner_quota=told.owner_quota,
            )
            finished = await self._store.run(finish)
        except BaseException:
            await asyncio.shield(self._end_upload(told.tenant, begun.upload.id, writer))
            raise
        assert finished.key is not None, "it was for a key"
        return finished.key

    async def _begin_upload(self, command: BeginUpload, *, least: int) -> StoredUpload:
        """Begin an upload. For bytes of which nobody says how many they are, as much is set aside as there is room."""
        try:
            return await self._store.run(command)
        except QuotaExceeded:
            if command.size is not None:
                raise
            return await self._store.run(msgspec.structs.replace(command, reserve=least))

    async def _end_upload(self, tenant: str, upload: str, writer: ObjectWriter | None) -> None:
        """Leave nothing behind. What cannot be ended now is swept later."""
        try:
            if writer is not None:
                await writer.abort()
            await self._store.run(EndUpload(tenant=tenant, id=upload))
        except Exception as error:
            report("upload_not_ended", error)

    # -- keys -----------------------------------------------------------------------------------------------

    async def get(self, tenant: str, key: str) -> Key:
        """What is known of a key. Raises `KeyNotFound`."""
        found = await self._store.run(GetKey(tenant=tenant, key=key))
        if found is None:
            raise _key_not_found(key)
        return found

    async def open_key(self, tenant: str, key: str) -> tuple[Key, OpenBlob]:
        """A key and its blob, to be read. Raises `KeyNotFound` or `BlobDamaged`."""
        with self.counters.count_operation("get"):
            found = await self._store.run(OpenKey(tenant=tenant, key=key))
            if found is None:
                raise _key_not_found(key)
            return found[0], self._open_content(found[1])

    async def keys(self, tenant: str, *, prefix: str = "", cursor: str | None = None, limit: int = 50) -> Page[Key]:
        """Keys that begin with a prefix, in the order of their bytes. Raises `InvalidInput`."""
        with self.counters.count_operation("list"):
            known, most = checks.prefix(prefix), check_limit(limit)
            after = (
                decode_cursor_position(
                    cursor, bound_to=(tenant, known), is_valid=lambda storage_key: storage_key.startswith(known)
                )
                or ""
            )
            found = await self._store.run(ListKeys(tenant=tenant, prefix=known, after=after, limit=most))
            more = encode_cursor(found[-1].key, bound_to=(tenant, known)) if len(found) == most else None
            return Page(items=found, next_cursor=more)

    async def delete(self, tenant: str, key: str, *, if_match: str | None = None) -> Key:
        """Delete a key, and answer what it was. Raises `KeyNotFound` or `KeyChanged`."""
        with self.counters.count_operation("delete"):
            command = DeleteKey(tenant=tenant, key=checks.key(key), if_match=if_match)
            try:
                return await self._store.run(command)
            except KeyNotFound:
                raise _key_not_found(key) from None

    async def purge(self, tenant: str, owner: str | None, *, act: Act, dry_run: bool) -> PurgeResult:
        """Delete all keys that an owner set, of all owners with `None`; or tell how many that would be."""
        with self.counters.count_operation("purge"):
            if dry_run:
                return await self._store.run(PreviewPurge(tenant=tenant, owner=owner))
            keys = size = 0
            more = True
            while more:
                step = await self._store.run(
                    PurgeKeys(tenant=tenant, owner=owner, limit=PURGE_BATCH_KEYS, act=new_act(act))
                )
                keys, size, more = keys + step.keys, size + step.bytes, step.more
            return PurgeResult(keys=keys, bytes=size)

    # -- blobs ----------------------------------------------------------------------------------------------

    async def open_blob(
        self, tenant: str, blob_id: str, sight: BlobScope = FULL_SCOPE
    ) -> tuple[OpenBlob, list[Reference]]:
        """A blob that something in sight in the tenant refers to. Raises `BlobNotFound` or `BlobDamaged`."""
        with self.counters.count_operation("get"):
            content, references = await self._find_blob(tenant, blob_id, sight)
            return self._open_content(content), references

    async def references(
        self, tenant: str, blob_id: str, sight: BlobScope = FULL_SCOPE
    ) -> tuple[Content, list[Reference]]:
        """Why a blob is kept, as far as this tenant is concerned and it is in sight. Raises `BlobNotFound`."""
        with self.counters.count_operation("why"):
            return await self._find_blob(tenant, blob_id, sight)

    async def usage(self, tenant: str, owner: str | None = None) -> Usage:
        """What a tenant uses, or one owner in it."""
        return await self._store.run(GetUsage(tenant=tenant, owner=owner))

    async def metrics(self) -> BlobMetrics:
        """How things stand with the blobs of all tenants."""
        return await self._store.run(GetBlobMetrics())

    async def _find_blob(self, tenant: str, blob_id: str, sight: BlobScope) -> tuple[Content, list[Reference]]:
        found = (
            await self._store.run(FindBlob(tenant=tenant, blob_id=blob_id, scope=sight))
            if checks.is_digest(blob_id)
            else None
        )
        if found is None:
            raise BlobNotFound(f"there is no blob {blob_id[:64]!r} here")
        return found

    def _open_content(self, content: Content) -> OpenBlob:
        return OpenBlob(content, self._objects, self._report_damage)

    def _report_damage(self, content: Content) -> None:
        """Keep in mind that a blob is damaged; whoever reads it has been told by then."""
        self.counters.damage_found += 1
        report("blob_damaged", BlobDamaged(), blob_id=content.id)
        telling = asyncio.ensure_future(self._record_damage(content))
        self._damage_report_tasks.add(telling)
        telling.add_done_callback(self._damage_report_tasks.discard)

    async def _record_damage(self, content: Content) -> None:
        try:
            await self._store.run(RecordScrub(damaged=[(content.id, content.storage_key)]))
        except Exception as error:
            report("damage_not_noted", error, blob_id=content.id)


def _key_not_found(key: str) -> KeyNotFound:
    return KeyNotFound(f"there is no key {key[:64]!r}")


async def check_database_space(store: Store, objects: ObjectStore, size: int) -> None:
    """Raise `StorageFull` unless the database has room, on the disk or in what it has of it already.

    Its file does not become smaller when something is deleted.
    """
    try:
        objects.check_free_space(size)
    except StorageFull:
        left = await store.run(GetReusableBytes())
        if left is not None and left < REUSABLE_BYTES_MIN:
            raise


async def _read_head(parts: AsyncIterator[bytes]) -> bytes:
    """The first bytes, more than are kept inline when there are more."""
    head = b""
    while len(head) <= INLINE_BYTES_MAX:
        part = await anext(parts, None)
        if part is None:
            break
        head = head + part if head else part
    return head


async def _prepend(head: bytes, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for part in parts:
        yield part
