"""Cursors that somebody made up: the right wrapping around a place that is none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from ingot.identity.access import Access
from ingot.identity.grants import Grant
from ingot.identity.tokens import Credentials
from ingot.kernel.pages import InvalidCursor, Page, write_cursor
from tests.conformance.folk import Folk
from tests.factories import Bench

NOWHERE = ["", " ", "x", "0", "'", "\x00", "\x00x", "é", "-1", "9" * 400, "ffffffff-ffff-ffff-ffff-fffffffffff", "a\nb"]
REAL = {  # What can be a place in these lists.
    "worker credentials": ["x", "0", "ffffffff-ffff-ffff-ffff-fffffffffff"],
    "workers": [" ", "x", "0", "'", "é", "-1", "ffffffff-ffff-ffff-ffff-fffffffffff", "a\nb"],
    "jobs": ["0"],  # A number on SQLite.
}
ANN = "01890000-0000-7000-8000-000000000001"
List = Callable[[Bench, str], Awaitable[Page[Any]]]


def _credentials(bench: Bench) -> Credentials:
    return Credentials(bench.store, Access(bench.store, bench.clock), bench.clock)


LISTS: dict[str, tuple[Callable[[str], Sequence[str | None]], List]] = {
    "tokens": (lambda t: ("tokens", t), lambda b, c: _credentials(b).list_tokens(b.tenant, cursor=c)),
    "operators' tokens": (lambda _: ("tokens", None), lambda b, c: _credentials(b).list_tokens(None, cursor=c)),
    "tokens of a person": (lambda _: ("tokens of", ANN), lambda b, c: _credentials(b).list_tokens_of(ANN, cursor=c)),
    "worker credentials": (
        lambda t: ("worker credentials", t),
        lambda b, c: _credentials(b).list_workers(b.tenant, cursor=c),
    ),
    "members": (lambda t: ("members", t), lambda b, c: Folk(b).members.list(b.tenant, cursor=c)),
    "users": (lambda _: ("users", None), lambda b, c: Folk(b).users.list(cursor=c)),
    "audit": (lambda t: ("audit", t, None, None, None), lambda b, c: b.audit.list(b.tenant, cursor=c)),
    "workers": (lambda t: ("workers", t), lambda b, c: b.workers.list(b.tenant, cursor=c)),
    "jobs": (lambda t: ("jobs", t, *[None] * 6), lambda b, c: b.jobs.list(b.tenant, cursor=c)),
    "history": (lambda t: ("history", t, None), lambda b, c: b.jobs.history(b.tenant, cursor=c)),
}


@pytest.mark.parametrize("name", LISTS)
async def test_a_cursor_to_nowhere_is_refused(bench: Bench, name: str) -> None:
    bound_to, read = LISTS[name]
    for place in NOWHERE:
        if place in REAL.get(name, ()):
            continue
        with pytest.raises(InvalidCursor):
            await read(bench, write_cursor(place, bound_to=bound_to(bench.tenant)))


async def test_a_list_by_id_goes_on_where_its_cursor_says(bench: Bench) -> None:
    credentials, folk = _credentials(bench), Folk(bench)
    for number in range(3):
        await credentials.create_worker(bench.tenant, f"press-{number}")
        await credentials.create_token(bench.tenant, description=str(number), grants=[Grant(action="jobs.read")])
        await folk.members.put(bench.tenant, role="viewer", email=f"{number}@example.com", act=folk.act())
    lists: list[Callable[[str | None], Awaitable[Page[Any]]]] = [
        lambda cursor: credentials.list_workers(bench.tenant, cursor=cursor, limit=2),
        lambda cursor: credentials.list_tokens(bench.tenant, cursor=cursor, limit=2),
        lambda cursor: folk.members.list(bench.tenant, cursor=cursor, limit=2),
    ]
    for read in lists:
        first = await read(None)
        rest = await read(first.next_cursor)
        assert (len(first.items), len(rest.items), rest.next_cursor) == (2, 1, None)
        assert not {one.id for one in first.items} & {one.id for one in rest.items}
