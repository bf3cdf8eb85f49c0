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
from tests.http.bucket_settings import in_bucket
from tests.http.faulty_transport import Harm, Line, blobs_over, once
from tests.http.serving import Served, serving

MIB = 1024 * 1024
BIG = Random(8).randbytes(20 * MIB + 7)  # More than one piece, and more than goes with one request.
STORES = ["folder", "bucket"]


class Stop(Exception):
    """Who sends has had enough."""


@asynccontextmanager
async def on(store: str, folder: Path) -> AsyncIterator[Served]:
    """A server whose blobs are in a folder, or in a bucket."""
    async with serving(folder / "data", in_bucket() if store == "bucket" else None) as one:
        yield one


@pytest.fixture(autouse=True)
async def lines() -> AsyncIterator[None]:
    yield
    while Line.made:
        await Line.made.pop().aclose()


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.url, token=served.operator, patience=5) as one:
        yield one


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big.bin"
    path.write_bytes(BIG)
    return path


# -- what is stored is what is fetched ----------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
async def test_what_is_stored_is_fetched_and_what_is_there_is_not_sent_again(
    store: str, tmp_path: Path, big: Path
) -> None:
    async with on(store, tmp_path) as served:
        line = Line()
        blobs = blobs_over(line, served.url, served.operator)
        told: list[int] = []
        made = await blobs.put(big, "big/one.bin", progress=lambda done, _: told.append(done))
        assert (made.blob_id, made.size, made.original_name) == (blake3(BIG).hexdigest(), len(BIG), "big.bin")
        assert (told[-1], sorted(told)) == (len(BIG), told)
        sent = [one for one in line.asked if one.method in ("PATCH", "PUT")]
        again = await blobs.put(io.BytesIO(BIG), "big/two.bin")
        assert (again.blob_id, [one for one in line.asked if one.method in ("PATCH", "PUT")]) == (made.blob_id, sent)
        assert await blobs.get("big/two.bin") == BIG
        assert await blobs.get(made.blob_id) == BIG
        assert (await blobs.get("big/one.bin", tmp_path / "back")).read_bytes() == BIG
        assert sorted(os.listdir(tmp_path)) == ["back", "big.bin", "data"]
        elsewhere = [one for one in line.asked if not str(one.url).startswith(served.url)]
        assert bool(elsewhere) is (store == "bucket")
        named = {"authorization", "ingot-tenant"}
        assert not any(named & {name.lower() for name in one.headers} for one in elsewhere), "nobody knows us there"
        signed = [one for one in line.asked if "signature=" in str(one.url)]
        assert not any("authorization" in one.headers for one in signed)


async def test_small_things_are_one_request(served: Served) -> None:
    line = Line()
    blobs = blobs_over(line, served.url, served.operator)
    made = await blobs.put(b"a,b\n", "tables/a b.csv", name="table.csv")
    assert (made.content_type, made.original_name, len(line.asked)) == ("text/csv", "table.csv", 1)
    assert await blobs.get("tables/a b.csv") == b"a,b\n"
    assert len(line.asked) == 2
    assert (await blobs.put(b"", "nothing")).size == 0
    assert await blobs.get("nothing") == b""


