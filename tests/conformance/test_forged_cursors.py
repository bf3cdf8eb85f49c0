"""Forged cursors: valid encoding around a position that does not exist.

tests/unit/test_forged_cursors.py has the lists that refuse them before the store is called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from ingot.identity.authenticator import Authenticator
from ingot.identity.credential_service import Credentials
from ingot.identity.grants import Grant
from ingot.kernel.pages import InvalidCursor, Page, encode_cursor
from tests.bad_values import BAD_CURSORS
from tests.conformance.people_fixture import PeopleFixture
from tests.factories import Bench

REAL = {"jobs": ["0"]}  # On SQLite a position is a number.
List = Callable[[Bench, str], Awaitable[Page[Any]]]

# The engines parse positions of jobs and history themselves; members represent all other lists.
LISTS: dict[str, tuple[Callable[[str], Sequence[str | None]], List]] = {
    "members": (lambda t: ("members", t), lambda b, c: PeopleFixture(b).members.list(b.tenant, cursor=c)),
    "jobs": (lambda t: ("jobs", t, *[None] * 6), lambda b, c: b.jobs.list(b.tenant, cursor=c)),
    "history": (lambda t: ("history", t, None), lambda b, c: b.jobs.history(b.tenant, cursor=c)),
}


@pytest.mark.parametrize("name", LISTS)
async def test_a_cursor_with_an_invalid_position_is_refused(bench: Bench, name: str) -> None:
    bound_to, read = LISTS[name]
    for position in BAD_CURSORS:
        if position in REAL.get(name, ()):
            continue
        with pytest.raises(InvalidCursor):
            await read(bench, encode_cursor(position, bound_to=bound_to(bench.tenant)))


async def test_a_list_by_id_continues_at_its_cursor(bench: Bench) -> None:
    credentials = Credentials(bench.store, Authenticator(bench.store, bench.clock), bench.clock)
    people = PeopleFixture(bench)
    for number in range(3):
        await credentials.create_worker_credential(bench.tenant, f"press-{number}")
        await credentials.create_token(bench.tenant, description=str(number), grants=[Grant(action="jobs.read")])
        await people.members.put(bench.tenant, role="viewer", email=f"{number}@example.com", act=people.act())
    lists: list[Callable[[str | None], Awaitable[Page[Any]]]] = [
        lambda cursor: credentials.list_worker_credentials(bench.tenant, cursor=cursor, limit=2),
        lambda cursor: credentials.list_tokens(bench.tenant, cursor=cursor, limit=2),
        lambda cursor: people.members.list(bench.tenant, cursor=cursor, limit=2),
    ]
    for read in lists:
        first = await read(None)
        rest = await read(first.next_cursor)
        assert (len(first.items), len(rest.items), rest.next_cursor) == (2, 1, None)
        assert not {one.id for one in first.items} & {one.id for one in rest.items}
