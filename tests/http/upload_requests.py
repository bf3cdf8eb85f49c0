"""Uploads over HTTP, step by step."""

from __future__ import annotations

import random
from typing import Any

import httpx

from ingot.blobs.model import PART_BYTES
from tests.http.serving import Served

DATA = random.Random(8).randbytes(3 * PART_BYTES + 11)


async def begin(served: Served, size: int = len(DATA), **more: Any) -> dict[str, Any]:
    """Begin an upload, and return its plan."""
    answer = await served.call("POST", "/blobs/uploads", json={"size": size, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def send(plan: dict[str, Any], data: bytes = DATA) -> httpx.Response:
    """Send the bytes as a client does that knows nothing but the plan."""
    async with httpx.AsyncClient(timeout=30, verify=False) as stranger:
        headers = {name: value for name, value in plan["headers"].items() if name.lower() != "content-length"}
        return await stranger.request(plan["method"], plan["url"], headers=headers, content=data)


async def complete(served: Served, plan: dict[str, Any], **said: str) -> httpx.Response:
    """Ask for an upload to be completed."""
    return await served.call("POST", f"/blobs/uploads/{plan['upload']['id']}/complete", json=said)
