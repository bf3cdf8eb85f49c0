"""Raw requests to the routes of a depot."""

from __future__ import annotations

GET = b"GET /depot/give HTTP/1.1\r\nhost: x\r\n\r\n"


def put(path: str, *lines: bytes, body: bytes = b"") -> bytes:
    """A request with a body."""
    return b"\r\n".join([b"PUT /depot/%s HTTP/1.1" % path.encode(), b"host: x", *lines, b"", body])
