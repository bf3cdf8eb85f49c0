"""Forged cursors: a valid encoding of a position that does not exist.

Lists of jobs and of history pass the position to the engine; tests/conformance/test_forged_cursors.py tests them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from ingot.kernel.pages import InvalidCursor, Page, encode_cursor
from tests.bad_values import BAD_CURSORS
from tests.unit.forbidden_store import Services

VALID_POSITIONS = {  # Positions that are valid in these lists.
    "worker credentials": ["x", "0", "ffffffff-ffff-ffff-ffff-fffffffffff"],
    "workers": [" ", "x", "0", "'", "é", "-1", "ffffffff-ffff-ffff-ffff-fffffffffff", "a\nb"],
}
ANN = "01890000-0000-7000-8000-000000000001"
List = Callable[[Services, str], Awaitable[Page[Any]]]


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
async def test_a_cursor_with_an_impossible_position_is_rejected(services: Services, name: str) -> None:
    bound_to, read = LISTS[name]
    for position in BAD_CURSORS:
        if position in VALID_POSITIONS.get(name, ()):
            continue
        with services.refuse(InvalidCursor):
            await read(services, encode_cursor(position, bound_to=bound_to(services.tenant)))


@pytest.mark.parametrize("name", VALID_POSITIONS)
async def test_a_cursor_with_a_possible_position_reaches_the_store(services: Services, name: str) -> None:
    bound_to, read = LISTS[name]
    for position in VALID_POSITIONS[name]:
        with pytest.raises(AssertionError, match="of the store was called"):
            await read(services, encode_cursor(position, bound_to=bound_to(services.tenant)))
