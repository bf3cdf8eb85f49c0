"""Jobs with files over HTTP."""

from __future__ import annotations

from typing import Any

from tests.http.serving import Served

Json = dict[str, Any]


async def post(served: Served, path: str, body: Json, *, expect: int = 200, **options: Any) -> Json:
    """The response to a JSON body, which has the expected status."""
    response = await served.call("POST", path, json=body, **options)
    assert response.status_code == expect, response.text
    return response.json()  # type: ignore[no-any-return]


async def expect_refusal(served: Served, path: str, body: Json, status: int, code: str, **options: Any) -> None:
    """Expect that a request with this JSON body fails with this status and code."""
    problem = await post(served, path, body, expect=status, **options)
    assert problem["code"] == code, problem


async def put_key(served: Served, name: str, data: bytes) -> str:
    """Store data under a key, and return the ID of its blob."""
    response = await served.call("PUT", f"/keys/{name}", content=data)
    assert response.status_code == 201, response.text
    return str(response.json()["blob_id"])


async def list_files(served: Served, job: Json, **options: Any) -> list[tuple[str, str, str]]:
    """The files of a job: their kinds, names and blobs."""
    response = await served.call("GET", f"/jobs/{job['id']}/files", **options)
    assert response.status_code == 200, response.text
    return [(file["kind"], file["name"], file["blob_id"]) for file in response.json()["items"]]
