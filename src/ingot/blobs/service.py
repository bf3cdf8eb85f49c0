"""Keys and blobs: storing with one request, reading, listing and deleting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from ingot.blobs import checks
from ingot.blobs.counters import BlobCounters
from ingot.blobs.errors import BlobDamaged, BlobNotFound, KeyNotFound, QuotaExceeded
from ingot.blobs.hashing import Hasher, inline_content
from ingot.blobs.incoming import CALL_LIFETIME_MICROS, BoundedWriter, IncomingBlob, check_announced
from ingot.blobs.key_ranges import KeyRange, key_ranges
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
    TrashedObject,
    Usage,
)
from ingot.blobs.open_blob import OpenBlob
from ingot.blobs.ports import (
    BeginUpload,
    DeleteKey,
    EndUpload,
    FindBlob,
    FinishUpload,
    ForgetTrash,
    GetBlobMetrics,
    GetKey,
    GetReusableBytes,
    GetUpload,
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
REUSABLE_BYTES_MIN: Final = 1024 * 1024  # Reserve in the database for everything that is not a blob.


class Blobs:
    """The blobs and keys of all tenants, in an engine and an object store."""

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        *,
        counters: BlobCounters | None = None,
        bytes_max: int = BLOB_BYTES_MAX,
        server: str | None = None,
    ) -> None:
        self._store = store
        self._objects = objects
        self.counters = counters or BlobCounters()
        self.bytes_max = bytes_max
        self._server = server  # The ID under which this process is registered as a server.
        self._damage_report_tasks: set[asyncio.Task[None]] = set()

    # -- storing --------------------------------------------------------------------------------------------

    async def put(
        self, key: str, parts: AsyncIterator[bytes], incoming: IncomingBlob, *, if_match: str | None = None
    ) -> Key:
        """Store a blob, and set a key to it when all bytes are durable.

        Raises `KeyExists` if the key exists, or `KeyChanged` if it does not refer to `if_match`, which is a blob ID or
        `*` for any. Raises `QuotaExceeded`, `StorageFull`, `BlobTooLarge`, `WrongDigest` or `WrongLength`. After an
        error nothing is left.
        """
        with self.counters.count_operation("put"):
            key, incoming = checks.key(key), incoming.checked(self.bytes_max)
            head = await _read_head(parts)
            if len(head) <= INLINE_BYTES_MAX:
                stored_key = await self._put_small(key, head, incoming, if_match)
            else:
                stored_key = await self._put_large(key, head, parts, incoming, if_match)
            self.counters.bytes_in += stored_key.size
            return stored_key

    async def _put_small(self, key: str, data: bytes, incoming: IncomingBlob, if_match: str | None) -> Key:
        await check_database_space(self._store, self._objects, len(data))
        content = inline_content(data)
        check_announced(content, size=incoming.size, blob_id=incoming.blob_id, sha256=incoming.sha256)
        return await self._store.run(
            PutBlob(
                id=new_id(),
                tenant=incoming.tenant,
                owner=incoming.owner,
                key=key,
                content=content,
                content_type=incoming.content_type,
                original_name=incoming.original_name,
                if_match=if_match,
                owner_quota=incoming.owner_quota,
            )
        )

    async def _put_large(
        self, key: str, head: bytes, parts: AsyncIterator[bytes], incoming: IncomingBlob, if_match: str | None
    ) -> Key:
        storage_key = self._objects.new_storage_key()
        store_id = self._objects.store_id
        command = incoming.begin_command(
            key=key,
            if_match=if_match,
            storage_key=storage_key,
            store_id=store_id,
            server=self._server,
            lifetime=CALL_LIFETIME_MICROS,
        )
        stored = await self._begin_upload(command, minimum_reservation=len(head))
        writer, hasher = None, Hasher()
        try:
            writer = await self._objects.write(storage_key, size=incoming.size)
            bounded_writer = BoundedWriter(
                self._store,
                stored,
                writer,
                bytes_max=self.bytes_max,
                lifetime=CALL_LIFETIME_MICROS,
                owner_quota=incoming.owner_quota,
                hasher=hasher,
            )
            await bounded_writer.write_all(_prepend(head, parts))
            content = hasher.content(storage_key=storage_key)
            check_announced(content, size=incoming.size, blob_id=incoming.blob_id, sha256=incoming.sha256)
            await writer.finish()
            content = msgspec.structs.replace(content, etag=await self._objects.etag(storage_key))
            finish = FinishUpload(
                tenant=incoming.tenant,
                id=stored.upload.id,
                content=content,
                lifetime=0,
                epoch=stored.epoch,
                owner_quota=incoming.owner_quota,
            )
            finished = await self._store.run(finish)
        except BaseException:
            await asyncio.shield(self._end_upload(incoming.tenant, stored.upload.id, storage_key, writer))
            raise
        assert finished.key is not None, "an upload for a key has a key when it is finished"
        return finished.key

    async def _begin_upload(self, command: BeginUpload, *, minimum_reservation: int) -> StoredUpload:
        """Begin an upload. If its size is unknown and the quota too small for the usual reservation, reserve less."""
        try:
            return await self._store.run(command)
        except QuotaExceeded:
            if command.size is not None:
                raise
            return await self._store.run(msgspec.structs.replace(command, reserve=minimum_reservation))

    async def _end_upload(self, tenant: str, upload: str, storage_key: str, writer: ObjectWriter | None) -> None:
        """End an upload after an error, and delete its object, so that its bytes no longer count.

        If that fails, the upload expires and is swept later, or the garbage collector deletes the object.
        """
        try:
            if writer is not None:
                await writer.abort()
            await self._store.run(EndUpload(tenant=tenant, id=upload))
            if await self._store.run(GetUpload(tenant=tenant, id=upload)) is None:  # It was not done.
                await self._objects.delete(TrashedObject(storage_key=storage_key))
                forget = ForgetTrash(storage_keys=[storage_key], store_id=self._objects.store_id)
                await self._store.run(forget)
        except Exception as error:
            report("upload_not_ended", error)

    # -- keys -----------------------------------------------------------------------------------------------

    async def get(self, tenant: str, key: str) -> Key:
        """Return a key. Raises `KeyNotFound`."""
        stored_key = await self._store.run(GetKey(tenant=tenant, key=key))
        if stored_key is None:
            raise _key_not_found(key)
        return stored_key

    async def open_key(self, tenant: str, key: str) -> tuple[Key, OpenBlob]:
        """Return a key and its blob to read. Raises `KeyNotFound` or `BlobDamaged`."""
        with self.counters.count_operation("get"):
            key_and_content = await self._store.run(OpenKey(tenant=tenant, key=key))
            if key_and_content is None:
                raise _key_not_found(key)
            stored_key, content = key_and_content
            return stored_key, self._open_content(content)

    async def keys(
        self,
        tenant: str,
        *,
        prefix: str = "",
        cursor: str | None = None,
        limit: int = 50,
        within: Sequence[str] | None = None,
    ) -> Page[Key]:
        """List the keys with a prefix, in the order of their UTF-8 bytes. Raises `InvalidInput`.

        With `within`, only keys that begin with one of these names in whole segments are listed. Other keys change
        neither the page nor its cost.
        """
        with self.counters.count_operation("list"):
            prefix, limit = checks.prefix(prefix), check_limit(limit)
            after = (
                decode_cursor_position(cursor, bound_to=(tenant, prefix), is_valid=lambda key: key.startswith(prefix))
                or ""
            )
            keys: list[Key] = []
            for key_range in key_ranges(prefix, within):
                if len(keys) < limit:
                    keys += await self._keys_in(tenant, key_range, after, limit - len(keys))
            next_cursor = encode_cursor(keys[-1].key, bound_to=(tenant, prefix)) if len(keys) == limit else None
            return Page(items=keys, next_cursor=next_cursor)

    async def _keys_in(self, tenant: str, key_range: KeyRange, after: str, limit: int) -> list[Key]:
        start = key_range.start
        if after > start and not after.startswith(start):
            return []  # The whole range is before `after`.
        if key_range.is_one_key:
            key = None if after >= start else await self._store.run(GetKey(tenant=tenant, key=start))
            return [] if key is None else [key]
        if after < start:
            after = ""
        return await self._store.run(ListKeys(tenant=tenant, prefix=start, after=after, limit=limit))

    async def delete(self, tenant: str, key: str, *, if_match: str | None = None) -> Key:
        """Delete a key and return it. Raises `KeyNotFound` or `KeyChanged`."""
        with self.counters.count_operation("delete"):
            command = DeleteKey(tenant=tenant, key=checks.key(key), if_match=if_match)
            try:
                return await self._store.run(command)
            except KeyNotFound:
                raise _key_not_found(key) from None

    async def purge(self, tenant: str, owner: str | None, *, act: Act, dry_run: bool) -> PurgeResult:
        """Delete all keys of an owner, or of all owners with `None`. With `dry_run`, only count them."""
        with self.counters.count_operation("purge"):
            if dry_run:
                return await self._store.run(PreviewPurge(tenant=tenant, owner=owner))
            keys = size = 0
            more = True
            while more:
                batch = await self._store.run(
                    PurgeKeys(tenant=tenant, owner=owner, limit=PURGE_BATCH_KEYS, act=new_act(act))
                )
                keys, size, more = keys + batch.keys, size + batch.bytes, batch.more
            return PurgeResult(keys=keys, bytes=size)

    # -- blobs ----------------------------------------------------------------------------------------------

    async def open_blob(
        self, tenant: str, blob_id: str, scope: BlobScope = FULL_SCOPE
    ) -> tuple[OpenBlob, list[Reference]]:
        """Return a blob to read, and its references in the tenant and `scope`. Raises `BlobNotFound` or `BlobDamaged`.

        Without a reference in the tenant and `scope`, the blob is not found.
        """
        with self.counters.count_operation("get"):
            content, references = await self._find_blob(tenant, blob_id, scope)
            return self._open_content(content), references

    async def references(
        self, tenant: str, blob_id: str, scope: BlobScope = FULL_SCOPE
    ) -> tuple[Content, list[Reference]]:
        """Return the references of a blob in this tenant and `scope`. Raises `BlobNotFound` if there is none."""
        with self.counters.count_operation("why"):
            return await self._find_blob(tenant, blob_id, scope)

    async def usage(self, tenant: str, owner: str | None = None) -> Usage:
        """Return the usage of a tenant, or of one owner in it."""
        return await self._store.run(GetUsage(tenant=tenant, owner=owner))

    async def metrics(self) -> BlobMetrics:
        """Return the metrics of the blobs of all tenants."""
        return await self._store.run(GetBlobMetrics())

    async def _find_blob(self, tenant: str, blob_id: str, scope: BlobScope) -> tuple[Content, list[Reference]]:
        content_and_references = (
            await self._store.run(FindBlob(tenant=tenant, blob_id=blob_id, scope=scope))
            if checks.is_digest(blob_id)
            else None
        )
        if content_and_references is None:
            raise BlobNotFound(f"there is no blob {blob_id[:64]!r} in this tenant")
        return content_and_references

    def _open_content(self, content: Content) -> OpenBlob:
        return OpenBlob(content, self._objects, self._report_damage)

    def _report_damage(self, content: Content) -> None:
        """Record in the background that a blob is damaged. Its reader gets the error at the same time."""
        self.counters.damage_found += 1
        report("blob_damaged", BlobDamaged(), blob_id=content.id)
        task = asyncio.ensure_future(self._record_damage(content))
        self._damage_report_tasks.add(task)
        task.add_done_callback(self._damage_report_tasks.discard)

    async def _record_damage(self, content: Content) -> None:
        try:
            blobs = [(content.tenant or "", content.id, content.storage_key)]
            await self._store.run(RecordScrub(damaged=blobs, store_id=self._objects.store_id))
        except Exception as error:
            report("damage_not_recorded", error, blob_id=content.id)


def _key_not_found(key: str) -> KeyNotFound:
    return KeyNotFound(f"there is no key {key[:64]!r}")


async def check_database_space(store: Store, objects: ObjectStore, size: int) -> None:
    """Raise `StorageFull` unless the database can store `size` bytes, on free disk or in free pages of its file.

    The file of a database does not shrink when rows are deleted, so a full disk may still leave free pages.
    """
    try:
        objects.check_free_space(size)
    except StorageFull:
        reusable = await store.run(GetReusableBytes())
        if reusable is not None and reusable < REUSABLE_BYTES_MIN:
            raise


async def _read_head(parts: AsyncIterator[bytes]) -> bytes:
    """Read until the stream ends or there are more bytes than fit inline."""
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
