"""Rights that are taken are gone within five seconds: for requests, and for streams that are open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.http.serving import PEOPLE, Served, serving

FELT_SECONDS = 30
Take = Callable[[Served, str], Awaitable[object]]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", PEOPLE) as one:
        await one.give_groups(makers="member")
        yield one


async def unmap_the_group(served: Served, user: str) -> None:
    await served.call("PATCH", "/admin/tenants/default", json={"groups": {}})


async def put_the_person_out(served: Served, user: str) -> None:
    await served.call("POST", f"/admin/users/{user}/disable")


async def remove_the_member(served: Served, user: str) -> None:
    await served.call("PATCH", "/admin/tenants/default", json={"groups": {}})
    await served.call("DELETE", f"/admin/members/{user}")


async def end_the_session(served: Served, user: str) -> None:
    (session,) = (await served.call("GET", f"/admin/users/{user}/sessions")).json()["items"]
    await served.call("DELETE", f"/admin/users/{user}/sessions/{session['id']}")


async def be_told_less_by_the_provider(served: Served, user: str) -> None:
    await served.sign_in(subject="ada")


async def stream_until_the_end(served: Served, headers: dict[str, str], opened: asyncio.Event) -> str:
    """Follow events until the server ends the stream; its reason."""
    last = ""
    async with served.client.stream("GET", "/api/v1/events/stream", headers=headers) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            opened.set()
            last = line or last
    return last


async def refused(served: Served, headers: dict[str, str]) -> int:
    """The status of requests once they are refused."""
    while True:
        answer = await served.client.get("/api/v1/jobs", headers=headers)
        if answer.status_code != 200:
            return answer.status_code
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("take", "codes"),
    [
        (unmap_the_group, (403, "forbidden")),
        (put_the_person_out, (401, "unauthorized")),
        (remove_the_member, (403, "forbidden")),
        (end_the_session, (401, "unauthorized")),
        (be_told_less_by_the_provider, (403, "forbidden")),
    ],
)
async def test_a_person_who_loses_their_rights_is_out(served: Served, take: Take, codes: tuple[int, str]) -> None:
    headers = await served.sign_in("makers")
    user = (await served.client.get("/api/v1/me", headers=headers)).json()["user"]["id"]
    if take is remove_the_member:
        await served.call("POST", "/admin/members", json={"user": user, "role": "member"})
    opened = asyncio.Event()
    following = asyncio.create_task(stream_until_the_end(served, headers, opened))
    await opened.wait()
    await take(served, user)
    async with asyncio.timeout(FELT_SECONDS):
        assert await refused(served, headers) == codes[0]
        assert f'"reason": "{codes[1]}"' in await following


@pytest.mark.parametrize("take", [unmap_the_group, put_the_person_out, remove_the_member, be_told_less_by_the_provider])
async def test_a_token_of_a_person_who_loses_their_rights_is_out(served: Served, take: Take) -> None:
    headers = await served.sign_in("makers")
    user = (await served.client.get("/api/v1/me", headers=headers)).json()["user"]["id"]
    if take is remove_the_member:
        await served.call("POST", "/admin/members", json={"user": user, "role": "member"})
    order = {"description": "mine", "grants": [{"action": "jobs.read"}, {"action": "events.read"}]}
    made = (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json()
    bearer = {"authorization": f"Bearer {made['token']}"}
    opened = asyncio.Event()
    following = asyncio.create_task(stream_until_the_end(served, bearer, opened))
    await opened.wait()
    await take(served, user)
    async with asyncio.timeout(FELT_SECONDS):
        assert await refused(served, bearer) == 401
        assert '"reason": "unauthorized"' in await following
