"""Registered servers: uploads of servers that are gone end, and a server with another object store changes nothing."""

from __future__ import annotations

import pytest

from ingot.blobs.errors import ObjectsElsewhere
from ingot.blobs.model import StoreIdentity
from ingot.blobs.ports import ForgetTrash, OpenKey, RecordScrub, RegisterObjectStore, RenewServer, UnregisterServer
from ingot.blobs.servers import GONE_AFTER_MICROS, RENEW_SECONDS
from ingot.kernel.clock import MICROS
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import BlobFixture, blobs, content_of, id_of

__all__ = ["blobs"]

STORE = "shared"
GONE_AFTER_SECONDS = GONE_AFTER_MICROS / MICROS
ONE_SERVER = "only one server at a time can have the file open"


async def register(blobs: BlobFixture, server: str, store_id: str = STORE, *, exclusive: bool = False) -> StoreIdentity:
    return await blobs.store.run(RegisterObjectStore(store_id=store_id, server=server, exclusive=exclusive))


async def renew(blobs: BlobFixture, server: str, *, limit: int = 100) -> int:
    return await blobs.store.run(RenewServer(server=server, store_id=STORE, limit=limit))


async def renew_for(blobs: BlobFixture, seconds: float, *servers: str) -> int:
    """Let these servers renew their registrations for some time. Returns the number of ended uploads."""
    ended = 0
    for _ in range(int(seconds / RENEW_SECONDS) + 1):
        blobs.bench.clock.advance(seconds=RENEW_SECONDS)
        for server in servers:
            ended += await renew(blobs, server)
    return ended


@pytest.fixture
def servers(blobs: BlobFixture) -> tuple[str, str]:
    """Return the IDs of two servers of one database. SQLite has only one."""
    if blobs.bench.store.is_exclusive:
        pytest.skip(ONE_SERVER)
    return new_id(), new_id()


async def test_an_exclusive_server_ends_the_uploads_of_its_predecessor_at_once(blobs: BlobFixture) -> None:
    old, new = new_id(), new_id()
    await register(blobs, old, exclusive=True)
    interrupted = [await blobs.begin(10, storage_key=f"place-{n}", server=old) for n in range(3)]
    resumable = await blobs.begin(5, storage_key="resumable")
    done = await blobs.begin(7, storage_key="done", server=old, key="k")
    await blobs.finish(done.upload.id, content_of(b"1234567", "done"))
    assert await blobs.usage() == (7, 35, 1)
    await register(blobs, new, exclusive=True)
    assert await renew(blobs, new, limit=2) == 2
    assert await renew(blobs, new, limit=2) == 1
    assert await renew(blobs, new) == 0
    assert await blobs.usage() == (7, 5, 1)
    assert await blobs.trash() == [f"place-{n}" for n in range(3)]
    assert [await blobs.state(one.upload.id) for one in interrupted] == [None] * 3
    assert (await blobs.take(resumable.upload.id)).epoch == 2


async def test_the_uploads_of_a_running_server_are_not_ended_by_another(
    blobs: BlobFixture, servers: tuple[str, str]
) -> None:
    one, two = servers
    await register(blobs, one)
    await blobs.begin(10, storage_key="place", server=one)
    await register(blobs, two)
    assert await renew_for(blobs, 3 * GONE_AFTER_SECONDS, one, two) == 0
    assert await blobs.usage() == (0, 10, 0)


async def test_the_uploads_of_a_server_that_no_longer_renews_its_registration_end(
    blobs: BlobFixture, servers: tuple[str, str]
) -> None:
    one, two = servers
    await register(blobs, one)
    await register(blobs, two)
    await blobs.begin(10, storage_key="place", server=one)
    assert await renew_for(blobs, GONE_AFTER_SECONDS / 2, two) == 0
    assert await renew_for(blobs, GONE_AFTER_SECONDS / 2, two) == 1
    assert await blobs.usage() == (0, 0, 0)


async def test_no_upload_ends_after_an_outage_in_which_no_server_could_renew_its_registration(
    blobs: BlobFixture, servers: tuple[str, str]
) -> None:
    one, two = servers
    for server in servers:
        await register(blobs, server)
        await blobs.begin(10, storage_key=f"of-{server}", server=server)
    blobs.bench.clock.advance(seconds=10 * GONE_AFTER_SECONDS)
    assert await renew(blobs, two) == 0
    assert await renew(blobs, one) == 0
    assert await renew_for(blobs, 2 * GONE_AFTER_SECONDS, one, two) == 0
    assert await blobs.usage() == (0, 20, 0)


async def test_the_uploads_of_a_server_that_has_unregistered_end_at_once(
    blobs: BlobFixture, servers: tuple[str, str]
) -> None:
    one, two = servers
    await register(blobs, one)
    await register(blobs, two)
    await blobs.begin(10, storage_key="place", server=one)
    await blobs.store.run(UnregisterServer(server=one))
    assert await renew(blobs, two) == 1


async def test_another_object_store_is_refused_while_a_server_uses_the_first_one(
    blobs: BlobFixture, servers: tuple[str, str]
) -> None:
    one, two = servers
    assert (await register(blobs, one)).store_id == STORE
    refused = await register(blobs, two, "other")
    assert (refused.store_id, refused.in_use) == (STORE, True)
    await renew_for(blobs, GONE_AFTER_SECONDS, one)
    assert (await register(blobs, two, "other")).in_use
    blobs.bench.clock.advance(seconds=GONE_AFTER_SECONDS)
    accepted = await register(blobs, two, "other")
    assert (accepted.store_id, accepted.in_use) == ("other", False)
    with pytest.raises(ObjectsElsewhere):
        await renew(blobs, one)


async def test_a_server_with_another_object_store_marks_nothing_damaged_and_forgets_no_trash(
    blobs: BlobFixture,
) -> None:
    await register(blobs, new_id())
    await blobs.put("k", content_of(b"bytes", "place-1"))
    await blobs.end((await blobs.begin(5, storage_key="place-2")).upload.id)
    damaged = [(blobs.tenant, id_of(b"bytes"), "place-1")]
    with pytest.raises(ObjectsElsewhere):
        await blobs.store.run(RecordScrub(damaged=damaged, store_id="other"))
    with pytest.raises(ObjectsElsewhere):
        await blobs.store.run(ForgetTrash(storage_keys=["place-2"], store_id="other"))
    opened = await blobs.store.run(OpenKey(tenant=blobs.tenant, key="k"))
    assert opened is not None
    assert (opened[1].damaged, await blobs.trash()) == (False, ["place-2"])
    await blobs.store.run(RecordScrub(damaged=damaged, store_id=STORE))
    await blobs.store.run(ForgetTrash(storage_keys=["place-2"], store_id=STORE))
    opened = await blobs.store.run(OpenKey(tenant=blobs.tenant, key="k"))
    assert opened is not None
    assert (opened[1].damaged, await blobs.trash()) == (True, [])
