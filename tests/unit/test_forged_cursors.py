"""Cursors that somebody made up: valid encoding around a position that does not exist.

Lists of jobs and of history leave the position to the engine; they are in tests/conformance/test_forged_cursors.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from ingot.kernel.pages import InvalidCursor, Page, encode_cursor
from tests.bad_values import BAD_CURSORS
from tests.unit.forbidden_store import Rooms

REAL = {  # Positions that these lists can have.
    "worker credentials": ["x", "0", "ffffffff-ffff-ffff-ffff-fffffffffff"],
    "workers": [" ", "x", "0", "'", "é", "-1", "ffffffff-ffff-ffff-ffff-fffffffffff", "a\nb"],
}
ANN = "01890000-0000-7000-8000-000000000001"
List = Callable[[Rooms, str], Awaitable[Page[Any]]]


LISTS: dict[str, tuple[Callable[[str], Sequence[str | None]], List]] = {
    "tokens": (lambda t: ("tokens", t), lambda r, c: r.credentials.list_tokens(r.tenant, cursor=c)),
    "operators' tokens": (lambda _: ("tokens", None), lambda r, c: r.credentials.list_tokens(None, cursor=c)),
    "tokens of a person": (lambda _: ("tokens of", ANN), lambda r, c: r.credentials.list_user_tokens(ANN, cursor=c)),
    "worker credentials": (
        lambda t: ("worker credentials", t),
        lambda r, c: r.credentials.list_worker_credentials(r.tenant, cursor=c),
    ),
    "members": (lambda t: ("members", t), lambda r, c: r.members.list(r.tenant, cursor=c)),
    "users": (lambda _: ("users", None), lambda r, c: r.users.list(cursor=c)),
    "audit": (lambda t: ("audit", t, None, None, None), lambda r, c: r.audit.list(r.tenant, cursor=c)),
    "workers": (lambda t: ("workers", t), lambda r, c: r.workers.list(r.tenant, cursor=c)),
}


@pytest.mark.parametrize("name", LISTS)
async def test_a_cursor_to_nowhere_is_refused(rooms: Rooms, name: str) -> None:
    bound_to, read = LISTS[name]
    for place in BAD_CURSORS:
        if place in REAL.get(name, ()):
            continue
        with rooms.refuse(InvalidCursor):
            await read(rooms, encode_cursor(place, bound_to=bound_to(rooms.tenant)))


@pytest.mark.parametrize("name", REAL)
async def test_a_cursor_to_a_possible_position_reaches_the_store(rooms: Rooms, name: str) -> None:
    bound_to, read = LISTS[name]
    for place in REAL[name]:
        with pytest.raises(AssertionError, match="of the store was called"):
            await read(rooms, encode_cursor(place, bound_to=bound_to(rooms.tenant)))
