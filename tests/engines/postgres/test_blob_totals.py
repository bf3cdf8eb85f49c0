"""Totals of blobs are maintained without counting, and equal a recount."""

from __future__ import annotations

import asyncio

from ingot.blobs.ports import DeleteKey, GetBlobMetrics, PutBlob, SweepUploads
from ingot.engines.postgres import PostgresStore
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import content_of
from tests.engines.postgres.blob_cluster import BlobCluster

SERVERS = 3
BLOBS = 30
TOTALS = "SELECT count(*), coalesce(sum(blobs), 0), coalesce(sum(bytes), 0) FROM ingot.blob_totals"


async def test_totals_stay_exact_while_several_servers_fold_them(cluster: BlobCluster) -> None:
    servers = [await cluster.server() for _ in range(SERVERS)]

    async def sum_up(store: PostgresStore) -> None:
        for _ in range(BLOBS):
            await store.run(SweepUploads(limit=1))

    async def store_and_delete(store: PostgresStore, number: int) -> None:
        for n in range(BLOBS):
            key, content = f"{number}/{n}", content_of(b"%d" % (n * number))
            await store.run(PutBlob(id=new_id(), tenant=cluster.tenant, owner="token:a", key=key, content=content))
            if n % 3 == 0:
                await store.run(DeleteKey(tenant=cluster.tenant, key=key))

    await asyncio.gather(*map(sum_up, servers), *map(store_and_delete, servers, range(1, SERVERS + 1)))
    await asyncio.gather(*map(sum_up, servers))
    assert await cluster.blobs.collect(grace=0)
    owner = await cluster.session(server=False)
    ((rows, *totals),) = await owner.fetch(TOTALS)
    (counted,) = await owner.fetch("SELECT count(*), sum(size) FROM ingot.blobs")
    assert totals == [*counted]
    assert rows > 1
    metrics = await cluster.blobs.store.run(GetBlobMetrics())
    assert [metrics.blobs, metrics.bytes] == totals
    await cluster.blobs.store.run(SweepUploads(limit=1))
    ((*after,),) = await owner.fetch(TOTALS)
    assert after == [1, *totals]


async def test_storing_a_blob_does_not_wait_for_locked_totals(cluster: BlobCluster) -> None:
    holder = await cluster.session(server=False)
    async with holder.transaction():
        await holder.execute("SELECT * FROM ingot.blob_totals FOR UPDATE")
        await cluster.blobs.put("a", b"some bytes")
        await cluster.blobs.store.run(SweepUploads(limit=1))
        metrics = await cluster.blobs.store.run(GetBlobMetrics())
    assert (metrics.blobs, metrics.bytes) == (1, 10)
