"""Blobs and keys: storing files, fetching them, and what is known of them."""

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

SINGLE_REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024  # Up to this size it is one request.
SLOW_REQUEST_SECONDS: Final = 600.0  # Longer than usual: the server reads all of it.


class AsyncBlobs:
    """The blobs of a tenant. What is read can be named by its key or by its id; a key of this name counts more."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    # -- storing --------------------------------------------------------------------------------------------

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
        """Store a path, an open binary file or bytes under a key, and answer the key.

        The key is new, unless `replace` is said, or `if_match` is the id of the blob that it holds now. Without a key
        the blob alone is stored, and its id answered: it stays for a day unless something refers to it by then.

        What is large is hashed first, so that what is there already is not sent, and goes on where the line broke.
        `hashing` and `progress` are called with how many bytes are done, and of how many, 0 when nobody knows. `begun`
        is told what to remember of the upload; given as `unfinished` another time, that goes on.

        Raises `KeyExists`, `KeyChanged`, `QuotaExceeded`, `BlobTooLarge`, `WrongDigest` for a file that was changed
        meanwhile, and `InvalidInput`.
        """
        match = _match_condition(key, if_match, replace=replace)
        headers = _request_headers(match, content_type)
        with UploadSource(source) as outgoing:
            named = name or outgoing.name
            if outgoing.size is None:
                return await self._put_stream(outgoing, key, name=named, headers=headers, progress=progress)
            digests = await compute_digests(outgoing, hashing)
            if key is not None and outgoing.size <= SINGLE_REQUEST_BYTES_MAX:
                made = await self._put_small(outgoing, digests, key, name=named, headers=headers)
                if progress is not None:
                    progress(made.size, made.size)
                return made
            known = {"blob_id": digests.blob_id, "sha256": digests.sha256, "content_type": content_type}
            order = _without_none(**known, size=outgoing.size, original_name=named, key=key, if_match=match)
            desk = AsyncNewUpload(self._http, order, unfinished=unfinished, on_begin=begun)
            done = await AsyncUploader(self._http, outgoing, desk, progress=progress).run()
        if key is None:
            return digests.blob_id
        return done.key or _key_from_upload(done.upload, key, digests)

    async def _put_small(
        self, outgoing: UploadSource, digests: Digests, key: str, *, name: str | None, headers: dict[str, str]
    ) -> Key:
        """All of it with one request, which is sent again when its answer is lost."""
        assert outgoing.size is not None
        query = {"name": name, "blob_id": digests.blob_id, "sha256": digests.sha256}
        data = outgoing.read(0, outgoing.size)
        try:
            return await self._http.request(
                "PUT", _key_path(key), Key, query=query, content=data, headers=headers, idempotent=True
            )
        except (KeyExists, KeyChanged) as error:
            if error.__cause__ is None:
                raise
            made = await self.read(key)  # The answer to an earlier try was lost: it may have been ours.
            if made.blob_id != digests.blob_id:
                raise
            return made

    async def _put_stream(
        self,
        outgoing: UploadSource,
        key: str | None,
        *,
        name: str | None,
        headers: dict[str, str],
        progress: ProgressCallback | None,
    ) -> Key:
        """What is read only once: it is sent as it comes, and what breaks off is begun again by who has it."""
        if key is None:
            raise InvalidInput(
                "what can be read only once needs a key", hint="Name a key, or store it in a file first."
            )
        content = _stream_source(outgoing, progress)
        return await self._http.request(
            "PUT", _key_path(key), Key, query={"name": name}, content=content, headers=headers
        )

    # -- fetching -------------------------------------------------------------------------------------------

    @overload
    async def get(self, key: str, to: None = None, *, progress: ProgressCallback | None = None) -> bytes: ...

    @overload
    async def get(self, key: str, to: str | PathLike[str], *, progress: ProgressCallback | None = None) -> Path: ...

    async def get(
        self, key: str, to: str | PathLike[str] | None = None, *, progress: ProgressCallback | None = None
    ) -> bytes | Path:
        """Fetch a blob: answers its bytes, or writes them to a path and answers that.

        They gather in a file beside it, that ends in `.part`, and what is left of an earlier try counts. Raises
        `KeyNotFound`, `BlobNotFound`, `KeyChanged` when it is replaced meanwhile, `DownloadDamaged`, or
        `DownloadUnderWay` while somebody else fetches the same into the same file.
        """
        if to is not None:
            return await self._download_key(key, Path(to), progress)
        found = bytearray()
        async with aclosing(self.stream(key, progress=progress)) as parts:
            async for part in parts:
                found += part
        return bytes(found)

    async def stream(self, key: str, *, progress: ProgressCallback | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes of a blob in parts, as they come. Raises as `get` does, `DownloadDamaged` behind the last part."""
        async with aclosing(
            self._verified_chunks(AsyncDownload(self._http, await self._content_path(key)), progress)
        ) as parts:
            async for part in parts:
                yield part

    async def load(self, blob_id: str) -> bytes:
        """The bytes of a blob that is named by its id alone. Raises `BlobNotFound` or `DownloadDamaged`."""
        found = bytearray()
        download = AsyncDownload(self._http, url_path("blobs", blob_id), blob_id=blob_id)
        async with aclosing(self._verified_chunks(download, None)) as parts:
            async for part in parts:
                found += part
        return bytes(found)

    async def save(self, blob_id: str, size: int, to: Path, *, progress: ProgressCallback | None = None) -> Path:
        """Write a blob that is named by its id alone, and has this size, to a path, as `get` does."""
        return await self._download(url_path("blobs", blob_id), blob_id, size, to, progress)

    async def _verified_chunks(
        self, download: AsyncDownload, progress: ProgressCallback | None
    ) -> AsyncGenerator[bytes, None]:
        hasher = blake3.blake3()
        async with aclosing(download.chunks()) as parts:
            async for part in parts:
                hasher.update(part)
                if progress is not None:
                    progress(download.offset, download.size)
                yield part
        if hasher.hexdigest() != download.blob_id:
            raise DownloadDamaged

    async def _download_key(self, key: str, to: Path, progress: ProgressCallback | None) -> Path:
        blob_id, size = await self._blob_id_and_size(key)
        return await self._download(await self._content_path(key), blob_id, size, to, progress)

    async def _download(self, path: str, blob_id: str, size: int, to: Path, progress: ProgressCallback | None) -> Path:
        with PartialFile(to, blob_id, size) as landing:
            while landing.offset < landing.existing_bytes:
                await asyncio.to_thread(landing.hash_more)
            old = landing.offset > 0
            await self._download_missing(path, blob_id, size, landing, progress)
            if landing.blob_id != blob_id and old:  # What was there from before may be to blame.
                landing.clear()
                await self._download_missing(path, blob_id, size, landing, progress)
            if landing.blob_id != blob_id:
                landing.path.unlink(missing_ok=True)
                raise DownloadDamaged
            landing.finish()
        return to

    async def _download_missing(
        self, path: str, blob_id: str, size: int, landing: PartialFile, progress: ProgressCallback | None
    ) -> None:
        download = AsyncDownload(self._http, path, blob_id=blob_id)
        download.offset = landing.offset
        if landing.offset == size > 0:
            return
        async with aclosing(download.chunks()) as parts:
            async for part in parts:
                await asyncio.to_thread(landing.write, part)
                if progress is not None:
                    progress(landing.offset, size)

    # -- what is known --------------------------------------------------------------------------------------

    async def read(self, key: str) -> Key:
        """What is known of a key. Raises `KeyNotFound`."""
        async for found in self._http.iterate_items("/keys", Page[Key], query={"prefix": checks.key(key)}, limit=1):
            if found.key == key:  # The first that begins so, when it is there.
                return found
        raise KeyNotFound(f"there is no key {key[:64]!r}")

    def list(self, prefix: str = "", *, limit: int | None = None) -> AsyncIterator[Key]:
        """The keys that begin so, in the order of their bytes; all of them, or `limit`."""
        return self._http.iterate_items("/keys", Page[Key], query={"prefix": prefix}, limit=limit)

    async def delete(self, key: str, *, if_match: str | None = None) -> Key:
        """Delete a key, with `if_match` only while it is that of this blob; answers what it was.

        Raises `KeyNotFound` or `KeyChanged`. The blob goes when nothing else refers to it.
        """
        headers = _request_headers(checks.if_match(if_match), None)
        return await self._http.request("DELETE", _key_path(key), Key, headers=headers)

    async def url(self, key: str, *, seconds: int = URL_SECONDS_MAX) -> SignedUrl:
        """An address at which it can be read without a credential, for so long."""
        query: dict[str, Any] = {"seconds": seconds}
        blob_id = key
        if (known := await self._find_key(key)) is not None:
            blob_id = known.blob_id
            name = known.original_name or key.rpartition("/")[2]
            query |= {"name": name, "content_type": known.content_type}
        return await self._http.request("GET", url_path("blobs", blob_id, "url"), SignedUrl, query=query)

    async def why(self, key: str) -> BlobReferences:
        """Why a blob is kept: what refers to it. Raises `KeyNotFound` or `BlobNotFound`."""
        return await self._http.request(
            "GET", url_path("blobs", await self._blob_id_of(key), "references"), BlobReferences
        )

    async def verify(self, key: str) -> VerifyBlobResponse:
        """Have the server read a blob whole, and tell whether its bytes are what they were."""
        path = url_path("blobs", await self._blob_id_of(key), "verify")
        return await self._http.request(
            "POST", path, VerifyBlobResponse, idempotent=True, wait_seconds=SLOW_REQUEST_SECONDS
        )

    async def usage(self, of: Literal["tenant", "caller"] = "tenant") -> Usage:
        """How many bytes the tenant keeps, or the caller in it, and how many it may."""
        return await self._http.request("GET", "/usage", Usage, query={"of": of})

    # -- running the place ----------------------------------------------------------------------------------

    async def purge(self, *, owner: str | None = None, everybody: bool = False, dry_run: bool = True) -> PurgeResult:
        """Delete all keys that a token set, as `token:ID`, or those of `everybody`.

        With `dry_run` tell how many that would be.
        """
        body = {**_without_none(owner=owner), "all": everybody, "dry_run": dry_run}
        return await self._http.request(
            "POST", "/admin/keys/purge", PurgeResult, body=body, wait_seconds=SLOW_REQUEST_SECONDS
        )

    async def collect(self, *, dry_run: bool = True) -> BlobCollectionResult:
        """Have the collector make a round now, for operators; or tell what it would take away."""
        path, body = "/blobs/collect", {"dry_run": dry_run}
        return await self._http.request(
            "POST", path, BlobCollectionResult, body=body, idempotent=True, wait_seconds=SLOW_REQUEST_SECONDS
        )

    # -- keys and ids ---------------------------------------------------------------------------------------

    async def _find_key(self, key: str) -> Key | None:
        """The key of this name; `None` for the id of a blob."""
        try:
            return await self.read(key)
        except KeyNotFound:
            if not checks.is_digest(key):
                raise
            return None

    async def _blob_id_of(self, key: str) -> str:
        known = await self._find_key(key)
        return key if known is None else known.blob_id

    async def _blob_id_and_size(self, key: str) -> tuple[str, int]:
        """The id and the size of a blob."""
        if (known := await self._find_key(key)) is not None:
            return known.blob_id, known.size
        return key, (await self.why(key)).size

    async def _content_path(self, key: str) -> str:
        """Where its bytes are."""
        if checks.is_digest(key) and await self._find_key(key) is None:
            return url_path("blobs", key)
        return _key_path(key)


