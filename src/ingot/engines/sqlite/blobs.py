"""Keys, and the blobs that they are for: set, deleted, collected and looked at."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.blobs import ports
from ingot.blobs.errors import KeyChanged, KeyNotFound
from ingot.blobs.model import Key, PurgeResult, StoreIdentity
from ingot.engines.sqlite.blob_batch import BlobBatch, run_all
from ingot.engines.sqlite.blob_rows import BlobRow
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.engines.sqlite.uploads import complete_upload, new_upload_row, trash_unused_object
from ingot.kernel.errors import IngotError


def put_blobs(tx: Transaction, commands: Sequence[ports.PutBlob]) -> list[Key | IngotError]:
    """Put blobs under keys."""
    shelf = BlobBatch(tx)
    shelf.load_keys((command.tenant, command.key) for command in commands)
    shelf.load_blobs(command.content.id for command in commands)
    return run_all(shelf, _put, commands)


def _put(shelf: BlobBatch, command: ports.PutBlob) -> Key:
    tenant_key, content = (command.tenant, command.key), command.content
    known = shelf.keys.get(tenant_key)
    if known is not None and (known.upload, known.blob_id) == (command.id, content.id):
        trash_unused_object(shelf, content, shelf.blobs.get(content.id))
        return known.as_key()
    shelf.check_stored(content)
    old = shelf.check_key(*tenant_key, command.if_match)
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
    complete_upload(shelf, new_upload_row(upload, shelf.tx.now), content, old, quota=command.owner_quota)
    return shelf.keys[tenant_key].as_key()


def delete_keys(tx: Transaction, commands: Sequence[ports.DeleteKey]) -> list[Key | IngotError]:
    """Delete keys."""
    shelf = BlobBatch(tx)
    shelf.load_keys((command.tenant, command.key) for command in commands)
    return run_all(shelf, _delete, commands)


def _delete(shelf: BlobBatch, command: ports.DeleteKey) -> Key:
    known = shelf.keys.get((command.tenant, command.key))
    if known is None:
        raise KeyNotFound
    if command.if_match not in (None, "*", known.blob_id):
        raise KeyChanged
    shelf.drop_key(known)
    return known.as_key()


def purge_keys(tx: Transaction, command: ports.PurgeKeys) -> PurgeResult:
    """Delete some keys of an owner, or of all."""
    number = tx.writer_state.number_of(command.tenant)
    if command.owner is None:
        names = tx.read(list[str], SQL.keys_of_tenant, number, command.limit)
    else:
        names = tx.read(list[str], SQL.keys_of_owner, number, command.owner, command.limit)
    shelf = BlobBatch(tx)
    shelf.load_keys((command.tenant, name) for name in names)
    keys = list(shelf.keys.values())
    for key in keys:
        shelf.drop_key(key)
    shelf.write()
    purged = PurgeResult(keys=len(keys), bytes=sum(key.size for key in keys), more=len(keys) == command.limit)
    if keys:
        after = {"owner": command.owner, "keys": purged.keys, "bytes": purged.bytes}
        tx.audit(command.act, "keys.purged", f"keys/{command.owner or '*'}", tenant=command.tenant, after=after)
    return purged


def collect_blob(tx: Transaction, command: ports.CollectBlob) -> int | None:
    """Take a blob away that nothing refers to, once its tombstone is old enough."""
    id = bytes.fromhex(command.blob_id)
    found = tx.read(list[BlobRow], SQL.blobs_by_id, as_json([command.blob_id]))
    if not found:
        return None
    (blob,) = found
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
    """Forget objects that were deleted."""
    tx.execute(SQL.remove_trash, as_json(command.storage_keys))


def register_object_store(tx: Transaction, command: ports.RegisterObjectStore) -> StoreIdentity:
    """Remember which object store this is, unless there are objects in another one."""
    known: str | None = tx.execute(SQL.object_store_id).get
    if known is None or (known != command.store_id and not tx.execute(SQL.has_objects).get):
        tx.execute(SQL.put_object_store, command.store_id)
        known = command.store_id
    return StoreIdentity(store_id=known, database_id=tx.execute(SQL.database_id).get)


def record_scrub(tx: Transaction, command: ports.RecordScrub) -> None:
    """Keep when blobs were read, and how they were found."""
    for read, damaged in ((command.intact, False), (command.damaged, True)):
        if read:
            tx.execute(SQL.record_scrub, as_json(read), damaged, tx.now)


def clear_keys(tx: Transaction, tenant: int, limit: int) -> int:
    """Take away keys of a tenant that was removed; answers how many."""
    blobs = tx.read(list[int], SQL.blobs_of_keys, tenant, limit)
    if blobs:
        tx.write_rows(SQL.put_tombstones, [(blob, tx.now) for blob in dict.fromkeys(blobs)])
        tx.execute(SQL.clear_keys, tenant, limit)
    return len(blobs)
