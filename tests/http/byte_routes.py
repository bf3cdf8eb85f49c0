"""Routes for tests that receive and send bytes, and a server with them as a process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import uvloop

from ingot.http.forms import Form
from ingot.http.ranges import content_disposition, safe_content_type, select_range
from ingot.http.request import BytesResponse, Request, RequestBody, Response
from ingot.http.routes import Open, Route, Signed
from ingot.http.signing import Signer
from ingot.kernel.clock import SystemClock
from ingot.kernel.errors import InvalidInput, StoreError
from tests.http.serving import serving

MIB = 1024 * 1024
ETAG = '"the-one"'
KEY = b"a key of these tests, and of no others"


class SignedQuery(msgspec.Struct):
    """Parameters of a signed URL."""

    name: str = ""
    """A text."""
    number: int = 0
    """A number."""


JSON = dict[str, Any]


class ByteRoutes:
    """Receives bytes, and sends them."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.waiting = 0
        self.go = asyncio.Event()
        self.ended: list[BaseException | None] = []  # The error of each handler that read a body, if any.
        self.parts_taken = 0
        self.given = 0
        self.closed = 0
        self.parts: AsyncIterator[bytes] | None = None
        self.size = 64 * MIB
        self.fails_at: int | None = None
        self.extra_bytes = 0
        self.content = bytes(range(256)) * 40

    def routes(self) -> list[Route]:
        """The routes."""

        def route(method: str, path: str, handler: Callable[..., Awaitable[object]], **more: object) -> Route:
            options: dict[str, object] = {"needs": Open(), "body_bytes_max": None if method == "PUT" else 1, **more}
            return Route(method=method, path=f"/bytes/{path}", handler=handler, tag="bytes", **options)  # type: ignore[arg-type]

        return [
            route("PUT", "take", self.take),
            route("PUT", "bounded", self.bounded, body_bytes_max=MIB),
            route("PUT", "gated", self.gated),
            route("PUT", "refuse", self.refuse),
            route("PUT", "ignore", self.ignore),
            route("GET", "give", self.give),
            route("GET", "file", self.file, other_statuses=(206, 304)),
            route("GET", "rest/jobs/{key*}", self.rest),
            route("GET", "signed", self.signed, needs=Signed()),
            route("PUT", "signed", self.signed_put, needs=Signed()),
            route(
                "POST",
                "form",
                self.form,
                body_bytes_max=None,
                body_content_type="multipart/form-data",
                form_fields=("key", "blob"),
            ),
        ]

    async def take(self, call: Request, body: RequestBody) -> JSON:
        """Read the whole body."""
        sizes = []
        check = 0
        try:
            async for part in body.chunks():
                sizes.append(len(part))
                self.parts_taken += 1
                check = crc32(part, check)
        except BaseException as error:
            self.ended.append(error)
            raise
        self.ended.append(None)
        summary = {"size": sum(sizes), "parts": len(sizes), "largest": max(sizes, default=0), "check": check}
        return {**summary, "length": body.length, "content_type": body.content_type}

    async def bounded(self, call: Request, body: RequestBody) -> JSON:
        """Read a body of limited size."""
        return await self.take(call, body)

    async def gated(self, call: Request, body: RequestBody) -> JSON:
        """Read the whole body once `go` is set."""
        self.waiting += 1
        self.entered.set()
        await self.go.wait()
        return await self.take(call, body)

    async def refuse(self, call: Request, body: RequestBody) -> None:
        """Raise an error without reading the body."""
        raise InvalidInput("nothing is taken here")

    async def ignore(self, call: Request, body: RequestBody) -> JSON:
        """Succeed without reading the body."""
        return {"text": "fine"}

    async def give(self, call: Request) -> BytesResponse:
        """Send `size` bytes."""
        self.parts = self._parts()  # The reference keeps the garbage collector from closing it before the sender does.
        return BytesResponse(self.size, self.parts, {"content-type": "application/octet-stream"})

    async def _parts(self) -> AsyncIterator[bytes]:
        try:
            while self.given < self.size + min(0, self.extra_bytes):
                if self.fails_at is not None and self.given >= self.fails_at:
                    raise StoreError("the disk is gone")
                part = bytes(min(MIB, self.size + self.extra_bytes - self.given))
                self.given += len(part)
                yield part
        finally:
            self.closed += 1

    async def file(self, call: Request) -> BytesResponse | Response[None]:
        """Send a file, or a range of it."""
        selected = select_range(call, size=len(self.content), etag=ETAG)
        if selected.status == 304:
            return Response(None, 304, selected.headers)
        names = {
            "content-type": safe_content_type("text/html"),
            "content-disposition": content_disposition("f\u00fcr\r\n.txt"),
        }
        content = self._slice(selected.start, selected.end)
        return BytesResponse(selected.length, content, {**selected.headers, **names}, selected.status)

    async def _slice(self, start: int, end: int) -> AsyncIterator[bytes]:
        for offset in range(start, end, 1000):
            yield self.content[offset : min(end, offset + 1000)]

    async def rest(self, call: Request, key: str) -> JSON:
        """Return the rest of the path."""
        return {"text": key}

    async def signed(self, call: Request, query: SignedQuery) -> JSON:
        """Return the signed parameters."""
        return {"text": f"{query.name}:{query.number}"}

    async def signed_put(self, call: Request, body: RequestBody, query: SignedQuery) -> JSON:
        """Read the whole body of a request to a signed URL."""
        return await self.take(call, body)

    async def form(self, call: Request, body: RequestBody) -> JSON:
        """Read a form."""
        form = await Form.read(body, file="blob")
        fields_before_file, file = dict(form.fields), form.file
        if file is None:
            return {"fields": form.fields, "name": None}
        beginning, size = b"", 0
        async for part in file.chunks():
            beginning = (beginning + part)[:100]
            size += len(part)
        names = {"name": file.name, "content_type": file.content_type}
        text = beginning.decode("latin-1")
        return {"fields": form.fields, "fields_before_file": fields_before_file, **names, "text": text, "size": size}


async def _serve(folder: Path) -> None:
    signer = Signer(KEY, SystemClock())
    async with serving(folder, extra_routes=ByteRoutes().routes(), signer=signer) as served:
        print(served.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1])))
