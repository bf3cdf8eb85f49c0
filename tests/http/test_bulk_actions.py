"""Bulk actions on jobs over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.identity.grants import Grant
from tests.http.serving import Served


async def act(served: Served, token: str | None = None, **body: Any) -> tuple[int, dict[str, Any]]:
    response = await served.call("POST", "/jobs/actions", token=token, json=body)
    return response.status_code, response.json()


async def test_bulk_actions_cancel_retry_and_change_the_jobs_of_a_filter(served: Served) -> None:
    for type in ("a", "a", "b"):
        await served.make_job(type=type)
    result = {"matched": 2, "changed": 2, "failed": [], "next_cursor": None}
    assert await act(served, action="cancel", filter={"type": "a"}, dry_run=True) == (200, result)
    assert await act(served, action="cancel", filter={"type": "a"}) == (200, result)
    assert await act(served, action="change", filter={"type": "b"}, priority=1) == (
        200,
        {**result, "matched": 1, "changed": 1},
    )
    again = {"type": "a", "status": "canceled"}
    assert await act(served, action="retry", filter=again, priority=5) == (200, result)
    jobs = (await served.call("GET", "/jobs")).json()["items"]
    assert [(job["type"], job["status"], job["priority"]) for job in jobs] == [
        ("b", "queued", 1),
        ("a", "queued", 5),
        ("a", "queued", 5),
    ]


async def test_a_bulk_action_continues_until_there_is_no_cursor(served: Served) -> None:
    await served.call("POST", "/jobs/batch", json={"jobs": [{"type": "noop", "tags": ["red"]} for _ in range(25)]})
    changed, cursor = [], None
    while True:
        status, step = await act(served, action="cancel", filter={"tag": "red"}, limit=10, cursor=cursor)
        assert status == 200
        changed.append(step["changed"])
        cursor = step["next_cursor"]
        if cursor is None:
            break
    assert changed[:3] == [10, 10, 5]
    assert sum(changed) == 25


async def test_a_grant_for_one_type_permits_bulk_actions_on_that_type_only(served: Served) -> None:
    for type in ("a", "b"):
        await served.make_job(type=type)
    token = await served.token(Grant(action="jobs.manage", resource="jobs/a"))
    for body in ({"filter": {"type": "b"}}, {"all": True}, {"filter": {"tag": "red"}}):
        assert (await act(served, token, action="cancel", **body))[0] == 403
    assert (await act(served, token, action="cancel", filter={"type": "a"}))[1]["changed"] == 1
    counts = (await served.call("GET", "/jobs/summary")).json()["counts"]
    assert (counts["queued"], counts["canceled"]) == (1, 1)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"action": "cancel"},
        {"action": "cancel", "filter": {}},
        {"action": "cancel", "filter": {"tpye": "noop"}},
        {"action": "cancel", "filter": {"type": "noop"}, "priority": 1},
        {"action": "change", "filter": {"type": "noop"}},
        {"action": "delete", "filter": {"type": "noop"}},
        {"action": "cancel", "filter": {"type": "noop"}, "limit": 1001},
        {"action": "cancel", "filter": {"type": "noop"}, "cursor": "x"},
        {"action": "cancel", "filter": {"status": "dead"}},
    ],
)
async def test_an_invalid_bulk_action_changes_nothing(served: Served, body: dict[str, Any]) -> None:
    await served.make_job()
    assert (await act(served, **body))[0] == 422
    assert (await served.call("GET", "/jobs/summary")).json()["counts"]["queued"] == 1
