"""Revoked rights end within five seconds, for requests and for open streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.http.serving import PEOPLE, Served, serving

EFFECT_SECONDS_MAX = 30
Revoke = Callable[[Served, str], Awaitable[object]]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", PEOPLE) as server:
        await server.give_groups(makers="member")
        yield server


async def remove_group_role(served: Served, user: str) -> None:
    await served.call("PATCH", "/admin/tenants/default", json={"groups": {}})


async def disable_user(served: Served, user: str) -> None:
    await served.call("POST", f"/admin/users/{user}/disable")


async def remove_member(served: Served, user: str) -> None:
    await served.call("PATCH", "/admin/tenants/default", json={"groups": {}})
    await served.call("DELETE", f"/admin/members/{user}")


async def end_session(served: Served, user: str) -> None:
    (session,) = (await served.call("GET", f"/admin/users/{user}/sessions")).json()["items"]
    await served.call("DELETE", f"/admin/users/{user}/sessions/{session['id']}")


async def lose_group_at_provider(served: Served, user: str) -> None:
    await served.sign_in(subject="ada")


async def stream_until_the_end(served: Served, headers: dict[str, str], opened: asyncio.Event) -> str:
    """Follow events until the server ends the stream, and return its last line."""
    last_line = ""
    async with served.client.stream("GET", "/api/v1/events/stream", headers=headers) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            opened.set()
            last_line = line or last_line
    return last_line


async def wait_until_rejected(served: Served, headers: dict[str, str]) -> int:
    """Repeat a request until it is rejected, and return the status."""
    while True:
        response = await served.client.get("/api/v1/jobs", headers=headers)
        if response.status_code != 200:
            return response.status_code
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("revoke", "expected"),
    [
        (remove_group_role, (403, "forbidden")),
        (disable_user, (401, "unauthorized")),
        (remove_member, (403, "forbidden")),
        (end_session, (401, "unauthorized")),
        (lose_group_at_provider, (403, "forbidden")),
    ],
)
async def test_requests_and_streams_of_a_person_end_with_their_rights(
    served: Served, revoke: Revoke, expected: tuple[int, str]
) -> None:
    headers = await served.sign_in("makers")
    user = (await served.client.get("/api/v1/me", headers=headers)).json()["user"]["id"]
    if revoke is remove_member:
        await served.call("POST", "/admin/members", json={"user": user, "role": "member"})
    opened = asyncio.Event()
    following = asyncio.create_task(stream_until_the_end(served, headers, opened))
    await opened.wait()
    await revoke(served, user)
    async with asyncio.timeout(EFFECT_SECONDS_MAX):
        assert await wait_until_rejected(served, headers) == expected[0]
        assert f'"reason": "{expected[1]}"' in await following


@pytest.mark.parametrize("revoke", [remove_group_role, disable_user, remove_member, lose_group_at_provider])
async def test_requests_and_streams_of_a_personal_token_end_with_the_rights_of_its_owner(
    served: Served, revoke: Revoke
) -> None:
    headers = await served.sign_in("makers")
    user = (await served.client.get("/api/v1/me", headers=headers)).json()["user"]["id"]
    if revoke is remove_member:
        await served.call("POST", "/admin/members", json={"user": user, "role": "member"})
    order = {"description": "mine", "grants": [{"action": "jobs.read"}, {"action": "events.read"}]}
    created = (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json()
    bearer = {"authorization": f"Bearer {created['token']}"}
    opened = asyncio.Event()
    following = asyncio.create_task(stream_until_the_end(served, bearer, opened))
    await opened.wait()
    await revoke(served, user)
    async with asyncio.timeout(EFFECT_SECONDS_MAX):
        assert await wait_until_rejected(served, bearer) == 401
        assert '"reason": "unauthorized"' in await following