async def test_open_files_are_sent_from_where_they_stand_and_pipes_as_they_come(
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


async def test_a_blob_without_a_key_is_stored_alone(client: AsyncClient) -> None:
    for data in (b"", b"alone", BIG):
        blob_id = await client.blobs.put(data)
        assert blob_id == blake3(data).hexdigest()
        assert await client.blobs.get(blob_id) == data
        assert [one.kind for one in (await client.blobs.why(blob_id)).references] == ["upload"]


async def test_keys_are_new_unless_it_is_said_what_they_hold(client: AsyncClient) -> None:
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
    assert (await client.blobs.usage()).reserved_bytes == 0, "what was refused holds nothing"


async def test_keys_that_cannot_be_are_refused(client: AsyncClient) -> None:
    blobs = client.blobs
    for key in ("", "a//b", "a/../b", "..", "a\0b", "k" * 5000, "a\udcffb"):
        for call in (blobs.put(b"x", key), blobs.get(key), blobs.delete(key), blobs.read(key), blobs.url(key)):
            with pytest.raises(InvalidInput):
                await call
    assert [one async for one in client.blobs.list()] == []


async def test_what_is_known_of_keys_is_told(served: Served, client: AsyncClient) -> None:
    for number in range(96, 108):
        await client.blobs.put(b"%d" % number, f"n/{number:03}")
    listed = [one.key async for one in client.blobs.list("n/")]
    assert listed == [f"n/{number:03}" for number in range(96, 108)]
    assert [one.key async for one in client.blobs.list("n/1", limit=3)] == ["n/100", "n/101", "n/102"]
    assert (await client.blobs.read("n/100")).key == "n/100"
    with pytest.raises(KeyNotFound):
        await client.blobs.read("n/1")
    address = await client.blobs.url("n/100", seconds=60)
    async with httpx.AsyncClient(verify=False) as anybody:
        answer = await anybody.get(address.url)
    assert (answer.text, address.expires_in) == ("100", 60)
    assert [one.name for one in (await client.blobs.why("n/100")).references] == ["n/100"]
    assert (await client.blobs.verify("n/100")).whole
    used = await client.blobs.usage()
    assert (used.keys, used.bytes) == (12, 4 * 2 + 8 * 3)
    assert (await client.blobs.usage("caller")).keys == 12
    owner = (await client.blobs.read("n/100")).owner
    other = await served.token(Grant(action="blobs.*"))
    async with AsyncClient(served.url, token=other) as stranger:
        await stranger.blobs.put(b"mine", "mine")
    assert (await client.blobs.purge(owner=owner)).keys == 12
    assert (await client.blobs.usage()).keys == 13
    assert (await client.blobs.purge(owner=owner, dry_run=False)).keys == 12
    assert [one.key async for one in client.blobs.list()] == ["mine"]
    assert (await client.blobs.collect()).dry_run


async def test_a_key_that_looks_like_an_id_counts_before_the_id(client: AsyncClient) -> None:
    name = blake3(b"the blob").hexdigest()
    await client.blobs.put(b"the blob", "a")
    assert await client.blobs.get(name) == b"the blob"
    await client.blobs.put(b"another", name)
    assert await client.blobs.get(name) == b"another"


async def test_no_room_is_told_with_how_much_there_is(served: Served) -> None:
    await served.ingot.tenants.change(served.ingot.default_tenant.id, limits=Limits(quota_bytes=MIB))
    async with AsyncClient(served.url, token=served.operator, patience=0) as client:
        for data in (bytes(2 * MIB), BIG):
            with pytest.raises(QuotaExceeded, match=f"of {MIB} bytes"):
                await client.blobs.put(data, "k")
        assert await client.blobs.usage() == await client.blobs.usage()
        assert ((await client.blobs.usage()).bytes, (await client.blobs.usage()).reserved_bytes) == (0, 0)


async def test_a_file_that_changes_while_it_is_sent_is_not_stored(client: AsyncClient, big: Path) -> None:
    def change(done: int, total: int) -> None:
        if done == total:
            with big.open("r+b") as file:
                file.write(b"other bytes")

    with pytest.raises(WrongDigest):
        await client.blobs.put(big, "k", hashing=change)
    with pytest.raises(InvalidInput, match="shorter"):
        await client.blobs.put(big, "k", progress=lambda *_: os.truncate(big, 1000))
    used = await client.blobs.usage()
    assert (used.keys, used.bytes, used.reserved_bytes) == (0, 0, 0)


# -- lines that break ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
async def test_what_is_sent_goes_on_where_the_line_was_cut(store: str, tmp_path: Path, big: Path) -> None:
    async with on(store, tmp_path) as served:
        method, skip = ("PATCH", 1) if store == "folder" else ("PUT", 0)
        line = Line(once(method, "", Harm(cut_sent=2 * MIB), skip=skip))
        blobs = blobs_over(line, served.url, served.operator)
        assert (await blobs.put(big, "big")).blob_id == blake3(BIG).hexdigest()
        if store == "folder":
            offsets = [int(one.headers["upload-offset"]) for one in line.said("PATCH", "/bytes")]
            assert offsets[:2] == [0, 16 * MIB]
            assert 16 * MIB <= offsets[2] <= 18 * MIB, "of a piece that was cut, what had come counts"
        assert await blobs.get("big") == BIG


@pytest.mark.parametrize("store", STORES)
async def test_what_is_fetched_goes_on_where_the_line_was_cut(store: str, tmp_path: Path, big: Path) -> None:
    async with on(store, tmp_path) as served:
        async with AsyncClient(served.url, token=served.operator) as client:
            await client.blobs.put(big, "big")
        where = "/keys/big" if store == "folder" else s3.server_url()
        for to in (None, tmp_path / "back"):
            line = Line(once("GET", where, Harm(cut_answer=3 * MIB)))
            blobs = blobs_over(line, served.url, served.operator)
            got = await blobs.get("big") if to is None else (await blobs.get("big", to)).read_bytes()
            assert got == BIG
            assert [one.headers.get("range") for one in line.said("GET", where)] == [None, f"bytes={3 * MIB}-"]


async def test_who_has_no_patience_is_told(served: Served, big: Path) -> None:
    line = Line(once("PATCH", "", Harm(cut_sent=MIB)))
    blobs = blobs_over(line, served.url, served.operator, patience=0)
    with pytest.raises(ServerUnreachable):
        await blobs.put(big, "big")


async def test_an_answer_that_is_lost_makes_no_error_of_what_was_done(served: Served) -> None:
    line = Line(once("PUT", "/keys/k", Harm(lose_answer=True)))
    blobs = blobs_over(line, served.url, served.operator)
    assert (await blobs.put(b"mine", "k")).blob_id == blake3(b"mine").hexdigest()
    assert len(line.said("PUT", "/keys/k")) == 2
    line = Line(once("PUT", "/keys/k", Harm(lose_answer=True)))
    with pytest.raises(KeyExists):
        await blobs_over(line, served.url, served.operator).put(b"other", "k")
    line = Line(once("POST", "/complete", Harm(lose_answer=True)))
    assert (await blobs_over(line, served.url, served.operator).put(BIG, "large")).size == len(BIG)


@pytest.mark.parametrize("store", STORES)
async def test_bytes_that_come_to_harm_on_their_way_are_not_given_away(store: str, tmp_path: Path, big: Path) -> None:
    async with on(store, tmp_path) as served:
        where = "/keys/big" if store == "folder" else s3.server_url()
        line = Line(lambda request: Harm(flip=True) if request.method == "GET" and where in str(request.url) else None)
        blobs = blobs_over(line, served.url, served.operator)
        await blobs.put(big, "big")
        with pytest.raises(DownloadDamaged):
            await blobs.get("big")
        with pytest.raises(DownloadDamaged):
            await blobs.get("big", tmp_path / "back")
        assert sorted(os.listdir(tmp_path)) == ["big.bin", "data"]


async def test_what_an_earlier_try_left_counts_when_it_is_right(served: Served, tmp_path: Path, big: Path) -> None:
    line = Line()
    blobs = blobs_over(line, served.url, served.operator)
    made = await blobs.put(big, "big")
    to = tmp_path / "back"
    part = partial_path(to, made.blob_id)
    for left, ranges in (
        (BIG[: 5 * MIB], [f"bytes={5 * MIB}-"]),
        (b"x" + BIG[1 : 5 * MIB], [f"bytes={5 * MIB}-", None]),  # Wrong: once more, from the beginning.
        (BIG + b"x", [None]),
        (BIG, []),
    ):
        part.write_bytes(left)
        line.asked.clear()
        await blobs.get("big", to)
        assert [one.headers.get("range") for one in line.said("GET", "/keys/big")] == ranges
        assert (to.read_bytes() == BIG, part.exists()) == (True, False)


async def test_a_key_that_is_replaced_while_it_is_fetched_is_told(served: Served, tmp_path: Path, big: Path) -> None:
    line = Line(once("GET", "/keys/big", Harm(cut_answer=3 * MIB)))
    blobs = blobs_over(line, served.url, served.operator)
    await blobs.put(big, "big")
    parts = blobs.stream("big")
    assert BIG.startswith(await anext(parts))
    async with AsyncClient(served.url, token=served.operator) as other:
        await other.blobs.put(b"new", "big", replace=True)
    with pytest.raises(KeyChanged):
        _ = [part async for part in parts]


# -- going on another time ----------------------------------------------------------------------------------


def stopping_at(bytes_sent: int) -> ProgressCallback:
    """What stops who sends, after so many bytes."""

    def tell(done: int, _: int) -> None:
        if done >= bytes_sent:
            raise Stop

    return tell


async def begun(blobs: AsyncBlobs, source: Path, stop_at: int) -> UnfinishedUpload:
    """An upload that somebody has stopped."""
    known: list[UnfinishedUpload] = []
    with pytest.raises(Stop):
        await blobs.put(source, "big", progress=stopping_at(stop_at), begun=known.append)
    return known[0]


async def test_an_upload_goes_on_another_time_and_hours_later(tmp_path: Path, big: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", clock=clock) as served:
        line = Line()
        blobs = blobs_over(line, served.url, served.operator)
        left = await begun(blobs, big, 18 * MIB)
        clock.advance(seconds=7200)
        line.asked.clear()
        made = await blobs.put(big, "big", unfinished=left)
        first = line.said("PATCH", "/bytes")[0]
        assert (made.blob_id, int(first.headers["upload-offset"]) >= 16 * MIB) == (blake3(BIG).hexdigest(), True)
        assert line.said("POST", "/blobs/uploads")[0].url.path.endswith("/complete"), "no other was begun"


async def test_an_address_that_expires_on_the_way_is_renewed(tmp_path: Path, big: Path) -> None:
    clock = ManualClock()

    began = clock.now()

    def later(request: httpx.Request) -> None:
        if request.headers.get("upload-offset") == str(16 * MIB) and clock.now() == began:
            clock.advance(seconds=7200)

    async with serving(tmp_path / "data", clock=clock) as served:
        line = Line(later)
        made = await blobs_over(line, served.url, served.operator).put(big, "big")
        assert made.blob_id == blake3(BIG).hexdigest()
        assert len({str(one.url) for one in line.said("PATCH", "/bytes")}) == 2


async def test_an_upload_of_other_bytes_is_given_up(served: Served, big: Path) -> None:
    line = Line()
    blobs = blobs_over(line, served.url, served.operator)
    left = await begun(blobs, big, 2 * MIB)
    other = BIG[::-1]
    assert (await blobs.put(other, "big", unfinished=left)).blob_id == blake3(other).hexdigest()
    with pytest.raises(UploadNotFound):
        await served.ingot.uploads.get(served.ingot.default_tenant.id, left.id)
    for unknown in (left, UnfinishedUpload(id=new_id())):
        assert (await blobs.put(big, "big", replace=True, unfinished=unknown)).size == len(BIG)
    assert (await blobs.usage()).reserved_bytes == 0


@pytest.mark.s3
async def test_parts_that_are_in_the_bucket_are_not_sent_again(tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(BIG * 5)  # Seven parts; and it is read back after `complete` has answered.
    async with on("bucket", tmp_path) as served:
        line = Line(once("PUT", "partNumber=2", Harm(cut_sent=MIB)))
        blobs = blobs_over(line, served.url, served.operator)
        left = await begun(blobs, large, 60 * MIB)
        assert left.part_bytes == 16 * MIB
        with Client(served.url, token=served.operator) as plain, pytest.raises(Stop):
            await asyncio.to_thread(plain.blobs.put, large, "big", progress=stopping_at(80 * MIB), unfinished=left)
        there = (await served.call("GET", f"/blobs/uploads/{left.id}")).json()["parts"]
        assert 0 < len(there) < 7
        line.asked.clear()
        made: Key = await blobs.put(large, "big", unfinished=left)
        numbers = {int(one.url.params["partNumber"]) for one in line.said("PUT", "partNumber=")}
        assert (numbers & set(there), bool(numbers)) == (set(), True)
        assert made.blob_id == blake3(BIG * 5).hexdigest()
        assert (await blobs.get("big", tmp_path / "back")).read_bytes() == BIG * 5


async def test_several_clients_that_go_on_with_one_upload_end_with_one_blob(served: Served, big: Path) -> None:
    async with AsyncClient(served.url, token=served.operator) as client:
        left = await begun(client.blobs, big, 2 * MIB)
        ended = await asyncio.gather(
            *(client.blobs.put(big, "big", replace=True, unfinished=left) for _ in range(3)), return_exceptions=True
        )
        assert any(isinstance(one, Key) for one in ended), ended
        assert await client.blobs.get("big") == BIG
