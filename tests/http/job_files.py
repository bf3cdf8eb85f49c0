"""Jobs with files over HTTP."""

from __future__ import annotations

from typing import Any

from tests.http.serving import Served

Json = dict[str, Any]


async def post(served: Served, path: str, body: Json, *, expect: int = 200, **options: Any) -> Json:
    """The response to a JSON body, which has the expected status."""
    answer = await served.call("POST", path, json=body, **options)
    assert answer.status_code == expect, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def refused(served: Served, path: str, body: Json, status: int, code: str, **options: Any) -> None:
    """Expect a JSON body to be refused with this status and code."""
    said = await post(served, path, body, expect=status, **options)
    assert said["code"] == code, said


async def key(served: Served, name: str, data: bytes) -> str:
    """A blob that is here, by its id."""
    answer = await served.call("PUT", f"/keys/{name}", content=data)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["blob_id"])


async def files(served: Served, job: Json, **options: Any) -> list[tuple[str, str, str]]:
    """The files of a job: their kinds, names and blobs."""
    answer = await served.call("GET", f"/jobs/{job['id']}/files", **options)
    assert answer.status_code == 200, answer.text
    return [(one["kind"], one["name"], one["blob_id"]) for one in answer.json()["items"]]
