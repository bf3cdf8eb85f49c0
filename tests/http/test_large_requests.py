"""A large request is processed in slices, between which the server answers other requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingot.jobs import service
from ingot.kernel import slices
from ingot.kernel.ids import new_id
from tests.http.serving import Served

ENTRIES = 2000


@pytest.mark.parametrize(
    ("path", "entry"),
    [
        ("/jobs/batch", {"type": "noop", "delay_seconds": 1}),
        ("/jobs/settle", {"outcome": "succeeded", "fence": 1}),
    ],
)
async def test_small_requests_are_answered_while_a_large_one_is_checked(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, entry: dict[str, Any]
) -> None:
    for module in (slices, service):
        monkeypatch.setattr(module, "SLICE_SECONDS", 0)
    # The last entry is invalid, so that the store does nothing and the time of its commit does not count.
    entries = [{**entry, **({"id": new_id()} if path == "/jobs/settle" else {})} for _ in range(ENTRIES)]
    entries[-1] |= {"run_at": "2030-01-01T00:00:00Z"} if path == "/jobs/batch" else {}
    large = asyncio.create_task(served.call("POST", path, json={"jobs": entries}))
    answered = 0
    while not large.done():
        assert (await served.call("GET", "/me")).status_code == 200
        answered += 1
    assert (await large).status_code == (422 if path == "/jobs/batch" else 200)
    assert answered >= 5
