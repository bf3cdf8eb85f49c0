"""Addresses whose time is over while bytes are on their way: new ones are asked for, and it goes on where it was."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pytest
from blake3 import blake3

from ingot.blobs.ports import SigningStore
from ingot.client import AsyncClient
from ingot.client.errors import AddressRefused
from ingot.client.server_address import resolve_server_address
from ingot.identity.grants import Grant
from ingot.jobs.model import Job
from ingot.kernel.clock import ManualClock
from ingot.objects.s3 import WRITE_URL_SECONDS
from ingot.settings import Settings
from ingot.wire.blobs import SignedUrl, SignPartsResponse, UploadPlan
from ingot.wire.files import FileUrl
from ingot.worker.attempt_files import AttemptFiles
from ingot.worker.file_requests import (
    AttemptFileClient,
    DownloadUrlRequest,
    FileRequest,
    PartUrlsRequest,
    UploadPlanRequest,
    UploadRenewalRequest,
)
from ingot.worker.http_job_source import HttpFileClient
from tests.http.bucket_settings import SHORT_SECONDS, in_bucket, is_short, seconds_left
from tests.http.faulty_transport import Harm, Line, blobs_over
from tests.http.serving import Served, serving

MIB = 1024 * 1024
BODY = Random(5).randbytes(5 * MIB)
LARGE = BODY * 13 + b"more"  # In parts: five of 16 MiB.
pytestmark = pytest.mark.s3


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", in_bucket()) as served:
        yield served


def bucket_of(site: Served) -> SigningStore:
    assert site.ingot.bucket is not None
    return site.ingot.bucket


class Late(Line):
    """A line on which whatever goes to an address that holds for a second comes too late. The next hold longer."""

    def __init__(self, bucket: SigningStore, *, seconds: int = WRITE_URL_SECONDS) -> None:
        super().__init__()
        self._bucket = bucket
        self._seconds = seconds
        bucket.write_url_seconds = SHORT_SECONDS

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if is_short(str(request.url)):
            self._bucket.write_url_seconds = self._seconds
            await asyncio.sleep(seconds_left(str(request.url)))
        return await super().handle_async_request(request)


@pytest.fixture(autouse=True)
async def lines() -> AsyncIterator[None]:
    yield
    while Line.made:
        await Line.made.pop().aclose()


# -- clients ------------------------------------------------------------------------------------------------


async def test_an_object_that_comes_too_late_is_sent_to_a_new_address(site: Served) -> None:
    line = Late(bucket_of(site))
    made = await blobs_over(line, site.url, site.operator).put(BODY, "file")
    assert made.blob_id == blake3(BODY).hexdigest()
    put = [str(one.url) for one in line.said("PUT", "X-Amz")]
    assert [is_short(url) for url in put] == [True, False]
    assert len(line.said("POST", "/blobs/uploads")) == 2, "one begins, one completes"


async def test_parts_that_come_too_late_are_sent_to_new_addresses(site: Served) -> None:
    line = Late(bucket_of(site))
    made = await blobs_over(line, site.url, site.operator).put(LARGE, "file")
    assert made.blob_id == blake3(LARGE).hexdigest()
    put = [one.url for one in line.said("PUT", "partNumber")]
    good = sorted(int(url.params["partNumber"]) for url in put if not is_short(str(url)))
    assert (good, any(is_short(str(url)) for url in put)) == ([1, 2, 3, 4, 5], True)


async def test_a_new_address_that_is_refused_too_is_an_error(site: Served) -> None:
    line = Late(bucket_of(site), seconds=SHORT_SECONDS)
    with pytest.raises(AddressRefused):
        await blobs_over(line, site.url, site.operator).put(BODY, "file")
    assert len(line.said("PUT", "X-Amz")) == 2
    assert (await site.call("GET", "/usage")).json()["reserved_bytes"] == 0


async def expired(site: Served, blob_id: str) -> httpx.URL:
    """An address of the bucket to read at that was good once."""
    async with AsyncClient(site.url, token=site.operator) as client:
        url = (await client.blobs.url(blob_id, seconds=SHORT_SECONDS)).url
    await asyncio.sleep(seconds_left(url))
    return httpx.URL(url)


async def test_what_is_read_goes_on_at_a_new_address(site: Served, tmp_path: Path) -> None:
    async with AsyncClient(site.url, token=site.operator) as client:
        made = await client.blobs.put(BODY, "file")
    old = await expired(site, made.blob_id)

    def plan(request: httpx.Request) -> Harm | None:
        number = len(line.said("GET", "X-Amz")) if "X-Amz" in str(request.url) else 0
        if number == 2:
            request.url = old
        return Harm(cut_answer=3 * MIB) if number == 1 else None

    line = Line(plan)
    back = await blobs_over(line, site.url, site.operator).get("file", tmp_path / "back")
    assert back.read_bytes() == BODY
    ranges = [one.headers.get("range") for one in line.said("GET", "X-Amz")]
    assert ranges == [None, f"bytes={3 * MIB}-", f"bytes={3 * MIB}-"]

    def refuse(request: httpx.Request) -> None:
        if "X-Amz" in str(request.url):
            request.url = old

    always = Line(refuse)
    with pytest.raises(AddressRefused):
        await blobs_over(always, site.url, site.operator).get("file")
    assert len(always.said("GET", "X-Amz")) == 2


# -- attempts -----------------------------------------------------------------------------------------------


class Attempt:
    """A job that was claimed, and its files as its handler moves them. What it asks for is kept."""

    def __init__(self, site: Served, job: dict[str, Any], room: Path) -> None:
        self.job = msgspec.json.decode(msgspec.json.encode(job), type=Job)
        self.asked: list[FileRequest] = []
        self.changes: Callable[[FileRequest, bytes], bytes] = lambda _, said: said
        self.desk = HttpFileClient(resolve_server_address(site.url, token=site.operator, tenant="default"))
        attempt = AttemptFileClient(self.desk, self.job, lambda: None)

        def ask(one: FileRequest) -> bytes:
            self.asked.append(one)
            return self.changes(one, attempt.send(one))

        self.files = AttemptFiles(self.job, ask, lambda: room, lambda: None)

    def close(self) -> None:
        """Let go of connections."""
        self.files.close()
        self.desk.close()

    def count(self, kind: type) -> int:
        """How often it asked for something of this kind."""
        return sum(isinstance(one, kind) for one in self.asked)


async def attempt(site: Served, room: Path, **order: Any) -> Attempt:
    await site.make_job(**order)
    return Attempt(site, await site.claim(), room)


def url_in(ask: FileRequest, said: bytes) -> str | None:
    """The address that was answered."""
    match ask:
        case DownloadUrlRequest():
            return msgspec.json.decode(said, type=SignedUrl).url
        case UploadPlanRequest():
            return msgspec.json.decode(said, type=UploadPlan).url
        case PartUrlsRequest():
            return msgspec.json.decode(said, type=SignPartsResponse).parts[0].url
    return None


def held(bucket: SigningStore) -> Callable[[FileRequest, bytes], bytes]:
    """Hands on an address that holds for a second when that is over."""

    def change(ask: FileRequest, said: bytes) -> bytes:
        url = url_in(ask, said)
        if url is not None and is_short(url):
            bucket.write_url_seconds = WRITE_URL_SECONDS
            time.sleep(seconds_left(url))
        return said

    return change


async def outputs(site: Served, one: Attempt) -> dict[str, str]:
    """The outputs of the job once the attempt has succeeded."""
    path = f"/jobs/{one.job.id}"
    done = await site.call("POST", f"{path}/complete", json={"fence": one.job.fence})
    assert done.status_code == 200, done.text
    items = (await site.call("GET", f"{path}/files")).json()["items"]
    return {item["name"]: item["blob_id"] for item in items if item["kind"] == "output"}


@pytest.mark.parametrize(
    ("body", "kind"), [(BODY, UploadRenewalRequest), (LARGE, PartUrlsRequest)], ids=["one PUT", "parts"]
)
async def test_an_attempt_sends_its_output_to_a_new_address(
    site: Served, tmp_path: Path, body: bytes, kind: type
) -> None:
    with closing(await attempt(site, tmp_path)) as one:
        bucket_of(site).write_url_seconds = SHORT_SECONDS
        one.changes = held(bucket_of(site))
        await asyncio.to_thread(one.files.upload, body, "out.bin")
        assert (one.count(UploadPlanRequest), one.count(kind) > (0 if kind is UploadRenewalRequest else 5)) == (1, True)
        assert await outputs(site, one) == {"out.bin": blake3(body).hexdigest()}


async def test_an_attempt_reads_its_input_at_a_new_address(site: Served, tmp_path: Path) -> None:
    async with AsyncClient(site.url, token=site.operator) as client:
        blob = (await client.blobs.put(BODY, "file")).blob_id
    url = str(await expired(site, blob))
    old = msgspec.json.encode(FileUrl(url=url, expires_in=SHORT_SECONDS, blob_id=blob, size=len(BODY)))
    with closing(await attempt(site, tmp_path, inputs={"in.bin": blob})) as one:
        one.changes = lambda _, said: old if len(one.asked) == 1 else said
        path = await asyncio.to_thread(one.files.download)
        assert (path.read_bytes() == BODY, one.count(DownloadUrlRequest)) == (True, 2)
        one.changes = lambda _, said: old
        with pytest.raises(AddressRefused):
            await asyncio.to_thread(one.files.download)
        assert one.count(DownloadUrlRequest) == 4


class Aging(io.BytesIO):
    """Bytes at whose second reading something happens, short of the end of the first piece."""

    def __init__(self, data: bytes, happens: Callable[[], None]) -> None:
        super().__init__(data)
        self._happens = happens
        self._passed = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._passed += self.tell() == 15 * MIB
        if self._passed == 2:
            self._passed += 1
            self._happens()
        return super().read(size)


async def test_an_attempt_goes_on_with_us_where_it_was(tmp_path: Path) -> None:
    clock, body = ManualClock(), BODY * 4
    async with serving(tmp_path / "data", Settings(lease_seconds=86_400), clock=clock) as site:
        with closing(await attempt(site, tmp_path)) as one:
            source = Aging(body, lambda: clock.advance(seconds=7200))
            await asyncio.to_thread(one.files.upload, source, "out.bin")
            assert (one.count(UploadPlanRequest), one.count(UploadRenewalRequest)) == (1, 1)
            assert await outputs(site, one) == {"out.bin": blake3(body).hexdigest()}


async def test_only_the_attempt_itself_is_given_a_new_address(site: Served) -> None:
    job, other = await site.make_job(), await site.make_job()
    first, second = await site.claim(), await site.claim()
    assert [first["id"], second["id"]] == [job["id"], other["id"]]
    body = {"fence": first["fence"], "name": "out", "size": len(BODY)}
    begun = (await site.call("POST", f"/jobs/{job['id']}/uploads", json=body)).json()
    stranger = await site.token(Grant(action="workers.run", resource="jobs/other"))
    maker = await site.token(Grant(action="jobs.create"), Grant(action="blobs.write"))

    async def renewed(job: dict[str, Any], fence: int, token: str | None = None) -> tuple[int, str]:
        path = f"/jobs/{job['id']}/uploads/{begun['upload']['id']}/renew"
        answer = await site.call("POST", path, json={"fence": fence}, token=token)
        return answer.status_code, answer.json().get("code", answer.json().get("url"))

    status, url = await renewed(first, first["fence"])
    assert (status, url.partition("?")[0]) == (200, begun["url"].partition("?")[0])
    assert await renewed(first, second["fence"]) == (409, "lease_lost")
    assert await renewed(second, second["fence"]) == (404, "upload_not_found")
    assert await renewed(first, first["fence"], stranger) == (404, "job_not_found")
    assert await renewed(first, first["fence"], maker) == (403, "forbidden")
    assert (await site.call("POST", f"/jobs/{job['id']}/release", json={"fence": first["fence"]})).is_success
    assert await renewed(first, first["fence"]) == (409, "lease_lost")
