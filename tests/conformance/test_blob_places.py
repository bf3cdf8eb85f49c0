"""Places: damage is noted where it was found."""

from __future__ import annotations

import pytest

from ingot.blobs.ports import NoteScrub
from tests.conformance.depot import Depot, content_of, depot, id_of

__all__ = ["depot"]

DATA = b"12345"
BLOB = id_of(DATA)


async def is_damaged(depot: Depot) -> bool:
    found = await depot.store.open_blob(depot.tenant, BLOB)
    assert found is not None
    return found[0].damaged


# -- damage has a place -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [("place-1", "place-2"), ("place-1", None), (None, "place-2")])
async def test_a_blob_that_was_mended_stays_whole(depot: Depot, before: str | None, after: str | None) -> None:
    store = depot.store
    await depot.put("k", content_of(DATA, before))
    read = (BLOB, before)
    await store.note_scrub(NoteScrub(damaged=[read]))
    assert await is_damaged(depot)
    await depot.put("l", content_of(DATA, after))
    depot.bench.clock.advance(seconds=1)
    mended = await store.list_to_scrub(before=depot.bench.clock.micros(), limit=5)
    await store.note_scrub(NoteScrub(damaged=[read]))
    assert not await is_damaged(depot)
    assert await store.list_to_scrub(before=depot.bench.clock.micros(), limit=5) == mended, "it was not read"
    await store.note_scrub(NoteScrub(damaged=[(BLOB, after)]))
    assert await is_damaged(depot)


async def test_a_blob_is_whole_only_where_it_was_read(depot: Depot) -> None:
    await depot.put("k", content_of(DATA, "place-1"))
    await depot.store.note_scrub(NoteScrub(damaged=[(BLOB, "place-1")]))
    for other in ("place-2", None):
        await depot.store.note_scrub(NoteScrub(whole=[(BLOB, other)]))
        assert await is_damaged(depot)
    await depot.store.note_scrub(NoteScrub(whole=[(BLOB, "place-1")]))
    assert not await is_damaged(depot)


async def test_many_are_noted_at_once(depot: Depot) -> None:
    for n in range(6):
        await depot.put(f"{n}", content_of(b"%d" % n, f"place-{n}" if n % 2 else None))
    read = [(id_of(b"%d" % n), f"place-{n}" if n % 2 else None) for n in range(6)]
    await depot.store.note_scrub(NoteScrub(whole=read[:3], damaged=read[2:]))
    depot.bench.clock.advance(seconds=1)
    found = await depot.store.list_to_scrub(before=depot.bench.clock.micros(), limit=10)
    assert {one.id for one in found if one.damaged} == {id for id, _ in read[2:]}
