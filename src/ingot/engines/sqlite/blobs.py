"""Keys and blobs: set, delete and purge keys, collect blobs, empty the trash, and record scrubs."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.blobs import ports
from ingot.blobs.errors import KeyChanged, KeyNotFound
from ingot.blobs.model import Key, PurgeResult, StoreIdentity
from ingot.engines.sqlite.blob_batch import BlobBatch, run_all
from ingot.engines.sqlite.blob_rows import BlobRow
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.engines.sqlite.uploads import check_object_store, complete_upload, new_upload_row, trash_unused_object
from ingot.kernel.errors import IngotError


def put_blobs(tx: Transaction, commands: Sequence[ports.PutBlob]) -> list[Key | IngotError]:
    """Store small blobs under keys."""
    batch = BlobBatch(tx)
    batch.load_keys((command.tenant, command.key) for command in commands)
    batch.load_blobs(command.content.id for command in commands)
    return run_all(batch, _put, commands)


def _put(batch: BlobBatch, command: ports.PutBlob) -> Key:
    tenant_key, content = (command.tenant, command.key), command.content
    current = batch.keys.get(tenant_key)
    if current is not None and (current.upload, current.blob_id) == (command.id, content.id):
        trash_unused_object(batch, content, batch.blobs.get(content.id))
        return current.as_key()
    batch.check_stored(content)
    replaced = batch.check_key(*tenant_key, command.if_match)
    upload = ports.BeginUpload(
        tenant=command.tenant,
        id=command.id,
        owner=command.owner,
        reserve=0,
        lifetime=0,
        content_type=command.content_type,
        original_name=command.original_name,
        key=command.key,
        if_match=command.if_match,
    )
    complete_upload(batch, new_upload_row(upload, batch.tx.now), content, replaced, quota=command.owner_quota)
    return batch.keys[tenant_key].as_key()


def delete_keys(tx: Transaction, commands: Sequence[ports.DeleteKey]) -> list[Key | IngotError]:
    """Delete keys."""
    batch = BlobBatch(tx)
    batch.load_keys((command.tenant, command.key) for command in commands)
    return run_all(batch, _delete, commands)


def _delete(batch: BlobBatch, command: ports.DeleteKey) -> Key:
    key = batch.keys.get((command.tenant, command.key))
    if key is None:
        raise KeyNotFound
    if command.if_match not in (None, "*", key.blob_id):
        raise KeyChanged
    batch.drop_key(key)
    return key.as_key()


def purge_keys(tx: Transaction, command: ports.PurgeKeys) -> PurgeResult:
    """Delete keys of an owner, or of all owners, up to the limit."""
    number = tx.writer_state.number_of(command.tenant)
    if command.owner is None:
        names = tx.read(list[str], SQL.keys_of_tenant, number, command.limit)
    else:
        names = tx.read(list[str], SQL.keys_of_owner, number, command.owner, command.limit)
    batch = BlobBatch(tx)
    batch.load_keys((command.tenant, name) for name in names)
    keys = list(batch.keys.values())
    for key in keys:
        batch.drop_key(key)
    batch.write()
    purged = PurgeResult(keys=len(keys), bytes=sum(key.size for key in keys), more=len(keys) == command.limit)
    if keys:
        after = {"owner": command.owner, "keys": purged.keys, "bytes": purged.bytes}
        tx.audit(command.act, "keys.purged", f"keys/{command.owner or '*'}", tenant=command.tenant, after=after)
    return purged


def collect_blob(tx: Transaction, command: ports.CollectBlob) -> int | None:
    """Delete a blob that has no references, once its tombstone is old enough. Return its size."""
    id = bytes.fromhex(command.blob_id)
    blobs = tx.read(list[BlobRow], SQL.blobs_by_id, as_json([command.blob_id]))
    if not blobs:
        return None
    (blob,) = blobs
    if tx.execute(SQL.is_blob_referenced, blob.number, id).get:
        if not command.dry_run:
            tx.execute(SQL.remove_tombstone, blob.number)
        return None
    at: int | None = tx.execute(SQL.tombstone_of_blob, blob.number).get
    if at is None or at > tx.now - command.grace:
        return None
    if command.dry_run:
        return blob.size
    if blob.storage_key is not None:
        tx.execute(SQL.insert_trash, blob.storage_key, None)
    for statement in (SQL.remove_tombstone, SQL.remove_blob_bytes, SQL.remove_blob_checks, SQL.remove_blob):
        tx.execute(statement, blob.number)
    tx.effects.blob_totals["blobs"] -= 1
    tx.effects.blob_totals["bytes"] -= blob.size
    return blob.size


def forget_trash(tx: Transaction, command: ports.ForgetTrash) -> None:
    """Remove deleted objects from the trash."""
    check_object_store(tx, command.store_id)
    tx.execute(SQL.remove_trash, as_json(command.storage_keys))


def register_object_store(tx: Transaction, command: ports.RegisterObjectStore) -> StoreIdentity:
    """Record the ID of the object store, unless there are objects in another one."""
    store_id: str | None = tx.execute(SQL.object_store_id).get
    if store_id is None or (store_id != command.store_id and not tx.execute(SQL.has_objects).get):
        tx.execute(SQL.put_object_store, command.store_id)
        store_id = command.store_id
    return StoreIdentity(store_id=store_id, database_id=tx.execute(SQL.database_id).get)


def record_scrub(tx: Transaction, command: ports.RecordScrub) -> None:
    """Record that blobs were read completely, and which of them are damaged."""
    check_object_store(tx, command.store_id)
    for blobs, damaged in ((command.intact, False), (command.damaged, True)):
        if blobs:
            tx.execute(SQL.record_scrub, as_json(blobs), damaged, tx.now)


def clear_keys(tx: Transaction, tenant: int, limit: int) -> int:
    """Delete keys of a removed tenant, up to the limit. Return their number."""
    blobs = tx.read(list[int], SQL.blobs_of_keys, tenant, limit)
    if blobs:
        tx.write_rows(SQL.put_tombstones, [(blob, tx.now) for blob in dict.fromkeys(blobs)])
        tx.execute(SQL.clear_keys, tenant, limit)
    return len(blobs)
