"""A grant on one resource reveals nothing about others: no name, no number, no existence, and no bytes."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from ingot.identity.grants import Grant
from tests.http.event_follower import follow_events
from tests.http.serving import Served

JSON = dict[str, Any]


async def put_key(served: Served, key: str, body: bytes = b"x", token: str | None = None) -> JSON:
    response = await served.call("PUT", f"/keys/{key}", content=body, token=token)
    assert response.status_code == 201
    return msgspec.json.decode(response.content, type=JSON)


async def refusal(served: Served, path: str, token: str | None = None) -> tuple[int, str]:
    response = await served.call("GET", path, token=token)
    return response.status_code, response.json()["code"]


# -- cursors ------------------------------------------------------------------------------------------------


async def test_a_cursor_reveals_nothing_and_cannot_be_forged_or_used_elsewhere(served: Served) -> None:
    for key in ("docs/a", "docs/b", "docs/c"):
        await put_key(served, key)
    reader = await served.token(Grant(action="blobs.read"))
    cursor = (await served.call("GET", "/keys?limit=1", token=reader)).json()["next_cursor"]
    assert b"docs" not in base64.urlsafe_b64decode(cursor + "==")
    rest = (await served.call("GET", f"/keys?cursor={cursor}", token=reader)).json()
    assert [key["key"] for key in rest["items"]] == ["docs/b", "docs/c"]

    other = await served.token(Grant(action="blobs.read"))
    unsealed = base64.urlsafe_b64encode(b'[1,"000000000000","docs/a"]').decode()
    changed = cursor[:20] + ("A" if cursor[20] != "A" else "B") + cursor[21:]
    for text in (changed, cursor[:-4], f"{cursor}AAAA", unsealed, "x", "é"):
        assert await refusal(served, f"/keys?cursor={text}", reader) == (422, "invalid_cursor")
    for path, token in (
        (f"/keys?cursor={cursor}", other),
        (f"/keys?cursor={cursor}", None),
        (f"/keys?prefix=docs&cursor={cursor}", reader),
        (f"/jobs?cursor={cursor}", None),
    ):
        assert await refusal(served, path, token) == (422, "invalid_cursor")


async def test_a_list_of_keys_is_the_same_whatever_keys_the_caller_may_not_see(served: Served) -> None:
    """Names that begin with the same letters are not covered: a grant covers whole segments."""
    token = await served.token(Grant(action="blobs.read", resource="keys/docs"))

    async def pages() -> list[tuple[list[str], bool]]:
        shown: list[tuple[list[str], bool]] = []
        cursor = ""
        while True:
            page = (await served.call("GET", f"/keys?prefix=docs&limit=2{cursor}", token=token)).json()
            shown.append(([key["key"] for key in page["items"]], page["next_cursor"] is None))
            if page["next_cursor"] is None:
                return shown
            cursor = f"&cursor={page['next_cursor']}"

    for key in ("docs", "docs.a", "docs/b", "docs/c", "docs/d"):
        await put_key(served, key)
    before = await pages()
    assert [name for names, _ in before for name in names] == ["docs", "docs.a", "docs/b", "docs/c", "docs/d"]
    for key in ("docs!", "docs-1", "docs0", "docsecret", "docsecret/x", "other"):
        await put_key(served, key)
    assert await pages() == before


# -- events -------------------------------------------------------------------------------------------------


async def test_event_ids_do_not_reveal_how_much_other_tenants_do(served: Served) -> None:
    ids = []
    for _ in range(3):
        ids.append((await served.call("POST", "/events", json={"name": "order.paid"})).json()["id"])
    positions = [event.id for event in await served.ingot.events.read(served.ingot.default_tenant.id)]
    assert len({len(event_id) for event_id in ids}) == 1
    assert all(len(set(zip(ids[0], other, strict=True))) > len(other) / 2 for other in ids[1:])
    for position in positions:
        assert await refusal(served, f"/events?after={position}") == (422, "invalid_cursor")
    other = await served.ingot.tenants.create("other")
    token = await served.token(tenant=other.id)
    assert await refusal(served, f"/events?after={ids[0]}", token) == (422, "invalid_cursor")
    assert await refusal(served, f"/events/stream?after={ids[0]}", token) == (422, "invalid_cursor")
    page = (await served.call("GET", f"/events?after={ids[0]}")).json()
    assert [event["id"] for event in page["items"]] == ids[1:]


async def test_a_list_of_events_is_the_same_whatever_events_the_caller_may_not_see(served: Served) -> None:
    token = await served.token(Grant(action="events.read", resource="events/order"))

    async def publish(name: str) -> None:
        assert (await served.call("POST", "/events", json={"name": name})).status_code == 201

    async def read(after: str = "") -> JSON:
        page: JSON = (await served.call("GET", f"/events?limit=2{after}", token=token)).json()
        return page

    await publish("order.paid")
    await publish("order.paid")
    first = await read()
    after = f"&after={first['next_cursor']}"
    assert (len(first["items"]), (await read(after))["items"]) == (2, [])
    end = (await read(after))["next_cursor"]
    for _ in range(5):
        await publish("salary.paid")
    assert await read() == first
    assert await read(after) == {"items": [], "next_cursor": end}
    await publish("order.sent")
    assert [event["name"] for event in (await read(after))["items"]] == ["order.sent"]


@pytest.mark.parametrize("reads_keys", [False, True])
async def test_events_of_blobs_are_shown_only_to_callers_that_may_read_them(served: Served, reads_keys: bool) -> None:
    grants = [Grant(action="events.read")]
    if reads_keys:
        grants.append(Grant(action="blobs.read", resource="keys/docs"))
    token = await served.token(*grants)
    async with follow_events(served, token=token) as follower:
        for key in ("salaries/ada", "docs/a"):
            await put_key(served, key, key.encode())
            assert (await served.call("DELETE", f"/keys/{key}")).status_code == 200
        await served.call("POST", "/events", json={"name": "the.end"})
        await follower.until(lambda follower: follower.events and follower.events[-1].event == "the.end")
    expected = [("blob.stored", "docs/a"), ("blob.deleted", "docs/a")] if reads_keys else []
    listed = (await served.call("GET", "/events", token=token)).json()["items"]
    streamed = [frame.data for frame in follower.events]
    for events in (listed, streamed):
        shown = [(event["name"], event["data"]["key"]) for event in events if event["name"].startswith("blob.")]
        assert shown == expected
    assert "salaries" not in str(listed) + str(streamed)
