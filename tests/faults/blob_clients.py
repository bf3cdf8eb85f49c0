"""Clients of a server that dies: they put, replace, send in parts, complete and delete, and keep what they were told.

Each has keys of its own, so that what it was told last decides what there may be; the bytes they bring are often the
same, so that what one has deleted another needs.
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


class Sending(msgspec.Struct):
    """An upload that is not complete. So many bytes were acknowledged, and so many sent."""

    id: str
    url: httpx.URL
    headers: dict[str, str] | None  # Of a PUT to a bucket; otherwise the bytes go to the server.
    key: str
    data: bytes
    acked: int = 0
    sent: int = 0
    at_bucket: bool = False


class Server(msgspec.Struct):
    """Where the clients go. Nobody answers once it is dead."""

    url: str
    http: httpx.AsyncClient
    dead: bool = False


class Client:
    """Does one thing after the other. `held` is what each of its keys may hold: `None` stands for nothing."""

    def __init__(self, number: int, seed: int, known: dict[str, bytes]) -> None:
        self.acked = 0
        self.uploads: list[Sending] = []
        self.held: dict[str, set[str | None]] = {f"{number}/{n}": {None} for n in range(KEYS)}
        self._known = known  # The bytes of every digest that was ever sent.
        self._random = random.Random(seed)

    async def work(self, server: Server) -> None:
        """See what there is, and go on until the server is gone. Raises `Broken`."""
        try:
            await self._look_at_all(server)
            while not server.dead:
                await self._do_something(server)
        except httpx.TransportError:
            server.dead = True

    async def _do_something(self, server: Server) -> None:
        key = self._random.choice(list(self.held))
        chance = self._random.random()
        if chance < 0.3:
            await self._put(server, key, self._some_bytes())
        elif chance < 0.5 and len(self.uploads) < UPLOADS_MAX:
            await self._begin(server, key)
        elif chance < 0.7 and self.uploads:
            await self._go_on(server, self._random.choice(self.uploads))
        elif chance < 0.75 and self.uploads:
            await self._give_up(server, self._random.choice(self.uploads))
        elif chance < 0.9:
            await self._delete(server, key)
        elif chance < 0.95:
            await self._look_at(server, key)
        else:
            await self._call(server, "POST", "/blobs/collect", json={"dry_run": False})

    def _some_bytes(self) -> bytes:
        if self._random.random() < 0.7:
            data = self._random.choice(SHARED)
        else:
            data = self._random.randbytes(self._random.choice((100, 20_000, 150_000)))
        self._known[blake3(data).hexdigest()] = data
        return data

    # -- keys -----------------------------------------------------------------------------------------------

    async def _put(self, server: Server, key: str, data: bytes) -> None:
        (before,) = self.held[key]
        digest = blake3(data).hexdigest()
        self.held[key] = {before, digest}
        headers = {} if before is None else {"if-match": f'"{before}"'}
        body = data if self._random.random() < 0.7 else _in_pieces(data)
        self._expect(await self._call(server, "PUT", f"/keys/{key}", content=body, headers=headers), 201)
        self.held[key] = {digest}

    async def _delete(self, server: Server, key: str) -> None:
        (before,) = self.held[key]
        self.held[key] = {before, None}
        self._expect(await self._call(server, "DELETE", f"/keys/{key}"), 404 if before is None else 200)
        self.held[key] = {None}

    async def _look_at_all(self, server: Server) -> None:
        for key in self.held:
            await self._look_at(server, key)
        for upload in [*self.uploads]:
            await self._look_at_upload(server, upload)

    async def _look_at(self, server: Server, key: str) -> None:
        answer = await self._call(server, "GET", f"/keys/{key}", follow_redirects=True)
        told = answer.history[0] if answer.history else answer
        found = None if told.status_code == 404 else told.headers.get("etag", "").strip('"')
        may_be = self.held[key]
        if found not in may_be:
            raise Broken(
                f"B1 {key} holds {found} ({answer.status_code}) instead of one of {may_be}: {answer.text[:200]}"
            )
        if found is not None and answer.content != self._known[found]:
            raise Broken(f"B2 the bytes of {key} are not those of {found}")
        self.held[key] = {found}

    # -- uploads --------------------------------------------------------------------------------------------

    async def _begin(self, server: Server, key: str) -> None:
        data = self._some_bytes()
        order = {"size": len(data), "key": key, "if_match": "*"}
        answer = await self._call(server, "POST", "/blobs/uploads", json=order)
        self._expect(answer, 201)
        told = answer.json()
        headers = None if told["resumable"] else told["headers"]
        url = httpx.URL(told["url"])
        self.uploads.append(Sending(id=told["upload"]["id"], url=url, headers=headers, key=key, data=data))

    async def _go_on(self, server: Server, upload: Sending) -> None:
        if upload.headers is not None and not upload.at_bucket:
            await self._send_to_bucket(server, upload)
            if self._random.random() < 0.2:
                return  # For later.
        while upload.acked < len(upload.data):
            end = min(len(upload.data), upload.acked + self._random.choice((1, PART_BYTES, 1_000_000)))
            upload.sent = max(upload.sent, end)
            answer = await self._send(server, upload, upload.acked, upload.data[upload.acked : end])
            self._expect(answer, 200)
            upload.acked = answer.json()["received"]
            if self._random.random() < 0.1:
                return  # For later.
        (before,) = self.held[upload.key]
        digest = blake3(upload.data).hexdigest()
        self.held[upload.key] = {before, digest}
        answer = await self._call(server, "POST", f"/blobs/uploads/{upload.id}/complete", json={})
        self._expect(answer, 200)
        self.uploads.remove(upload)
        self.held[upload.key] = {digest}

    async def _give_up(self, server: Server, upload: Sending) -> None:
        self.uploads.remove(upload)  # Whether it is there after a lost answer, nobody asks.
        self._expect(await self._call(server, "DELETE", f"/blobs/uploads/{upload.id}"), 204)

    async def _look_at_upload(self, server: Server, upload: Sending) -> None:
        """It goes on at the offset that the server tells; one whose complete was not answered may be done."""
        state = (await self._call(server, "GET", f"/blobs/uploads/{upload.id}")).json()
        if "upload" not in state:
            raise Broken(f"the upload {upload.id} is gone: {state}")
        if state["upload"]["state"] == "done":
            if self.held[upload.key] != {blake3(upload.data).hexdigest()}:
                raise Broken(f"the upload {upload.id} is done, and {upload.key} holds {self.held[upload.key]}")
            self.uploads.remove(upload)
            return
        if upload.headers is not None:
            return
        answer = await server.http.head(server.url + upload.url.raw_path.decode(), timeout=20)
        self._expect(answer, 200)
        offset = int(answer.headers["upload-offset"])
        if not upload.acked <= offset <= upload.sent:
            raise Broken(f"the upload {upload.id} is at {offset}; {upload.acked} were acknowledged, {upload.sent} sent")
        upload.acked = offset

    async def _send(self, server: Server, upload: Sending, offset: int, data: bytes) -> httpx.Response:
        headers = {"upload-offset": str(offset)}
        url = server.url + upload.url.raw_path.decode()
        return await server.http.patch(url, headers=headers, content=data, timeout=20)

    async def _send_to_bucket(self, server: Server, upload: Sending) -> None:
        """All of it, once: the bucket lives on when the server is dead."""
        assert upload.headers is not None
        request = server.http.build_request("PUT", upload.url, headers=upload.headers, content=upload.data, timeout=20)
        request.headers.pop("authorization", None)
        self._expect(await server.http.send(request), 200)
        upload.acked, upload.at_bucket = len(upload.data), True

    # -- calls ----------------------------------------------------------------------------------------------

    async def _call(self, server: Server, method: str, path: str, **more: Any) -> httpx.Response:
        return await server.http.request(method, server.url + PREFIX + path, timeout=20, **more)

    def _expect(self, answer: httpx.Response, status: int) -> None:
        if answer.status_code != status:
            raise Broken(f"{answer.request.method} {answer.request.url} said {answer.status_code}: {answer.text[:300]}")
        self.acked += 1


async def _in_pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]
        await asyncio.sleep(0)
