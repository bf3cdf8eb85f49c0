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
from ingot.blobs.model import Collected, Key, Purged, Upload, Usage
from ingot.client.asynchronous.desk import AsyncOrdered
from ingot.client.asynchronous.download import AsyncDownload
from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.asynchronous.upload import AsyncUpload
from ingot.client.errors import DownloadDamaged
from ingot.client.landing import Landing
from ingot.client.outgoing import Digests, Outgoing, Progress, Sendable, Unfinished
from ingot.client.paths import at
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import Page
from ingot.wire.blobs import URL_SECONDS_MAX, SignedUrl, Verified, Why

SMALL_BYTES_MAX: Final = 4 * 1024 * 1024  # Up to this size it is one request.
VERIFY_SECONDS: Final = 600.0  # Longer than usual: the server reads all of it.


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
        progress: Progress | None = None,
        hashing: Progress | None = None,
        unfinished: Unfinished | None = None,
        begun: Callable[[Unfinished], None] | None = None,
    ) -> Key: ...

    @overload
    async def put(
        self,
        source: Sendable,
        key: None = None,
        *,
        content_type: str | None = None,
        name: str | None = None,
        progress: Progress | None = None,
        hashing: Progress | None = None,
        unfinished: Unfinished | None = None,
        begun: Callable[[Unfinished], None] | None = None,
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
        progress: Progress | None = None,
        hashing: Progress | None = None,
        unfinished: Unfinished | None = None,
        begun: Callable[[Unfinished], None] | None = None,
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
        match = _condition(key, if_match, replace=replace)
        headers = _headers(match, content_type)
        with Outgoing(source) as outgoing:
            named = name or outgoing.name
            if outgoing.size is None:
                return await self._put_stream(outgoing, key, name=named, headers=headers, progress=progress)
            digests = await hashed(outgoing, hashing)
            if key is not None and outgoing.size <= SMALL_BYTES_MAX:
                made = await self._put_small(outgoing, digests, key, name=named, headers=headers)
                if progress is not None:
                    progress(made.size, made.size)
                return made
            known = {"blob_id": digests.blob_id, "sha256": digests.sha256, "content_type": content_type}
            order = _given(**known, size=outgoing.size, original_name=named, key=key, if_match=match)
            desk = AsyncOrdered(self._http, order, unfinished=unfinished, begun=begun)
            done = await AsyncUpload(self._http, outgoing, desk, progress=progress).run()
        if key is None:
            return digests.blob_id
        return done.key or _key_of(done.upload, key, digests)

    async def _put_small(
        self, outgoing: Outgoing, digests: Digests, key: str, *, name: str | None, headers: dict[str, str]
    ) -> Key:
        """All of it with one request, which is sent again when its answer is lost."""
        assert outgoing.size is not None
        query = {"name": name, "blob_id": digests.blob_id, "sha256": digests.sha256}
        data = outgoing.read(0, outgoing.size)
        try:
            return await self._http.ask("PUT", _path(key), Key, query=query, content=data, headers=headers, safe=True)
        except (KeyExists, KeyChanged) as error:
            if error.__cause__ is None:
                raise
            made = await self.read(key)  # The answer to an earlier try was lost: it may have been ours.
            if made.blob_id != digests.blob_id:
                raise
            return made

    async def _put_stream(
        self,
        outgoing: Outgoing,
        key: str | None,
        *,
        name: str | None,
        headers: dict[str, str],
        progress: Progress | None,
    ) -> Key:
        """What is read only once: it is sent as it comes, and what breaks off is begun again by who has it."""
        if key is None:
            raise InvalidInput(
                "what can be read only once needs a key", hint="Name a key, or store it in a file first."
            )
        content = _streamed(outgoing, progress)
        return await self._http.ask("PUT", _path(key), Key, query={"name": name}, content=content, headers=headers)

    # -- fetching -------------------------------------------------------------------------------------------

    @overload
    async def get(self, key: str, to: None = None, *, progress: Progress | None = None) -> bytes: ...

    @overload
    async def get(self, key: str, to: str | PathLike[str], *, progress: Progress | None = None) -> Path: ...

    async def get(
        self, key: str, to: str | PathLike[str] | None = None, *, progress: Progress | None = None
    ) -> bytes | Path:
        """Fetch a blob: answers its bytes, or writes them to a path and answers that.

        They gather in a file beside it, that ends in `.part`, and what is left of an earlier try counts. Raises
        `KeyNotFound`, `BlobNotFound`, `KeyChanged` when it is replaced meanwhile, `DownloadDamaged`, or
        `DownloadUnderWay` while somebody else fetches the same into the same file.
        """
        if to is not None:
            return await self._get_to(key, Path(to), progress)
        found = bytearray()
        async with aclosing(self.stream(key, progress=progress)) as parts:
            async for part in parts:
                found += part
        return bytes(found)

    async def stream(self, key: str, *, progress: Progress | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes of a blob in parts, as they come. Raises as `get` does, `DownloadDamaged` behind the last part."""
        async with aclosing(self._stream(AsyncDownload(self._http, await self._at(key)), progress)) as parts:
            async for part in parts:
                yield part

    async def load(self, blob_id: str) -> bytes:
        """The bytes of a blob that is named by its id alone. Raises `BlobNotFound` or `DownloadDamaged`."""
        found = bytearray()
        download = AsyncDownload(self._http, at("blobs", blob_id), blob_id=blob_id)
        async with aclosing(self._stream(download, None)) as parts:
            async for part in parts:
                found += part
        return bytes(found)

    async def save(self, blob_id: str, size: int, to: Path, *, progress: Progress | None = None) -> Path:
        """Write a blob that is named by its id alone, and has this size, to a path, as `get` does."""
        return await self._save(at("blobs", blob_id), blob_id, size, to, progress)

    async def _stream(self, download: AsyncDownload, progress: Progress | None) -> AsyncGenerator[bytes, None]:
        hasher = blake3.blake3()
        async with aclosing(download.parts()) as parts:
            async for part in parts:
                hasher.update(part)
                if progress is not None:
                    progress(download.offset, download.size)
                yield part
        if hasher.hexdigest() != download.blob_id:
            raise DownloadDamaged

    async def _get_to(self, key: str, to: Path, progress: Progress | None) -> Path:
        blob_id, size = await self._found(key)
        return await self._save(await self._at(key), blob_id, size, to, progress)

    async def _save(self, path: str, blob_id: str, size: int, to: Path, progress: Progress | None) -> Path:
        with Landing(to, blob_id, size) as landing:
            while landing.offset < landing.there:
                await asyncio.to_thread(landing.hash_more)
            old = landing.offset > 0
            await self._land(path, blob_id, size, landing, progress)
            if landing.blob_id != blob_id and old:  # What was there from before may be to blame.
                landing.clear()
                await self._land(path, blob_id, size, landing, progress)
            if landing.blob_id != blob_id:
                landing.path.unlink(missing_ok=True)
                raise DownloadDamaged
            landing.finish()
        return to

    async def _land(self, path: str, blob_id: str, size: int, landing: Landing, progress: Progress | None) -> None:
        download = AsyncDownload(self._http, path, blob_id=blob_id)
        download.offset = landing.offset
        if landing.offset == size > 0:
            return
        async with aclosing(download.parts()) as parts:
            async for part in parts:
                await asyncio.to_thread(landing.write, part)
                if progress is not None:
                    progress(landing.offset, size)

    # -- what is known --------------------------------------------------------------------------------------

    async def read(self, key: str) -> Key:
        """What is known of a key. Raises `KeyNotFound`."""
        async for found in self._http.pages("/keys", Page[Key], query={"prefix": checks.key(key)}, limit=1):
            if found.key == key:  # The first that begins so, when it is there.
                return found
        raise KeyNotFound(f"there is no key {key[:64]!r}")

    def list(self, prefix: str = "", *, limit: int | None = None) -> AsyncIterator[Key]:
        """The keys that begin so, in the order of their bytes; all of them, or `limit`."""
        return self._http.pages("/keys", Page[Key], query={"prefix": prefix}, limit=limit)

    async def delete(self, key: str, *, if_match: str | None = None) -> Key:
        """Delete a key, with `if_match` only while it is that of this blob; answers what it was.

        Raises `KeyNotFound` or `KeyChanged`. The blob goes when nothing else refers to it.
        """
        headers = _headers(checks.if_match(if_match), None)
        return await self._http.ask("DELETE", _path(key), Key, headers=headers)

    async def url(self, key: str, *, seconds: int = URL_SECONDS_MAX) -> SignedUrl:
        """An address at which it can be read without a credential, for so long."""
        query: dict[str, Any] = {"seconds": seconds}
        blob_id = key
        if (known := await self._key(key)) is not None:
            blob_id = known.blob_id
            name = known.original_name or key.rpartition("/")[2]
            query |= {"name": name, "content_type": known.content_type}
        return await self._http.ask("GET", at("blobs", blob_id, "url"), SignedUrl, query=query)

    async def why(self, key: str) -> Why:
        """Why a blob is kept: what refers to it. Raises `KeyNotFound` or `BlobNotFound`."""
        return await self._http.ask("GET", at("blobs", await self._id(key), "references"), Why)

    async def verify(self, key: str) -> Verified:
        """Have the server read a blob whole, and tell whether its bytes are what they were."""
        path = at("blobs", await self._id(key), "verify")
        return await self._http.ask("POST", path, Verified, safe=True, wait_seconds=VERIFY_SECONDS)

    async def usage(self, of: Literal["tenant", "caller"] = "tenant") -> Usage:
        """How many bytes the tenant keeps, or the caller in it, and how many it may."""
        return await self._http.ask("GET", "/usage", Usage, query={"of": of})

    # -- running the place ----------------------------------------------------------------------------------

    async def purge(self, *, owner: str | None = None, everybody: bool = False, dry_run: bool = True) -> Purged:
        """Delete all keys that a token set, as `token:ID`, or those of `everybody`.

        With `dry_run` tell how many that would be.
        """
        body = {**_given(owner=owner), "all": everybody, "dry_run": dry_run}
        return await self._http.ask("POST", "/admin/keys/purge", Purged, body=body, wait_seconds=VERIFY_SECONDS)

    async def collect(self, *, dry_run: bool = True) -> Collected:
        """Have the collector make a round now, for operators; or tell what it would take away."""
        path, body = "/blobs/collect", {"dry_run": dry_run}
        return await self._http.ask("POST", path, Collected, body=body, safe=True, wait_seconds=VERIFY_SECONDS)

    # -- keys and ids ---------------------------------------------------------------------------------------

    async def _key(self, key: str) -> Key | None:
        """The key of this name; `None` for the id of a blob."""
        try:
            return await self.read(key)
        except KeyNotFound:
            if not checks.is_digest(key):
                raise
            return None

    async def _id(self, key: str) -> str:
        known = await self._key(key)
        return key if known is None else known.blob_id

    async def _found(self, key: str) -> tuple[str, int]:
        """The id and the size of a blob."""
        if (known := await self._key(key)) is not None:
            return known.blob_id, known.size
        return key, (await self.why(key)).size

    async def _at(self, key: str) -> str:
        """Where its bytes are."""
        if checks.is_digest(key) and await self._key(key) is None:
            return at("blobs", key)
        return _path(key)


async def hashed(outgoing: Outgoing, hashing: Progress | None) -> Digests:
    """The digests of what is sent."""
    assert outgoing.size is not None
    digests = Digests()
    while digests.done < outgoing.size:
        await asyncio.to_thread(digests.take, outgoing)
        if hashing is not None:
            hashing(digests.done, outgoing.size)
    return digests


async def _streamed(outgoing: Outgoing, progress: Progress | None) -> AsyncIterator[bytes]:
    done = 0
    while data := await asyncio.to_thread(outgoing.read_on):
        yield data
        done += len(data)
        if progress is not None:
            progress(done, 0)


def _path(key: str) -> str:
    return at("keys", *checks.key(key).split("/"))


def _condition(key: str | None, if_match: str | None, *, replace: bool) -> str | None:
    """What the key may hold now. Raises `InvalidInput`."""
    if key is not None:
        checks.key(key)
    if replace and if_match is not None:
        raise InvalidInput("replace and if_match are both given", hint="Leave one of them out.")
    return checks.ANY if replace else checks.if_match(if_match)


def _headers(match: str | None, content_type: str | None) -> dict[str, str]:
    tag = match if match in (None, checks.ANY) else f'"{match}"'
    headers = {"if-match": tag, "content-type": content_type}
    return {name: value for name, value in headers.items() if value is not None}


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _key_of(upload: Upload, key: str, digests: Digests) -> Key:
    """The key as it was set; somebody else has set it anew since."""
    return Key(
        key=key,
        blob_id=digests.blob_id,
        sha256=digests.sha256,
        size=digests.done,
        content_type=upload.content_type,
        original_name=upload.original_name,
        uploaded_at=upload.created_at,
        owner=upload.owner,
    )
