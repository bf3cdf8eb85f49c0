"""The part of the store that keeps blobs."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from ingot.blobs.model import (
    EVERYTHING,
    BlobFigures,
    Content,
    Finished,
    Home,
    Key,
    OpenUpload,
    Purged,
    Reference,
    Sight,
    Trash,
    Usage,
)
from ingot.blobs.ports import (
    BeginUpload,
    CollectBlob,
    DeleteKey,
    EndUpload,
    FinishUpload,
    ForgetTrash,
    KeepObjects,
    NoteScrub,
    NoteUpload,
    PurgeKeys,
    PutBlob,
    SweepUploads,
    TakeUpload,
)
from ingot.engines.postgres import blobs, files, identity
from ingot.engines.postgres.batches import Batches
from ingot.engines.postgres.blob_rows import ReferenceRow, UploadRow, content_of, digest_of, key_of
from ingot.engines.postgres.connection import Record
from ingot.engines.postgres.people_reads import PeopleReads
from ingot.engines.postgres.sql import SQL
from ingot.identity.model import TenantNotFound
from ingot.jobs.errors import JobNotFound
from ingot.jobs.files import JobFile, JobFileKind, RunningJob
from ingot.kernel.clock import to_datetime_or_none
from ingot.kernel.ids import is_id

IN_FLIGHT_MAX: Final = 1  # Each holds what tenants keep: a second batch would mostly wait for the first.
REFERENCES_MAX: Final = 100
FIGURE_ROWS_MAX: Final = 10_000  # What is not counted as it changes is counted up to here.
CODE_POINT_MAX: Final = 0x10FFFF
SURROGATES: Final = range(0xD800, 0xE000)


class Blobs(PeopleReads):
    """Blobs, keys and uploads, in the same database as all the rest."""

    def _open_blobs(self) -> None:
        """Begin to take commands."""
        db, memory = self.database, self.memory
        self._puts: Batches[PutBlob, Key] = Batches(
            partial(blobs.put_blobs, db, memory),
            weigh=blobs.weigh,
            in_flight_max=IN_FLIGHT_MAX,
            told=partial(memory.tell_committed, "put_blob"),
        )
        self._finishes: Batches[FinishUpload, Finished] = Batches(
            partial(blobs.finish_uploads, db, memory),
            weigh=blobs.weigh,
            in_flight_max=IN_FLIGHT_MAX,
            told=partial(memory.tell_committed, "finish_upload"),
        )
        self._deletes: Batches[DeleteKey, Key] = Batches(
            partial(blobs.delete_keys, db, memory),
            weigh=lambda _: 1,
            in_flight_max=IN_FLIGHT_MAX,
            told=partial(memory.tell_committed, "delete_key"),
        )

    @property
    def _blob_batches(self) -> tuple[Batches[Any, Any], ...]:
        return self._puts, self._finishes, self._deletes

    # -- commands -------------------------------------------------------------------------------------------

    def begin_upload(self, command: BeginUpload) -> Awaitable[OpenUpload]:
        """See `BlobStore`."""
        return blobs.begin_upload(self.database, self.memory, command)

    def take_upload(self, command: TakeUpload) -> Awaitable[OpenUpload]:
        """See `BlobStore`."""
        return blobs.take_upload(self.database, command)

    def note_upload(self, command: NoteUpload) -> Awaitable[OpenUpload]:
        """See `BlobStore`."""
        return blobs.note_upload(self.database, self.memory, command)

    def finish_upload(self, command: FinishUpload) -> Awaitable[Finished]:
        """See `BlobStore`."""
        return self._finishes.submit(command)

    def end_upload(self, command: EndUpload) -> Awaitable[None]:
        """See `BlobStore`."""
        return blobs.end_upload(self.database, self.memory, command)

    def put_blob(self, command: PutBlob) -> Awaitable[Key]:
        """See `BlobStore`."""
        return self._puts.submit(command)

    def delete_key(self, command: DeleteKey) -> Awaitable[Key]:
        """See `BlobStore`."""
        return self._deletes.submit(command)

    def purge_keys(self, command: PurgeKeys) -> Awaitable[Purged]:
        """See `BlobStore`."""
        return blobs.purge_keys(self.database, self.memory, command)

    def sweep_uploads(self, command: SweepUploads) -> Awaitable[int]:
        """See `BlobStore`."""
        return blobs.sweep_uploads(self.database, self.memory, command)

    def collect_blob(self, command: CollectBlob) -> Awaitable[int | None]:
        """See `BlobStore`."""
        return blobs.collect_blob(self.database, command)

    def forget_trash(self, command: ForgetTrash) -> Awaitable[None]:
        """See `BlobStore`."""
        return blobs.forget_trash(self.database, command)

    def note_scrub(self, command: NoteScrub) -> Awaitable[None]:
        """See `BlobStore`."""
        return blobs.note_scrub(self.database, command)

    # -- files of jobs --------------------------------------------------------------------------------------

    async def list_files(self, tenant: str, job_id: str) -> list[JobFile]:
        """See `FileStore`."""
        if not self._can_be(tenant, job_id):
            raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
        return await files.list_files(self.database, tenant, job_id)

    def find_running(self, job_id: str, fence: int, *, tenant: str | None, worker: str | None) -> Awaitable[RunningJob]:
        """See `FileStore`."""
        return files.find_running(self.database, job_id, fence, tenant=tenant, worker=worker)

    def open_file(
        self, job_id: str, fence: int, kind: JobFileKind, name: str, *, tenant: str | None, worker: str | None
    ) -> Awaitable[tuple[JobFile, Content]]:
        """See `FileStore`."""
        return files.open_file(self.database, job_id, fence, kind, name, tenant=tenant, worker=worker)

    # -- reads ----------------------------------------------------------------------------------------------

    async def get_key(self, tenant: str, key: str) -> Key | None:
        """See `BlobStore`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        rows = await self.database.read(tenant, SQL.get_key, tenant, key)
        return key_of(rows[0], key) if rows else None

    async def open_key(self, tenant: str, key: str) -> tuple[Key, Content] | None:
        """See `BlobStore`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        rows = await self.database.call("SELECT * FROM ingot.open_key($1, $2)", tenant, key)
        return (key_of(rows[0], key), content_of(rows[0])) if rows else None

    async def list_keys(self, tenant: str, *, prefix: str, after: str, limit: int) -> list[Key]:
        """See `BlobStore`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        row = (tenant, prefix, after, limit)
        end = _behind(prefix)
        if end is None:
            rows = await self.database.read(tenant, SQL.page_of_keys, *row)
        else:
            rows = await self.database.read(tenant, SQL.page_of_keys_below, *row, end)
        return [key_of(found, found["key"]) for found in rows]

    async def open_blob(
        self, tenant: str, blob_id: str, sight: Sight = EVERYTHING
    ) -> tuple[Content, list[Reference]] | None:
        """See `BlobStore`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        digest = digest_of(blob_id)
        if digest is None:
            return None
        seen = sight.keys, sight.uploads, sight.types
        rows = await self.database.call(
            "SELECT * FROM ingot.open_blob($1, $2, $3, $4, $5, $6)", tenant, digest, REFERENCES_MAX, *seen
        )
        if not rows:
            return None
        references = msgspec.json.decode(rows[0]["refers"], type=list[ReferenceRow])
        return content_of(rows[0]), [one.reference() for one in references]

    async def get_upload(self, tenant: str, id: str) -> OpenUpload | None:
        """See `BlobStore`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        if not is_id(id):
            return None
        rows = await self.database.read(tenant, SQL.get_upload, tenant, id)
        return UploadRow.read(rows[0][0]).open_upload() if rows else None

    async def list_verifying(self, *, limit: int) -> list[OpenUpload]:
        """See `BlobStore`."""
        rows = await self.database.call("SELECT ingot.list_verifying($1)", limit)
        return [UploadRow.read(text).open_upload() for (text,) in rows]

    async def get_usage(self, tenant: str, owner: str | None = None) -> Usage:
        """See `BlobStore`."""
        try:
            row = await self._usage(tenant, owner)
        except TenantNotFound:
            return Usage()
        return Usage(bytes=row["bytes"], reserved_bytes=row["reserved"], keys=row["keys"], quota_bytes=row["quota"])

    async def preview_purge(self, tenant: str, owner: str | None) -> Purged:
        """See `BlobStore`."""
        row = await self._usage(tenant, owner)
        return Purged(keys=row["keys"], bytes=row["key_bytes"], dry_run=True)

    async def _usage(self, tenant: str, owner: str | None) -> Record:
        await identity.check_tenant(self.database, self.memory, tenant)
        (row,) = await self.database.call("SELECT * FROM ingot.get_usage($1, $2)", tenant, owner or "")
        return row

    async def keep_objects(self, command: KeepObjects) -> Home:
        """See `BlobStore`."""
        (row,) = await self.database.call("SELECT * FROM ingot.keep_objects($1)", command.store_id)
        return Home(store_id=row["store_id"], database=row["database"])

    async def list_condemned(self, *, grace: int, limit: int, after: str | None = None) -> list[str]:
        """See `BlobStore`."""
        passed = None if after is None else bytes.fromhex(after)
        rows = await self.database.call("SELECT ingot.list_condemned($1, $2, $3)", grace, limit, passed)
        return [digest.hex() for (digest,) in rows]

    async def list_trash(self, *, limit: int, after: str = "") -> list[Trash]:
        """See `BlobStore`."""
        rows = await self.database.call("SELECT * FROM ingot.list_trash($1, $2)", limit, after)
        return [Trash(place=row["place"], multipart=row["multipart"]) for row in rows]

    async def known_places(self, places: Sequence[str]) -> set[str]:
        """See `BlobStore`."""
        rows = await self.database.call("SELECT ingot.known_places($1)", list(places))
        return {place for (place,) in rows}

    async def list_to_scrub(self, *, before: int, limit: int) -> list[Content]:
        """See `BlobStore`."""
        rows = await self.database.call("SELECT * FROM ingot.list_to_scrub($1, $2)", before, limit)
        return [content_of(row) for row in rows]

    async def blob_figures(self) -> BlobFigures:
        """See `BlobStore`."""
        (row,) = await self.database.call("SELECT * FROM ingot.blob_figures($1)", FIGURE_ROWS_MAX)
        return BlobFigures(
            blobs=row["blobs"],
            bytes=row["bytes"],
            damaged=row["damaged"],
            tombstones=row["tombstones"],
            trash=row["trash"],
            uploads=row["uploads"],
            verified_before=to_datetime_or_none(row["verified_before"]),
        )

    async def reusable_bytes(self) -> int | None:
        """See `BlobStore`."""
        return None


def _behind(prefix: str) -> str | None:
    """The first text behind all that begin with this, in the order of code points, which is that of UTF-8 bytes."""
    while prefix:
        last = ord(prefix[-1]) + 1
        if last <= CODE_POINT_MAX:
            return prefix[:-1] + chr(SURROGATES.stop if last in SURROGATES else last)
        prefix = prefix[:-1]
    return None
