"""Raw requests to the routes in `byte_routes`."""

from __future__ import annotations

GET = b"GET /bytes/give HTTP/1.1\r\nhost: x\r\n\r\n"


def put(path: str, *lines: bytes, body: bytes = b"") -> bytes:
    """A request with a body."""
    return b"\r\n".join([b"PUT /bytes/%s HTTP/1.1" % path.encode(), b"host: x", *lines, b"", body])
