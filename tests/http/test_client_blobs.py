"""`client.blobs` against real servers: on a folder, and with a bucket of a real S3 server."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import httpx
import pytest
from blake3 import blake3

from ingot.blobs.errors import (
    BlobNotFound,
    KeyChanged,
    KeyExists,
    KeyNotFound,
    QuotaExceeded,
    UploadNotFound,
    WrongDigest,
)
from ingot.blobs.model import Key
from ingot.client import AsyncClient, Client
from ingot.client.asynchronous.blobs import AsyncBlobs
from ingot.client.errors import DownloadDamaged, ServerUnreachable
from ingot.client.partial_file import partial_path
from ingot.client.upload_source import ProgressCallback, UnfinishedUpload
from ingot.identity.grants import Grant
from ingot.identity.model import Limits
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests import s3
from tests.http.bucket_settings import bucket_settings
from tests.http.faulty_transport import Fault, FaultyTransport, blobs_client, fault_once
from tests.http.serving import Served, serving

MIB = 1024 * 1024
BIG = Random(8).randbytes(20 * MIB + 7)  # More than one piece, and too much for one request.
STORES = ["folder", "bucket"]


class Stop(Exception):
    """Raised by a progress callback to stop an upload."""


@asynccontextmanager
async def serving_on(store: str, folder: Path) -> AsyncIterator[Served]:
    """A server that stores blobs in a folder or in a bucket."""
    async with serving(folder / "data", bucket_settings() if store == "bucket" else None) as server:
        yield server


@pytest.fixture(autouse=True)
async def close_transports() -> AsyncIterator[None]:
    yield
    while FaultyTransport.instances:
        await FaultyTransport.instances.pop().aclose()


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.url, token=served.operator, patience=5) as opened_client:
        yield opened_client


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big.bin"
    path.write_bytes(BIG)
    return path


# -- storing and fetching -----------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
async def test_stored_blobs_are_fetched_and_existing_blobs_are_not_sent_again(
    store: str, tmp_path: Path, big: Path
) -> None:
    async with serving_on(store, tmp_path) as served:
        transport = FaultyTransport()
        blobs = blobs_client(transport, served.url, served.operator)
        progress: list[int] = []
        stored_key = await blobs.put(big, "big/one.bin", progress=lambda done, _: progress.append(done))
        assert (stored_key.blob_id, stored_key.size, stored_key.original_name) == (
            blake3(BIG).hexdigest(),
            len(BIG),
            "big.bin",
        )
        assert (progress[-1], sorted(progress)) == (len(BIG), progress)
        sent = [request for request in transport.requests if request.method in ("PATCH", "PUT")]
        again = await blobs.put(io.BytesIO(BIG), "big/two.bin")
        assert (again.blob_id, [request for request in transport.requests if request.method in ("PATCH", "PUT")]) == (
            stored_key.blob_id,
            sent,
        )
        assert await blobs.get("big/two.bin") == BIG
        assert await blobs.get(stored_key.blob_id) == BIG
        assert (await blobs.get("big/one.bin", tmp_path / "back")).read_bytes() == BIG
        assert sorted(os.listdir(tmp_path)) == ["back", "big.bin", "data"]
        to_bucket = [request for request in transport.requests if not str(request.url).startswith(served.url)]
        assert bool(to_bucket) is (store == "bucket")
        private = {"authorization", "ingot-tenant"}
        assert not any(private & {name.lower() for name in request.headers} for request in to_bucket)
        signed = [request for request in transport.requests if "signature=" in str(request.url)]
        assert not any("authorization" in request.headers for request in signed)


async def test_a_small_blob_is_stored_with_one_request(served: Served) -> None:
    transport = FaultyTransport()
    blobs = blobs_client(transport, served.url, served.operator)
    stored_key = await blobs.put(b"a,b\n", "tables/a b.csv", name="table.csv")
    assert (stored_key.content_type, stored_key.original_name, len(transport.requests)) == ("text/csv", "table.csv", 1)
    assert await blobs.get("tables/a b.csv") == b"a,b\n"
    assert len(transport.requests) == 2
    assert (await blobs.put(b"", "nothing")).size == 0
    assert await blobs.get("nothing") == b""


async def test_open_files_are_sent_from_their_position_and_pipes_as_streams(
    client: AsyncClient, tmp_path: Path, big: Path
) -> None:
    with big.open("rb") as file:
        file.seek(100)
        assert (await client.blobs.put(file, "rest")).blob_id == blake3(BIG[100:]).hexdigest()
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        os.write(writing, b"hello")
        os.close(writing)
        assert (await client.blobs.put(pipe, "piped", content_type="text/plain")).size == 5
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe, pytest.raises(InvalidInput, match="needs a key"):
        await client.blobs.put(pipe)
    (tmp_path / "text").write_text("x", encoding="utf-8")
    with (tmp_path / "text").open(encoding="utf-8") as text, pytest.raises(InvalidInput, match="text mode"):
        await client.blobs.put(text, "text")  # type: ignore[arg-type]


async def test_a_blob_can_be_stored_without_a_key(client: AsyncClient) -> None:
    for data in (b"", b"alone", BIG):
        blob_id = await client.blobs.put(data)
        assert blob_id == blake3(data).hexdigest()
        assert await client.blobs.get(blob_id) == data
        assert [reference.kind for reference in (await client.blobs.why(blob_id)).references] == ["upload"]


async def test_put_replaces_a_key_only_with_if_match_or_replace(client: AsyncClient) -> None:
    first = await client.blobs.put(b"1", "k")
    with pytest.raises(KeyExists):
        await client.blobs.put(b"2", "k")
    with pytest.raises(KeyExists):
        await client.blobs.put(BIG, "k")
    second = await client.blobs.put(b"2", "k", if_match=first.blob_id)
    with pytest.raises(KeyChanged):
        await client.blobs.put(b"3", "k", if_match=first.blob_id)
    with pytest.raises(KeyChanged):
        await client.blobs.put(BIG, "k", if_match=first.blob_id)
    with pytest.raises(KeyChanged):
        await client.blobs.delete("k", if_match=first.blob_id)
    assert await client.blobs.read("k") == second
    assert (await client.blobs.put(BIG, "k", replace=True)).size == len(BIG)
    await client.blobs.delete("k")
    for missing in (client.blobs.read("k"), client.blobs.get("k"), client.blobs.delete("k"), client.blobs.why("k")):
        with pytest.raises(KeyNotFound):
            await missing
    with pytest.raises(BlobNotFound):
        await client.blobs.get("0" * 64)
    assert (await client.blobs.usage()).reserved_bytes == 0, "rejected calls reserve nothing"


async def test_invalid_keys_are_rejected_by_every_call(client: AsyncClient) -> None:
    blobs = client.blobs
    for key in ("", "a//b", "a/../b", "..", "a\0b", "k" * 5000, "a\udcffb"):
        for call in (blobs.put(b"x", key), blobs.get(key), blobs.delete(key), blobs.read(key), blobs.url(key)):
            with pytest.raises(InvalidInput):
                await call
    assert [key async for key in client.blobs.list()] == []


async def test_keys_are_listed_read_verified_counted_and_purged(served: Served, client: AsyncClient) -> None:
    for number in range(96, 108):
        await client.blobs.put(b"%d" % number, f"n/{number:03}")
    listed = [key.key async for key in client.blobs.list("n/")]
    assert listed == [f"n/{number:03}" for number in range(96, 108)]
    assert [key.key async for key in client.blobs.list("n/1", limit=3)] == ["n/100", "n/101", "n/102"]
    assert (await client.blobs.read("n/100")).key == "n/100"
    with pytest.raises(KeyNotFound):
        await client.blobs.read("n/1")
    signed = await client.blobs.url("n/100", seconds=60)
    async with httpx.AsyncClient(verify=False) as browser:
        response = await browser.get(signed.url)
    assert (response.text, signed.expires_in) == ("100", 60)
    assert [reference.name for reference in (await client.blobs.why("n/100")).references] == ["n/100"]
    assert (await client.blobs.verify("n/100")).whole
    usage = await client.blobs.usage()
    assert (usage.keys, usage.bytes) == (12, 4 * 2 + 8 * 3)
    assert (await client.blobs.usage("caller")).keys == 12
    owner = (await client.blobs.read("n/100")).owner
    other = await served.token(Grant(action="blobs.*"))
    async with AsyncClient(served.url, token=other) as stranger:
        await stranger.blobs.put(b"mine", "mine")
    assert (await client.blobs.purge(owner=owner)).keys == 12
    assert (await client.blobs.usage()).keys == 13
    assert (await client.blobs.purge(owner=owner, dry_run=False)).keys == 12
    assert [key.key async for key in client.blobs.list()] == ["mine"]
    assert (await client.blobs.collect()).dry_run


async def test_get_prefers_a_key_that_looks_like_a_blob_id(client: AsyncClient) -> None:
    name = blake3(b"the blob").hexdigest()
    await client.blobs.put(b"the blob", "a")
    assert await client.blobs.get(name) == b"the blob"
    await client.blobs.put(b"another", name)
    assert await client.blobs.get(name) == b"another"


async def test_an_exceeded_quota_is_reported_with_the_quota(served: Served) -> None:
    await served.ingot.tenants.change(served.ingot.default_tenant.id, limits=Limits(quota_bytes=MIB))
    async with AsyncClient(served.url, token=served.operator, patience=0) as client:
        for data in (bytes(2 * MIB), BIG):
            with pytest.raises(QuotaExceeded, match=f"of {MIB} bytes"):
                await client.blobs.put(data, "k")
        assert await client.blobs.usage() == await client.blobs.usage()
        assert ((await client.blobs.usage()).bytes, (await client.blobs.usage()).reserved_bytes) == (0, 0)


async def test_a_file_that_changes_during_the_upload_is_not_stored(client: AsyncClient, big: Path) -> None:
    def change(done: int, total: int) -> None:
        if done == total:
            with big.open("r+b") as file:
                file.write(b"other bytes")

    with pytest.raises(WrongDigest):
        await client.blobs.put(big, "k", hashing=change)
    with pytest.raises(InvalidInput, match="shorter"):
        await client.blobs.put(big, "k", progress=lambda *_: os.truncate(big, 1000))
    usage = await client.blobs.usage()
    assert (usage.keys, usage.bytes, usage.reserved_bytes) == (0, 0, 0)


# -- broken connections -------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
async def test_an_upload_resumes_after_its_connection_broke(store: str, tmp_path: Path, big: Path) -> None:
    async with serving_on(store, tmp_path) as served:
        method, skip = ("PATCH", 1) if store == "folder" else ("PUT", 0)
        transport = FaultyTransport(fault_once(method, "", Fault(cut_request_after=2 * MIB), skip=skip))
        blobs = blobs_client(transport, served.url, served.operator)
        assert (await blobs.put(big, "big")).blob_id == blake3(BIG).hexdigest()
        if store == "folder":
            offsets = [int(request.headers["upload-offset"]) for request in transport.requests_to("PATCH", "/bytes")]
            assert offsets[:2] == [0, 16 * MIB]
            assert 16 * MIB <= offsets[2] <= 18 * MIB, "the bytes that arrived of the cut piece count"
        assert await blobs.get("big") == BIG


@pytest.mark.parametrize("store", STORES)
async def test_a_download_resumes_after_its_connection_broke(store: str, tmp_path: Path, big: Path) -> None:
    async with serving_on(store, tmp_path) as served:
        async with AsyncClient(served.url, token=served.operator) as client:
            await client.blobs.put(big, "big")
        where = "/keys/big" if store == "folder" else s3.server_url()
        for to in (None, tmp_path / "back"):
            transport = FaultyTransport(fault_once("GET", where, Fault(cut_response_after=3 * MIB)))
            blobs = blobs_client(transport, served.url, served.operator)
            content = await blobs.get("big") if to is None else (await blobs.get("big", to)).read_bytes()
            assert content == BIG
            assert [request.headers.get("range") for request in transport.requests_to("GET", where)] == [
                None,
                f"bytes={3 * MIB}-",
            ]


async def test_an_upload_without_patience_fails_at_the_first_broken_connection(served: Served, big: Path) -> None:
    transport = FaultyTransport(fault_once("PATCH", "", Fault(cut_request_after=MIB)))
    blobs = blobs_client(transport, served.url, served.operator, retry_seconds=0)
    with pytest.raises(ServerUnreachable):
        await blobs.put(big, "big")


async def test_a_put_whose_response_was_lost_succeeds_on_retry(served: Served) -> None:
    transport = FaultyTransport(fault_once("PUT", "/keys/k", Fault(lose_response=True)))
    blobs = blobs_client(transport, served.url, served.operator)
    assert (await blobs.put(b"mine", "k")).blob_id == blake3(b"mine").hexdigest()
    assert len(transport.requests_to("PUT", "/keys/k")) == 2
    transport = FaultyTransport(fault_once("PUT", "/keys/k", Fault(lose_response=True)))
    with pytest.raises(KeyExists):
        await blobs_client(transport, served.url, served.operator).put(b"other", "k")
    transport = FaultyTransport(fault_once("POST", "/complete", Fault(lose_response=True)))
    assert (await blobs_client(transport, served.url, served.operator).put(BIG, "large")).size == len(BIG)


@pytest.mark.parametrize("store", STORES)
async def test_a_download_with_a_changed_byte_is_rejected(store: str, tmp_path: Path, big: Path) -> None:
    async with serving_on(store, tmp_path) as served:
        where = "/keys/big" if store == "folder" else s3.server_url()
        transport = FaultyTransport(
            lambda request: (
                Fault(flip_first_byte=True) if request.method == "GET" and where in str(request.url) else None
            )
        )
        blobs = blobs_client(transport, served.url, served.operator)
        await blobs.put(big, "big")
        with pytest.raises(DownloadDamaged):
            await blobs.get("big")
        with pytest.raises(DownloadDamaged):
            await blobs.get("big", tmp_path / "back")
        assert sorted(os.listdir(tmp_path)) == ["big.bin", "data"]


async def test_a_partial_file_of_an_earlier_download_is_continued_if_its_bytes_match(
    served: Served, tmp_path: Path, big: Path
) -> None:
    transport = FaultyTransport()
    blobs = blobs_client(transport, served.url, served.operator)
    stored_key = await blobs.put(big, "big")
    to = tmp_path / "back"
    part = partial_path(to, stored_key.blob_id)
    for partial, ranges in (
        (BIG[: 5 * MIB], [f"bytes={5 * MIB}-"]),
        (
            b"x" + BIG[1 : 5 * MIB],
            [f"bytes={5 * MIB}-", None],
        ),  # Wrong bytes: the download starts again from the beginning.
        (BIG + b"x", [None]),
        (BIG, []),
    ):
        part.write_bytes(partial)
        transport.requests.clear()
        await blobs.get("big", to)
        assert [request.headers.get("range") for request in transport.requests_to("GET", "/keys/big")] == ranges
        assert (to.read_bytes() == BIG, part.exists()) == (True, False)


async def test_a_download_whose_key_is_replaced_raises_key_changed(served: Served, tmp_path: Path, big: Path) -> None:
    transport = FaultyTransport(fault_once("GET", "/keys/big", Fault(cut_response_after=3 * MIB)))
    blobs = blobs_client(transport, served.url, served.operator)
    await blobs.put(big, "big")
    parts = blobs.stream("big")
    assert BIG.startswith(await anext(parts))
    async with AsyncClient(served.url, token=served.operator) as other:
        await other.blobs.put(b"new", "big", replace=True)
    with pytest.raises(KeyChanged):
        _ = [part async for part in parts]


# -- resuming an upload later -------------------------------------------------------------------------------


def stopping_at(bytes_sent: int) -> ProgressCallback:
    """A progress callback that stops the upload after this number of bytes."""

    def stop(done: int, _: int) -> None:
        if done >= bytes_sent:
            raise Stop

    return stop


async def stopped_upload(blobs: AsyncBlobs, source: Path, stop_at: int) -> UnfinishedUpload:
    """Begin an upload, and stop it."""
    uploads: list[UnfinishedUpload] = []
    with pytest.raises(Stop):
        await blobs.put(source, "big", progress=stopping_at(stop_at), begun=uploads.append)
    return uploads[0]


async def test_a_stopped_upload_can_be_resumed_hours_later(tmp_path: Path, big: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", clock=clock) as served:
        transport = FaultyTransport()
        blobs = blobs_client(transport, served.url, served.operator)
        unfinished = await stopped_upload(blobs, big, 18 * MIB)
        clock.advance(seconds=7200)
        transport.requests.clear()
        stored_key = await blobs.put(big, "big", unfinished=unfinished)
        first = transport.requests_to("PATCH", "/bytes")[0]
        assert (stored_key.blob_id, int(first.headers["upload-offset"]) >= 16 * MIB) == (blake3(BIG).hexdigest(), True)
        assert transport.requests_to("POST", "/blobs/uploads")[0].url.path.endswith("/complete"), (
            "no second upload was started"
        )


async def test_a_signed_url_that_expires_during_the_upload_is_renewed(tmp_path: Path, big: Path) -> None:
    clock = ManualClock()

    start = clock.now()

    def expire(request: httpx.Request) -> None:
        if request.headers.get("upload-offset") == str(16 * MIB) and clock.now() == start:
            clock.advance(seconds=7200)

    async with serving(tmp_path / "data", clock=clock) as served:
        transport = FaultyTransport(expire)
        stored_key = await blobs_client(transport, served.url, served.operator).put(big, "big")
        assert stored_key.blob_id == blake3(BIG).hexdigest()
        assert len({str(request.url) for request in transport.requests_to("PATCH", "/bytes")}) == 2


async def test_an_unfinished_upload_of_other_bytes_is_abandoned(served: Served, big: Path) -> None:
    transport = FaultyTransport()
    blobs = blobs_client(transport, served.url, served.operator)
    unfinished = await stopped_upload(blobs, big, 2 * MIB)
    other = BIG[::-1]
    assert (await blobs.put(other, "big", unfinished=unfinished)).blob_id == blake3(other).hexdigest()
    with pytest.raises(UploadNotFound):
        await served.ingot.uploads.get(served.ingot.default_tenant.id, unfinished.id)
    for unknown in (unfinished, UnfinishedUpload(id=new_id())):
        assert (await blobs.put(big, "big", replace=True, unfinished=unknown)).size == len(BIG)
    assert (await blobs.usage()).reserved_bytes == 0


@pytest.mark.s3
async def test_a_resumed_upload_does_not_send_stored_parts_again(tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(BIG * 5)  # Seven parts, and large enough to be verified after the response to `complete`.
    async with serving_on("bucket", tmp_path) as served:
        transport = FaultyTransport(fault_once("PUT", "partNumber=2", Fault(cut_request_after=MIB)))
        blobs = blobs_client(transport, served.url, served.operator)
        unfinished = await stopped_upload(blobs, large, 60 * MIB)
        assert unfinished.part_bytes == 16 * MIB
        with Client(served.url, token=served.operator) as plain, pytest.raises(Stop):
            await asyncio.to_thread(
                plain.blobs.put, large, "big", progress=stopping_at(80 * MIB), unfinished=unfinished
            )
        stored = (await served.call("GET", f"/blobs/uploads/{unfinished.id}")).json()["parts"]
        assert 0 < len(stored) < 7
        transport.requests.clear()
        stored_key: Key = await blobs.put(large, "big", unfinished=unfinished)
        numbers = {int(request.url.params["partNumber"]) for request in transport.requests_to("PUT", "partNumber=")}
        assert (numbers & set(stored), bool(numbers)) == (set(), True)
        assert stored_key.blob_id == blake3(BIG * 5).hexdigest()
        assert (await blobs.get("big", tmp_path / "back")).read_bytes() == BIG * 5


async def test_several_clients_that_resume_one_upload_create_one_blob(served: Served, big: Path) -> None:
    async with AsyncClient(served.url, token=served.operator) as client:
        unfinished = await stopped_upload(client.blobs, big, 2 * MIB)
        results = await asyncio.gather(
            *(client.blobs.put(big, "big", replace=True, unfinished=unfinished) for _ in range(3)),
            return_exceptions=True,
        )
        assert any(isinstance(result, Key) for result in results), results
        assert await client.blobs.get("big") == BIG
