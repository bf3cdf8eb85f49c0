"""Operations on blobs and keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, overload

import blake3

from ingot.blobs import checks
from ingot.blobs.errors import KeyChanged, KeyExists, KeyNotFound
from ingot.blobs.model import BlobCollectionResult, Key, PurgeResult, Upload, Usage
from ingot.client.asynchronous.download import AsyncDownload
from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.asynchronous.upload import AsyncUploader
from ingot.client.asynchronous.upload_session import AsyncNewUpload
from ingot.client.errors import DownloadDamaged
from ingot.client.partial_file import PartialFile
from ingot.client.upload_source import Digests, ProgressCallback, Sendable, UnfinishedUpload, UploadSource
from ingot.client.url_path import url_path
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import Page
from ingot.wire.blobs import URL_SECONDS_MAX, BlobReferences, SignedUrl, VerifyBlobResponse

SINGLE_REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024  # Larger blobs are sent in pieces.
SLOW_REQUEST_SECONDS: Final = 600.0  # Longer than other requests: the server reads whole blobs.


class AsyncBlobs:
    """Operations on the blobs of a tenant: `client.blobs`.

    To read a blob, pass its key or its ID as `key`. If the ID of one blob is the key of another, the key is used.
    """

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    # -- uploads --------------------------------------------------------------------------------------------

    @overload
    async def put(
        self,
        source: Sendable,
        key: str,
        *,
        content_type: str | None = None,
        name: str | None = None,
        if_match: str | None = None,
        replace: bool = False,
        progress: ProgressCallback | None = None,
        hashing: ProgressCallback | None = None,
        unfinished: UnfinishedUpload | None = None,
        begun: Callable[[UnfinishedUpload], None] | None = None,
    ) -> Key: ...

    @overload
    async def put(
        self,
        source: Sendable,
        key: None = None,
        *,
        content_type: str | None = None,
        name: str | None = None,
        progress: ProgressCallback | None = None,
        hashing: ProgressCallback | None = None,
        unfinished: UnfinishedUpload | None = None,
        begun: Callable[[UnfinishedUpload], None] | None = None,
    ) -> str: ...

    async def put(
        self,
        source: Sendable,
        key: str | None = None,
        *,
        content_type: str | None = None,
        name: str | None = None,
        if_match: str | None = None,
        replace: bool = False,
        progress: ProgressCallback | None = None,
        hashing: ProgressCallback | None = None,
        unfinished: UnfinishedUpload | None = None,
        begun: Callable[[UnfinishedUpload], None] | None = None,
    ) -> Key | str:
        """Store a path, an open binary file or bytes under a key, and return the key.

        The key must not exist, unless `replace` is true or `if_match` is the ID of the blob that it holds. Without a
        key, only the blob is stored and its ID returned. Such a blob is kept for a day, or for as long as something
        refers to it.

        A source above 4 MiB is hashed first: bytes that the tenant already has are not sent, and the upload resumes
        after a lost connection. `hashing` and `progress` are called with the number of bytes done and the total, which
        is 0 if it is unknown. `begun` is called with what is needed to resume the upload in a later call: pass it there
        as `unfinished`.

        Raises `KeyExists`, `KeyChanged`, `QuotaExceeded`, `BlobTooLarge`, `InvalidInput`, and `WrongDigest` if the
        file was changed during the upload.
        """
        match = _match_condition(key, if_match, replace=replace)
        headers = _request_headers(match, content_type)
        with UploadSource(source) as upload_source:
            original_name = name or upload_source.name
            if upload_source.size is None:
                return await self._put_stream(
                    upload_source, key, name=original_name, headers=headers, progress=progress
                )
            digests = await compute_digests(upload_source, hashing)
            if key is not None and upload_source.size <= SINGLE_REQUEST_BYTES_MAX:
                stored_key = await self._put_small(upload_source, digests, key, name=original_name, headers=headers)
                if progress is not None:
                    progress(stored_key.size, stored_key.size)
                return stored_key
            request = _without_none(
                size=upload_source.size,
                blob_id=digests.blob_id,
                sha256=digests.sha256,
                content_type=content_type,
                original_name=original_name,
                key=key,
                if_match=match,
            )
            session = AsyncNewUpload(self._http, request, unfinished=unfinished, on_begin=begun)
            completed = await AsyncUploader(self._http, upload_source, session, progress=progress).run()
        if key is None:
            return digests.blob_id
        return completed.key or _key_from_upload(completed.upload, key, digests)

    async def _put_small(
        self, source: UploadSource, digests: Digests, key: str, *, name: str | None, headers: dict[str, str]
    ) -> Key:
        """Store the bytes with one request, which is repeated if its response is lost."""
        assert source.size is not None
        query = {"name": name, "blob_id": digests.blob_id, "sha256": digests.sha256}
        data = source.read(0, source.size)
        try:
            return await self._http.request(
                "PUT", _key_path(key), Key, query=query, content=data, headers=headers, idempotent=True
            )
        except (KeyExists, KeyChanged) as error:
            if error.__cause__ is None:
                raise
            # The response to an earlier try was lost, so that try may have set the key.
            existing_key = await self.read(key)
            if existing_key.blob_id != digests.blob_id:
                raise
            return existing_key

    async def _put_stream(
        self,
        source: UploadSource,
        key: str | None,
        *,
        name: str | None,
        headers: dict[str, str],
        progress: ProgressCallback | None,
    ) -> Key:
        """Store a source that can be read only once. It cannot be resumed or repeated if the connection is lost."""
        if key is None:
            raise InvalidInput(
                "a source that can be read only once needs a key", hint="Pass a key, or store it in a file first."
            )
        content = _stream_source(source, progress)
        return await self._http.request(
            "PUT", _key_path(key), Key, query={"name": name}, content=content, headers=headers
        )

    # -- downloads ------------------------------------------------------------------------------------------

    @overload
    async def get(self, key: str, to: None = None, *, progress: ProgressCallback | None = None) -> bytes: ...

    @overload
    async def get(self, key: str, to: str | PathLike[str], *, progress: ProgressCallback | None = None) -> Path: ...

    async def get(
        self, key: str, to: str | PathLike[str] | None = None, *, progress: ProgressCallback | None = None
    ) -> bytes | Path:
        """Download a blob and return its bytes, or write it to a path and return the path.

        A download to a path gathers in a file beside it whose name ends in `.part`, and resumes if it was interrupted
        before. Raises `KeyNotFound`, `BlobNotFound`, `KeyChanged` if the key is replaced meanwhile, `DownloadDamaged`,
        and `DownloadUnderWay` while another download of the blob writes to the same file.
        """
        if to is not None:
            return await self._download_key(key, Path(to), progress)
        content = bytearray()
        async with aclosing(self.stream(key, progress=progress)) as chunks:
            async for chunk in chunks:
                content += chunk
        return bytes(content)

    async def stream(self, key: str, *, progress: ProgressCallback | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a blob as they arrive.

        Raises the same errors as `get`. `DownloadDamaged` is raised only after the last bytes.
        """
        download = AsyncDownload(self._http, await self._content_path(key))
        async with aclosing(self._verified_chunks(download, progress)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def load(self, blob_id: str) -> bytes:
        """Return the bytes of the blob with this ID. Raises `BlobNotFound` or `DownloadDamaged`."""
        content = bytearray()
        download = AsyncDownload(self._http, url_path("blobs", blob_id), blob_id=blob_id)
        async with aclosing(self._verified_chunks(download, None)) as chunks:
            async for chunk in chunks:
                content += chunk
        return bytes(content)

    async def save(self, blob_id: str, size: int, to: Path, *, progress: ProgressCallback | None = None) -> Path:
        """Write the blob with this ID and size to a path, as `get` does, and return the path."""
        return await self._download(url_path("blobs", blob_id), blob_id, size, to, progress)

    async def _verified_chunks(
        self, download: AsyncDownload, progress: ProgressCallback | None
    ) -> AsyncGenerator[bytes, None]:
        hasher = blake3.blake3()
        async with aclosing(download.chunks()) as chunks:
            async for chunk in chunks:
                hasher.update(chunk)
                if progress is not None:
                    progress(download.offset, download.size)
                yield chunk
        if hasher.hexdigest() != download.blob_id:
            raise DownloadDamaged

    async def _download_key(self, key: str, to: Path, progress: ProgressCallback | None) -> Path:
        blob_id, size = await self._blob_id_and_size(key)
        return await self._download(await self._content_path(key), blob_id, size, to, progress)

    async def _download(self, path: str, blob_id: str, size: int, to: Path, progress: ProgressCallback | None) -> Path:
        with PartialFile(to, blob_id, size) as partial_file:
            while partial_file.offset < partial_file.existing_bytes:
                await asyncio.to_thread(partial_file.hash_more)
            is_resumed = partial_file.offset > 0
            await self._download_missing(path, blob_id, size, partial_file, progress)
            if partial_file.blob_id != blob_id and is_resumed:  # The bytes of the earlier download may be damaged.
                partial_file.clear()
                await self._download_missing(path, blob_id, size, partial_file, progress)
            if partial_file.blob_id != blob_id:
                partial_file.path.unlink(missing_ok=True)
                raise DownloadDamaged
            partial_file.finish()
        return to

    async def _download_missing(
        self, path: str, blob_id: str, size: int, partial_file: PartialFile, progress: ProgressCallback | None
    ) -> None:
        download = AsyncDownload(self._http, path, blob_id=blob_id)
        download.offset = partial_file.offset
        if partial_file.offset == size > 0:
            return
        async with aclosing(download.chunks()) as chunks:
            async for chunk in chunks:
                await asyncio.to_thread(partial_file.write, chunk)
                if progress is not None:
                    progress(partial_file.offset, size)

    # -- keys, references and usage -------------------------------------------------------------------------

    async def read(self, key: str) -> Key:
        """Return a key with the blob ID, size and content type of its blob. Raises `KeyNotFound`."""
        async for first in self._http.iterate_items("/keys", Page[Key], query={"prefix": checks.key(key)}, limit=1):
            if first.key == key:  # A key is the first of all keys that begin with it.
                return first
        raise KeyNotFound(f"there is no key {key[:64]!r}")

    def list(self, prefix: str = "", *, limit: int | None = None) -> AsyncIterator[Key]:
        """Iterate over the keys with this prefix, ordered by their bytes: all of them, or up to `limit`."""
        return self._http.iterate_items("/keys", Page[Key], query={"prefix": prefix}, limit=limit)

    async def delete(self, key: str, *, if_match: str | None = None) -> Key:
        """Delete a key and return it as it was. With `if_match`, only if it still holds the blob with this ID.

        Raises `KeyNotFound` or `KeyChanged`. The blob is deleted once nothing else refers to it.
        """
        headers = _request_headers(checks.if_match(if_match), None)
        return await self._http.request("DELETE", _key_path(key), Key, headers=headers)

    async def url(self, key: str, *, seconds: int = URL_SECONDS_MAX) -> SignedUrl:
        """Return a URL from which the blob can be read without credentials, for up to `seconds`.

        Raises `KeyNotFound` or `BlobNotFound`.
        """
        query: dict[str, Any] = {"seconds": seconds}
        blob_id = key
        if (existing_key := await self._find_key(key)) is not None:
            blob_id = existing_key.blob_id
            name = existing_key.original_name or key.rpartition("/")[2]
            query |= {"name": name, "content_type": existing_key.content_type}
        return await self._http.request("GET", url_path("blobs", blob_id, "url"), SignedUrl, query=query)

    async def why(self, key: str) -> BlobReferences:
        """Return the references that keep a blob. Raises `KeyNotFound` or `BlobNotFound`."""
        return await self._http.request(
            "GET", url_path("blobs", await self._blob_id_of(key), "references"), BlobReferences
        )

    async def verify(self, key: str) -> VerifyBlobResponse:
        """Make the server read a whole blob and compare it with its digests. Return whether it is intact."""
        path = url_path("blobs", await self._blob_id_of(key), "verify")
        return await self._http.request(
            "POST", path, VerifyBlobResponse, idempotent=True, wait_seconds=SLOW_REQUEST_SECONDS
        )

    async def usage(self, of: Literal["tenant", "caller"] = "tenant") -> Usage:
        """Return the usage and the quota of the tenant, or of the caller in this tenant."""
        return await self._http.request("GET", "/usage", Usage, query={"of": of})

    # -- administration -------------------------------------------------------------------------------------

    async def purge(self, *, owner: str | None = None, everybody: bool = False, dry_run: bool = True) -> PurgeResult:
        """Delete all keys of an `owner`, such as `token:ID`, or those of `everybody`, and return their number.

        With `dry_run`, the default, nothing is deleted.
        """
        body = {**_without_none(owner=owner), "all": everybody, "dry_run": dry_run}
        return await self._http.request(
            "POST", "/admin/keys/purge", PurgeResult, body=body, wait_seconds=SLOW_REQUEST_SECONDS
        )

    async def collect(self, *, dry_run: bool = True, now: bool = False) -> BlobCollectionResult:
        """Run one round of the garbage collector, or with `dry_run`, the default, preview it. For operators.

        With `now`, the round includes deleted blobs in their grace period that no reader can still need.
        """
        path, body = "/blobs/collect", {"dry_run": dry_run, "now": now}
        return await self._http.request(
            "POST", path, BlobCollectionResult, body=body, idempotent=True, wait_seconds=SLOW_REQUEST_SECONDS
        )

    # -- keys and IDs ---------------------------------------------------------------------------------------

    async def _find_key(self, key: str) -> Key | None:
        """Return the key with this name, or `None` if it is the ID of a blob. Raises `KeyNotFound`."""
        try:
            return await self.read(key)
        except KeyNotFound:
            if not checks.is_digest(key):
                raise
            return None

    async def _blob_id_of(self, key: str) -> str:
        existing_key = await self._find_key(key)
        return key if existing_key is None else existing_key.blob_id

    async def _blob_id_and_size(self, key: str) -> tuple[str, int]:
        if (existing_key := await self._find_key(key)) is not None:
            return existing_key.blob_id, existing_key.size
        return key, (await self.why(key)).size

    async def _content_path(self, key: str) -> str:
        """Return the path of the blob's bytes."""
        if checks.is_digest(key) and await self._find_key(key) is None:
            return url_path("blobs", key)
        return _key_path(key)


async def compute_digests(source: UploadSource, hashing: ProgressCallback | None) -> Digests:
    """Return the digests of a source whose size is known."""
    assert source.size is not None
    digests = Digests()
    while digests.hashed_bytes < source.size:
        await asyncio.to_thread(digests.hash_more, source)
        if hashing is not None:
            hashing(digests.hashed_bytes, source.size)
    return digests


async def _stream_source(source: UploadSource, progress: ProgressCallback | None) -> AsyncIterator[bytes]:
    sent_bytes = 0
    while data := await asyncio.to_thread(source.read_next):
        yield data
        sent_bytes += len(data)
        if progress is not None:
            progress(sent_bytes, 0)


def _key_path(key: str) -> str:
    return url_path("keys", *checks.key(key).split("/"))


def _match_condition(key: str | None, if_match: str | None, *, replace: bool) -> str | None:
    """Return what the key must hold: the ID of a blob, any blob, or no blob. Raises `InvalidInput`."""
    if key is not None:
        checks.key(key)
    if replace and if_match is not None:
        raise InvalidInput("replace and if_match cannot be combined", hint="Pass only one of them.")
    return checks.ANY_BLOB if replace else checks.if_match(if_match)


def _request_headers(match: str | None, content_type: str | None) -> dict[str, str]:
    etag = match if match in (None, checks.ANY_BLOB) else f'"{match}"'
    headers = {"if-match": etag, "content-type": content_type}
    return {name: value for name, value in headers.items() if value is not None}


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _key_from_upload(upload: Upload, key: str, digests: Digests) -> Key:
    """Return the key as this upload set it. Another caller has replaced it since."""
    return Key(
        key=key,
        blob_id=digests.blob_id,
        sha256=digests.sha256,
        size=digests.hashed_bytes,
        content_type=upload.content_type,
        original_name=upload.original_name,
        uploaded_at=upload.created_at,
        owner=upload.owner,
    )