async def compute_digests(outgoing: UploadSource, hashing: ProgressCallback | None) -> Digests:
    """The digests of what is sent."""
    assert outgoing.size is not None
    digests = Digests()
    while digests.hashed_bytes < outgoing.size:
        await asyncio.to_thread(digests.hash_more, outgoing)
        if hashing is not None:
            hashing(digests.hashed_bytes, outgoing.size)
    return digests


async def _stream_source(outgoing: UploadSource, progress: ProgressCallback | None) -> AsyncIterator[bytes]:
    done = 0
    while data := await asyncio.to_thread(outgoing.read_next):
        yield data
        done += len(data)
        if progress is not None:
            progress(done, 0)


def _key_path(key: str) -> str:
    return url_path("keys", *checks.key(key).split("/"))


def _match_condition(key: str | None, if_match: str | None, *, replace: bool) -> str | None:
    """What the key may hold now. Raises `InvalidInput`."""
    if key is not None:
        checks.key(key)
    if replace and if_match is not None:
        raise InvalidInput("replace and if_match are both given", hint="Leave one of them out.")
    return checks.ANY_BLOB if replace else checks.if_match(if_match)


def _request_headers(match: str | None, content_type: str | None) -> dict[str, str]:
    tag = match if match in (None, checks.ANY_BLOB) else f'"{match}"'
    headers = {"if-match": tag, "content-type": content_type}
    return {name: value for name, value in headers.items() if value is not None}


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _key_from_upload(upload: Upload, key: str, digests: Digests) -> Key:
    """The key as it was set; somebody else has set it anew since."""
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
