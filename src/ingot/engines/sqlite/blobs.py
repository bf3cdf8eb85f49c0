"""Keys and blobs: set, delete and purge keys, collect blobs, empty the trash, and record scrubs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ingot.blobs import ports
from ingot.blobs.errors import KeyChanged, KeyNotFound
from ingot.blobs.model import Key, PurgeResult, StoreIdentity
from ingot.engines.sqlite.blob_batch import BlobBatch, run_all
from ingot.engines.sqlite.blob_reads import holder_number
from ingot.engines.sqlite.blob_rows import TombstoneRow
from ingot.engines.sqlite.quota import add_deleted, bury
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.engines.sqlite.uploads import check_object_store, complete_upload, new_upload_row, trash_unused_object
from ingot.kernel.errors import IngotError


def put_blobs(tx: Transaction, commands: Sequence[ports.PutBlob]) -> list[Key | IngotError]:
    """Store small blobs under keys."""
    batch = BlobBatch(tx)
    batch.load_keys((command.tenant, command.key) for command in commands)
    batch.load_blobs((command.tenant, command.content.id) for command in commands)
    return run_all(batch, _put, commands)


def _put(batch: BlobBatch, command: ports.PutBlob) -> Key:
    tenant_key, content = (command.tenant, command.key), command.content
    current = batch.keys.get(tenant_key)
    begin = ports.BeginUpload(
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
    upload = new_upload_row(begin, batch.tx.now)
    if current is not None and (current.upload, current.blob_id) == (command.id, content.id):
        trash_unused_object(batch, upload, content)
        return current.as_key()
    batch.check_stored(command.tenant, content)
    replaced = batch.check_key(*tenant_key, command.if_match)
    complete_upload(batch, upload, content, replaced, quota=command.owner_quota)
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
    holder, id = holder_number(tx.writer_state.tenant_numbers, command.holder), bytes.fromhex(command.blob_id)
    row = tx.execute(SQL.blob_to_collect, holder, id).get
    if row is None:
        return None
    number, size, storage_key, sent_until = msgspec.json.decode(row, type=tuple[int, int, str | None, int])
    text = tx.execute(SQL.tombstone_of_blob, number).get
    tombstone = None if text is None else msgspec.json.decode(text, type=TombstoneRow)
    if tombstone is None or tombstone.at > tx.now - command.grace:
        return None
    if tx.execute(SQL.is_blob_referenced, number, id, holder).get:
        return None
    if command.dry_run:
        return size
    if storage_key is not None and not tx.execute(SQL.is_object_shared, storage_key, number).get:
        tenant = None if tombstone.tenant is None else tx.writer_state.tenants.get(tombstone.tenant)
        values = tenant, tombstone.owner, tombstone.size, sent_until
        tx.execute(SQL.insert_trash, storage_key, None, *values)
    else:
        add_deleted(tx, tombstone.tenant, tombstone.owner, -tombstone.size)
    for statement in (SQL.remove_tombstone, SQL.remove_blob_bytes, SQL.remove_blob_checks, SQL.remove_blob):
        tx.execute(statement, number)
    tx.effects.blob_totals["blobs"] -= 1
    tx.effects.blob_totals["bytes"] -= size
    return size


def forget_trash(tx: Transaction, command: ports.ForgetTrash) -> None:
    """Remove deleted objects from the trash, except those that a client could send meanwhile."""
    check_object_store(tx, command.store_id)
    storage_keys = as_json(command.storage_keys)
    rows = tx.read(list[tuple[int, str | None, str, int]], SQL.finished_trash, storage_keys, tx.now)
    for _, tenant, owner, size in rows:
        add_deleted(tx, tenant, owner, -size)
    tx.execute(SQL.remove_trash, as_json([number for number, *_ in rows]))
    tx.execute(SQL.postpone_trash, storage_keys)


def register_object_store(tx: Transaction, command: ports.RegisterObjectStore) -> StoreIdentity:
    """Record the ID of the object store, unless there are objects in another one."""
    store_id: str | None = tx.execute(SQL.object_store_id).get
    if store_id is None or (store_id != command.store_id and not tx.execute(SQL.has_objects).get):
        tx.execute(SQL.put_object_store, command.store_id)
        store_id = command.store_id
    if store_id == command.store_id and command.grace is not None:
        tx.execute(SQL.put_grace, command.grace)
    return StoreIdentity(store_id=store_id, database_id=tx.execute(SQL.database_id).get)


def record_scrub(tx: Transaction, command: ports.RecordScrub) -> None:
    """Record that blobs were read completely, and which of them are damaged."""
    check_object_store(tx, command.store_id)
    for blobs, damaged in ((command.intact, False), (command.damaged, True)):
        if blobs:
            numbers = tx.writer_state.tenant_numbers
            rows = [(numbers.get(tenant), id, storage_key) for tenant, id, storage_key in blobs]
            tx.execute(SQL.record_scrub, as_json(rows), damaged, tx.now)


def clear_keys(tx: Transaction, tenant: int, limit: int) -> int:
    """Delete keys of a removed tenant, up to the limit. Return their number."""
    blobs = tx.read(list[int], SQL.blobs_of_keys, tenant, limit)
    if blobs:
        tx.execute(SQL.clear_keys, tenant, limit)
        bury(tx, dict.fromkeys(blobs, ""))
    return len(blobs)
