"""The writing half of the store, for blobs."""

from __future__ import annotations

from collections.abc import Awaitable

from ingot.blobs.model import Finished, Home, Key, OpenUpload, Purged
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
from ingot.engines.sqlite import blobs, uploads
from ingot.engines.sqlite.writer import Handler, Writer, each

BLOB_HANDLERS: dict[type, Handler] = {
    BeginUpload: uploads.begin,
    TakeUpload: uploads.take,
    NoteUpload: uploads.note,
    FinishUpload: uploads.finish,
    EndUpload: uploads.end,
    PutBlob: blobs.put,
    DeleteKey: blobs.delete,
    PurgeKeys: each(blobs.purge),
    SweepUploads: each(uploads.sweep),
    CollectBlob: each(blobs.collect),
    ForgetTrash: each(blobs.forget_trash),
    NoteScrub: each(blobs.note_scrub),
    KeepObjects: each(blobs.keep_objects),
}


class BlobCommands:
    """What `BlobStore` asks to be written."""

    _writer: Writer

    def begin_upload(self, command: BeginUpload) -> Awaitable[OpenUpload]:
        """See `BlobStore`."""
        return self._writer.submit(command)

    def take_upload(self, command: TakeUpload) -> Awaitable[OpenUpload]:
        """See `BlobStore`."""
        return self._writer.submit(command)

    def note_upload(self, command: NoteUpload) -> Awaitable[OpenUpload]:
        """See `BlobStore`."""
        return self._writer.submit(command)

    def finish_upload(self, command: FinishUpload) -> Awaitable[Finished]:
        """See `BlobStore`."""
        return self._writer.submit(command)

    def end_upload(self, command: EndUpload) -> Awaitable[None]:
        """See `BlobStore`."""
        return self._writer.submit(command)

    def put_blob(self, command: PutBlob) -> Awaitable[Key]:
        """See `BlobStore`."""
        return self._writer.submit(command)

    def delete_key(self, command: DeleteKey) -> Awaitable[Key]:
        """See `BlobStore`."""
        return self._writer.submit(command)

    def purge_keys(self, command: PurgeKeys) -> Awaitable[Purged]:
        """See `BlobStore`."""
        return self._writer.submit(command)

    def sweep_uploads(self, command: SweepUploads) -> Awaitable[int]:
        """See `BlobStore`."""
        return self._writer.submit(command)

    def collect_blob(self, command: CollectBlob) -> Awaitable[int | None]:
        """See `BlobStore`."""
        return self._writer.submit(command)

    def forget_trash(self, command: ForgetTrash) -> Awaitable[None]:
        """See `BlobStore`."""
        return self._writer.submit(command)

    def note_scrub(self, command: NoteScrub) -> Awaitable[None]:
        """See `BlobStore`."""
        return self._writer.submit(command)

    def keep_objects(self, command: KeepObjects) -> Awaitable[Home]:
        """See `BlobStore`."""
        return self._writer.submit(command)
