"""The requests of an upload, one by one."""

from __future__ import annotations

import random
from typing import Any

import httpx

from ingot.blobs.model import PART_BYTES
from tests.http.serving import Served

DATA = random.Random(8).randbytes(3 * PART_BYTES + 11)


async def begin(served: Served, size: int = len(DATA), **more: Any) -> dict[str, Any]:
    """Begin an upload, and return its plan."""
    response = await served.call("POST", "/blobs/uploads", json={"size": size, **more})
    assert response.status_code == 201, response.text
    return response.json()  # type: ignore[no-any-return]


async def send(plan: dict[str, Any], data: bytes = DATA) -> httpx.Response:
    """Send the bytes with nothing but the plan, as a client without credentials would."""
    async with httpx.AsyncClient(timeout=30, verify=False) as client:
        headers = {name: value for name, value in plan["headers"].items() if name.lower() != "content-length"}
        return await client.request(plan["method"], plan["url"], headers=headers, content=data)


async def complete(served: Served, plan: dict[str, Any], **digests: str) -> httpx.Response:
    """Complete an upload."""
    return await served.call("POST", f"/blobs/uploads/{plan['upload']['id']}/complete", json=digests)
