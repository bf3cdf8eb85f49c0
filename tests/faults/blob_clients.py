"""Clients of a server that is killed: they put, replace, upload in parts and delete, and record every response.

Each client has its own keys, so that its last response determines what a key may hold. Clients often send the same
bytes, so that one needs a blob that another has deleted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import httpx
import msgspec
from blake3 import blake3

from ingot.http.routes import PREFIX
from tests.faults.invariants import Broken

KEYS = 4
UPLOADS_MAX = 3
PART_BYTES = 60_000
SHARED = [random.Random(seed).randbytes(size) for seed, size in enumerate((0, 10, 16_000, 17_000, 90_000, 400_000))]

Answer = httpx.Response | None
T = TypeVar("T")


class OpenUpload(msgspec.Struct):
    """An upload that is not complete, with the number of bytes that were sent and acknowledged."""

    id: str
    url: httpx.URL
    headers: dict[str, str] | None  # For a PUT to a bucket. If None, the bytes go to the server.
    key: str
    data: bytes
    acked: int = 0
    sent: int = 0
    is_in_bucket: bool = False


class KilledServer(msgspec.Struct):
    """The server that the clients use. `is_dead` is set when a request fails."""

    url: str
    http: httpx.AsyncClient
    is_dead: bool = False


class Client:
    """Makes one call after the other. `possible_digests` is what each key may hold; `None` means no such key."""

    def __init__(self, number: int, seed: int, bytes_by_digest: dict[str, bytes]) -> None:
        self.acked = 0
        self.uploads: list[OpenUpload] = []
        self.possible_digests: dict[str, set[str | None]] = {f"{number}/{n}": {None} for n in range(KEYS)}
        self._bytes_by_digest = bytes_by_digest  # Everything that any client has sent.
        self._random = random.Random(seed)

    async def work(self, server: KilledServer) -> None:
        """Check all keys and uploads, then make calls until the server is dead. Raises `Broken`."""
        try:
            await self._check_all(server)
            while not server.is_dead:
                await self._do_something(server)
        except httpx.TransportError:
            server.is_dead = True

    async def _do_something(self, server: KilledServer) -> None:
        key = self._random.choice(list(self.possible_digests))
        chance = self._random.random()
        if chance < 0.3:
            await self._put(server, key, self._some_bytes())
        elif chance < 0.5 and len(self.uploads) < UPLOADS_MAX:
            await self._begin(server, key)
        elif chance < 0.7 and self.uploads:
            await self._continue(server, self._random.choice(self.uploads))
        elif chance < 0.75 and self.uploads:
            await self._cancel(server, self._random.choice(self.uploads))
        elif chance < 0.9:
            await self._delete(server, key)
        elif chance < 0.95:
            await self._check_key(server, key)
        else:
            await self._call(server, "POST", "/blobs/collect", json={"dry_run": False})

    def _some_bytes(self) -> bytes:
        if self._random.random() < 0.7:
            data = self._random.choice(SHARED)
        else:
            data = self._random.randbytes(self._random.choice((100, 20_000, 150_000)))
        self._bytes_by_digest[blake3(data).hexdigest()] = data
        return data

    # -- keys -----------------------------------------------------------------------------------------------

    async def _put(self, server: KilledServer, key: str, data: bytes) -> None:
        (before,) = self.possible_digests[key]
        digest = blake3(data).hexdigest()
        self.possible_digests[key] = {before, digest}
        headers = {} if before is None else {"if-match": f'"{before}"'}
        body = data if self._random.random() < 0.7 else _in_parts(data)
        self._expect(await self._call(server, "PUT", f"/keys/{key}", content=body, headers=headers), 201)
        self.possible_digests[key] = {digest}

    async def _delete(self, server: KilledServer, key: str) -> None:
        (before,) = self.possible_digests[key]
        self.possible_digests[key] = {before, None}
        self._expect(await self._call(server, "DELETE", f"/keys/{key}"), 404 if before is None else 200)
        self.possible_digests[key] = {None}

    async def _check_all(self, server: KilledServer) -> None:
        for key in self.possible_digests:
            await self._check_key(server, key)
        for upload in [*self.uploads]:
            await self._check_upload(server, upload)

    async def _check_key(self, server: KilledServer, key: str) -> None:
        response = await self._call(server, "GET", f"/keys/{key}", follow_redirects=True)
        redirect = response.history[0] if response.history else response
        found = None if redirect.status_code == 404 else redirect.headers.get("etag", "").strip('"')
        allowed = self.possible_digests[key]
        if found not in allowed:
            raise Broken(
                f"B1 {key} holds {found} ({response.status_code}) instead of one of {allowed}: {response.text[:200]}"
            )
        if found is not None and response.content != self._bytes_by_digest[found]:
            raise Broken(f"B2 the bytes of {key} are not those of {found}")
        self.possible_digests[key] = {found}

    # -- uploads --------------------------------------------------------------------------------------------

    async def _begin(self, server: KilledServer, key: str) -> None:
        data = self._some_bytes()
        order = {"size": len(data), "key": key, "if_match": "*"}
        response = await self._call(server, "POST", "/blobs/uploads", json=order)
        self._expect(response, 201)
        redirect = response.json()
        headers = None if redirect["resumable"] else redirect["headers"]
        url = httpx.URL(redirect["url"])
        self.uploads.append(OpenUpload(id=redirect["upload"]["id"], url=url, headers=headers, key=key, data=data))

    async def _continue(self, server: KilledServer, upload: OpenUpload) -> None:
        if upload.headers is not None and not upload.is_in_bucket:
            await self._send_to_bucket(server, upload)
            if self._random.random() < 0.2:
                return  # Another call continues it.
        while upload.acked < len(upload.data):
            end = min(len(upload.data), upload.acked + self._random.choice((1, PART_BYTES, 1_000_000)))
            upload.sent = max(upload.sent, end)
            response = await self._send(server, upload, upload.acked, upload.data[upload.acked : end])
            self._expect(response, 200)
            upload.acked = response.json()["received"]
            if self._random.random() < 0.1:
                return  # Another call continues it.
        (before,) = self.possible_digests[upload.key]
        digest = blake3(upload.data).hexdigest()
        self.possible_digests[upload.key] = {before, digest}
        response = await self._call(server, "POST", f"/blobs/uploads/{upload.id}/complete", json={})
        self._expect(response, 200)
        self.uploads.remove(upload)
        self.possible_digests[upload.key] = {digest}

    async def _cancel(self, server: KilledServer, upload: OpenUpload) -> None:
        self.uploads.remove(upload)  # It is not used again, even if the response is lost.
        self._expect(await self._call(server, "DELETE", f"/blobs/uploads/{upload.id}"), 204)

    async def _check_upload(self, server: KilledServer, upload: OpenUpload) -> None:
        """Take the offset from the server. An upload whose completion got no response may be done."""
        state = (await self._call(server, "GET", f"/blobs/uploads/{upload.id}")).json()
        if "upload" not in state:
            raise Broken(f"the upload {upload.id} is missing: {state}")
        if state["upload"]["state"] == "done":
            if self.possible_digests[upload.key] != {blake3(upload.data).hexdigest()}:
                raise Broken(
                    f"the upload {upload.id} is done, and {upload.key} holds {self.possible_digests[upload.key]}"
                )
            self.uploads.remove(upload)
            return
        if upload.headers is not None:
            return
        response = await server.http.head(server.url + upload.url.raw_path.decode(), timeout=20)
        self._expect(response, 200)
        offset = int(response.headers["upload-offset"])
        if not upload.acked <= offset <= upload.sent:
            raise Broken(f"the upload {upload.id} is at {offset}; {upload.acked} were acknowledged, {upload.sent} sent")
        upload.acked = offset

    async def _send(self, server: KilledServer, upload: OpenUpload, offset: int, data: bytes) -> httpx.Response:
        headers = {"upload-offset": str(offset)}
        url = server.url + upload.url.raw_path.decode()
        return await server.http.patch(url, headers=headers, content=data, timeout=20)

    async def _send_to_bucket(self, server: KilledServer, upload: OpenUpload) -> None:
        """Send all bytes at once: the bucket stays available when the server is dead."""
        assert upload.headers is not None
        request = server.http.build_request("PUT", upload.url, headers=upload.headers, content=upload.data, timeout=20)
        request.headers.pop("authorization", None)
        self._expect(await server.http.send(request), 200)
        upload.acked, upload.is_in_bucket = len(upload.data), True

    # -- calls ----------------------------------------------------------------------------------------------

    async def _call(self, server: KilledServer, method: str, path: str, **more: Any) -> httpx.Response:
        return await server.http.request(method, server.url + PREFIX + path, timeout=20, **more)

    def _expect(self, response: httpx.Response, status: int) -> None:
        if response.status_code != status:
            request = response.request
            raise Broken(f"{request.method} {request.url} returned {response.status_code}: {response.text[:300]}")
        self.acked += 1


async def _in_parts(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]
        await asyncio.sleep(0)
