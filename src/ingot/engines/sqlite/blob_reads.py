"""Reading about blobs: keys, uploads, who refers to what, and what is to be done."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

import msgspec

from ingot.blobs.model import EVERYTHING, BlobFigures, Content, Key, OpenUpload, Purged, Reference, Sight, Trash, Usage
from ingot.engines.sqlite.blob_rows import TOTAL, Kept, KeyRow, ReferenceRow, UploadRow, content_of
from ingot.engines.sqlite.people_reads import PeopleReads
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import as_json
from ingot.kernel.clock import to_datetime_or_none

REFERENCES_MAX: Final = 100
NOBODY: Final = 0  # No tenant has this number.
FIGURE_ROWS_MAX: Final = 10_000  # What is not counted as it changes is counted up to here.
ABOVE_ALL_KEYS: Final = b""  # SQLite sorts every blob behind every text.


class BlobReads(PeopleReads):
    """The reading half of the store, with people and blobs."""

    def get_key(self, tenant: str, key: str) -> Awaitable[Key | None]:
        """See `BlobStore`."""
        return self._run(self._get_key, self._number_of(tenant), key)

    def _get_key(self, tenant: int, key: str) -> Key | None:
        found = self._find_key(tenant, key)
        return None if found is None else found.key_of_tenant()

    def _find_key(self, tenant: int, key: str) -> KeyRow | None:
        rows = self._read(list[KeyRow], SQL.keys_by_name, as_json([(tenant, key)]))
        return rows[0] if rows else None

    def open_key(self, tenant: str, key: str) -> Awaitable[tuple[Key, Content] | None]:
        """See `BlobStore`."""
        return self._run(self._open_key, self._number_of(tenant), key)

    def _open_key(self, tenant: int, key: str) -> tuple[Key, Content] | None:
        with self._reader():  # One snapshot for the key and its bytes.
            found = self._find_key(tenant, key)
            content = None if found is None else self._content(bytes.fromhex(found.blob_id))
        return None if found is None or content is None else (found.key_of_tenant(), content)

    def _content(self, id: bytes) -> Content | None:
        row = self._reader().execute(SQL.content_of_blob, (id,)).fetchone()
        return None if row is None else content_of(row)

    def list_keys(self, tenant: str, *, prefix: str, after: str, limit: int) -> Awaitable[list[Key]]:
        """See `BlobStore`."""
        first = max(prefix, f"{after}\x00") if after else prefix  # The next text there can be behind `after`.
        return self._run(self._list_keys, self._number_of(tenant), first, _behind(prefix), limit)

    def _list_keys(self, tenant: int, first: str, end: str | bytes, limit: int) -> list[Key]:
        rows = self._read(list[KeyRow], SQL.page_of_keys, tenant, first, end, limit)
        return [row.key_of_tenant() for row in rows or ()]

    def open_blob(
        self, tenant: str, blob_id: str, sight: Sight = EVERYTHING
    ) -> Awaitable[tuple[Content, list[Reference]] | None]:
        """See `BlobStore`."""
        return self._run(self._open_blob, self._number_of(tenant), bytes.fromhex(blob_id), sight)

    def _open_blob(self, tenant: int, id: bytes, sight: Sight) -> tuple[Content, list[Reference]] | None:
        keys, types = (None if names is None else as_json(names) for names in (sight.keys, sight.types))
        with self._reader() as reader:  # One snapshot for the blob and who refers to it.
            number = reader.execute(SQL.number_of_blob, (id,)).get
            asked = number, id, tenant, REFERENCES_MAX, keys, sight.uploads, types
            rows = self._read(list[ReferenceRow], SQL.references_in_tenant, *asked)
            content = self._content(id) if rows else None
        return None if content is None else (content, [row.reference() for row in rows or ()])

    def get_upload(self, tenant: str, id: str) -> Awaitable[OpenUpload | None]:
        """See `BlobStore`."""
        return self._run(self._get_upload, self._number_of(tenant), id)

    def _get_upload(self, tenant: int, id: str) -> OpenUpload | None:
        rows = self._read(list[UploadRow], SQL.uploads_by_id, as_json([(tenant, id)]))
        return rows[0].open_upload() if rows else None

    def list_verifying(self, *, limit: int) -> Awaitable[list[OpenUpload]]:
        """See `BlobStore`."""
        return self._run(self._list_verifying, limit)

    def _list_verifying(self, limit: int) -> list[OpenUpload]:
        rows = self._read(list[UploadRow], SQL.uploads_verifying, limit)
        return [row.open_upload() for row in rows or ()]

    # -- usage ----------------------------------------------------------------------------------------------

    def get_usage(self, tenant: str, owner: str | None = None) -> Awaitable[Usage]:
        """See `BlobStore`."""
        number = self.memory.tenants.get(tenant, NOBODY)
        limits = self.memory.limits.get(tenant)
        quota = limits.quota_bytes if limits is not None and owner is None else None
        return self._run(self._get_usage, number, owner, quota)

    def _get_usage(self, tenant: int, owner: str | None, quota: int | None) -> Usage:
        kept = self._kept(tenant, owner)
        return Usage(bytes=kept.bytes, reserved_bytes=kept.reserved, keys=kept.keys, quota_bytes=quota)

    def _kept(self, tenant: int, owner: str | None) -> Kept:
        whose = TOTAL if owner is None else owner
        row = self._reader().execute(SQL.usage_of_owner, (tenant, whose)).fetchone()
        return Kept() if row is None else Kept(*row)

    def preview_purge(self, tenant: str, owner: str | None) -> Awaitable[Purged]:
        """See `BlobStore`."""
        return self._run(self._preview_purge, self._number_of(tenant), owner)

    def _preview_purge(self, tenant: int, owner: str | None) -> Purged:
        kept = self._kept(tenant, owner)
        return Purged(keys=kept.keys, bytes=kept.key_bytes, dry_run=True)

    # -- what is to be done ---------------------------------------------------------------------------------

    def list_condemned(self, *, grace: int, limit: int, after: str | None = None) -> Awaitable[list[str]]:
        """See `BlobStore`."""
        return self._run(self._list_condemned, self._clock.micros() - grace, limit, after)

    def _list_condemned(self, until: int, limit: int, after: str | None) -> list[str]:
        passed = None if after is None else bytes.fromhex(after)
        return self._read(list[str], SQL.condemned_blobs, until, limit, passed) or []

    def list_trash(self, *, limit: int, after: str = "") -> Awaitable[list[Trash]]:
        """See `BlobStore`."""
        return self._run(self._list_trash, limit, after)

    def _list_trash(self, limit: int, after: str) -> list[Trash]:
        return self._read(list[Trash], SQL.trash_in_order, limit, after) or []

    def known_places(self, places: Sequence[str]) -> Awaitable[set[str]]:
        """See `BlobStore`."""
        return self._run(self._known_places, places)

    def _known_places(self, places: Sequence[str]) -> set[str]:
        found = self._read(set[str], SQL.known_places, as_json(places))
        assert found is not None, "there is always one array"
        return found

    def list_to_scrub(self, *, before: int, limit: int) -> Awaitable[list[Content]]:
        """See `BlobStore`."""
        return self._run(self._list_to_scrub, before, limit)

    def _list_to_scrub(self, before: int, limit: int) -> list[Content]:
        return [content_of(row) for row in self._reader().execute(SQL.contents_to_scrub, (before, limit)).fetchall()]

    def blob_figures(self) -> Awaitable[BlobFigures]:
        """See `BlobStore`."""
        return self._run(self._blob_figures)

    def _blob_figures(self) -> BlobFigures:
        row = self._read(_FiguresRow, SQL.blob_figures, FIGURE_ROWS_MAX)
        assert row is not None, "there is always one row of totals"
        return row.figures()

    def reusable_bytes(self) -> Awaitable[int | None]:
        """See `BlobStore`."""
        return self._run(self._reusable_bytes)

    def _reusable_bytes(self) -> int | None:
        (size,) = self._read(tuple[int], SQL.reusable_bytes) or (0,)
        return size


class _FiguresRow(msgspec.Struct, frozen=True, kw_only=True):
    blobs: int
    bytes: int
    damaged: int
    tombstones: int
    trash: int
    uploads: int
    verified_before: int | None

    def figures(self) -> BlobFigures:
        """The figures for people."""
        return BlobFigures(
            blobs=self.blobs,
            bytes=self.bytes,
            damaged=self.damaged,
            tombstones=self.tombstones,
            trash=self.trash,
            uploads=self.uploads,
            verified_before=to_datetime_or_none(self.verified_before),
        )


def _behind(prefix: str) -> str | bytes:
    """The least of all texts that come behind those with this prefix; UTF-8 sorts as code points do."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return ABOVE_ALL_KEYS
    last = ord(stem[-1])
    return stem[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)  # Between those are no characters.
