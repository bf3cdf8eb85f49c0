"""Signed URLs that expire during a transfer: clients and workers request new ones and continue."""

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
from tests.http.bucket_settings import SHORT_SECONDS, bucket_settings, expires_soon, seconds_until_expired
from tests.http.faulty_transport import Fault, FaultyTransport, blobs_client
from tests.http.serving import Served, serving

MIB = 1024 * 1024
BODY = Random(5).randbytes(5 * MIB)
LARGE = BODY * 13 + b"more"  # In parts: five of 16 MiB.
pytestmark = pytest.mark.s3


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", bucket_settings()) as served:
        yield served


def bucket_of(site: Served) -> SigningStore:
    assert site.ingot.bucket is not None
    return site.ingot.bucket


class LateTransport(FaultyTransport):
    """A transport that sends to short-lived URLs only after they have expired. URLs signed later live longer."""

    def __init__(self, bucket: SigningStore, *, seconds: int = WRITE_URL_SECONDS) -> None:
        super().__init__()
        self._bucket = bucket
        self._seconds = seconds
        bucket.write_url_seconds = SHORT_SECONDS

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if expires_soon(str(request.url)):
            self._bucket.write_url_seconds = self._seconds
            await asyncio.sleep(seconds_until_expired(str(request.url)))
        return await super().handle_async_request(request)


@pytest.fixture(autouse=True)
async def close_transports() -> AsyncIterator[None]:
    yield
    while FaultyTransport.instances:
        await FaultyTransport.instances.pop().aclose()


# -- clients ------------------------------------------------------------------------------------------------


async def test_a_client_sends_an_object_again_to_a_new_url(site: Served) -> None:
    transport = LateTransport(bucket_of(site))
    stored = await blobs_client(transport, site.url, site.operator).put(BODY, "file")
    assert stored.blob_id == blake3(BODY).hexdigest()
    put = [str(request.url) for request in transport.requests_to("PUT", "X-Amz")]
    assert [expires_soon(url) for url in put] == [True, False]
    assert len(transport.requests_to("POST", "/blobs/uploads")) == 2, "one request begins the upload, one completes it"


async def test_a_client_sends_parts_again_to_new_urls(site: Served) -> None:
    transport = LateTransport(bucket_of(site))
    stored = await blobs_client(transport, site.url, site.operator).put(LARGE, "file")
    assert stored.blob_id == blake3(LARGE).hexdigest()
    put = [request.url for request in transport.requests_to("PUT", "partNumber")]
    accepted = sorted(int(url.params["partNumber"]) for url in put if not expires_soon(str(url)))
    assert (accepted, any(expires_soon(str(url)) for url in put)) == ([1, 2, 3, 4, 5], True)


async def test_a_client_fails_if_the_new_url_is_rejected_too(site: Served) -> None:
    transport = LateTransport(bucket_of(site), seconds=SHORT_SECONDS)
    with pytest.raises(AddressRefused):
        await blobs_client(transport, site.url, site.operator).put(BODY, "file")
    assert len(transport.requests_to("PUT", "X-Amz")) == 2
    assert (await site.call("GET", "/usage")).json()["reserved_bytes"] == 0


async def expired(site: Served, blob_id: str) -> httpx.URL:
    """An expired URL for reading from the bucket."""
    async with AsyncClient(site.url, token=site.operator) as client:
        url = (await client.blobs.url(blob_id, seconds=SHORT_SECONDS)).url
    await asyncio.sleep(seconds_until_expired(url))
    return httpx.URL(url)


async def test_a_client_continues_a_download_at_a_new_url(site: Served, tmp_path: Path) -> None:
    async with AsyncClient(site.url, token=site.operator) as client:
        stored = await client.blobs.put(BODY, "file")
    old = await expired(site, stored.blob_id)

    def plan(request: httpx.Request) -> Fault | None:
        number = len(transport.requests_to("GET", "X-Amz")) if "X-Amz" in str(request.url) else 0
        if number == 2:
            request.url = old
        return Fault(cut_response_after=3 * MIB) if number == 1 else None

    transport = FaultyTransport(plan)
    back = await blobs_client(transport, site.url, site.operator).get("file", tmp_path / "back")
    assert back.read_bytes() == BODY
    ranges = [request.headers.get("range") for request in transport.requests_to("GET", "X-Amz")]
    assert ranges == [None, f"bytes={3 * MIB}-", f"bytes={3 * MIB}-"]

    def refuse(request: httpx.Request) -> None:
        if "X-Amz" in str(request.url):
            request.url = old

    rejecting = FaultyTransport(refuse)
    with pytest.raises(AddressRefused):
        await blobs_client(rejecting, site.url, site.operator).get("file")
    assert len(rejecting.requests_to("GET", "X-Amz")) == 2


# -- attempts -----------------------------------------------------------------------------------------------


class Attempt:
    """A claimed job with the file calls of its handler. Records the file requests."""

    def __init__(self, site: Served, job: dict[str, Any], workdir: Path) -> None:
        self.job = msgspec.json.decode(msgspec.json.encode(job), type=Job)
        self.requests: list[FileRequest] = []
        self.changes: Callable[[FileRequest, bytes], bytes] = lambda _, response: response
        self.http_client = HttpFileClient(resolve_server_address(site.url, token=site.operator, tenant="default"))
        attempt = AttemptFileClient(self.http_client, self.job, lambda: None)

        def send(request: FileRequest) -> bytes:
            self.requests.append(request)
            return self.changes(request, attempt.send(request))

        self.files = AttemptFiles(self.job, send, lambda: workdir, lambda: None)

    def close(self) -> None:
        """Close connections."""
        self.files.close()
        self.http_client.close()

    def count(self, kind: type) -> int:
        """The number of file requests of this kind."""
        return sum(isinstance(request, kind) for request in self.requests)


async def attempt(site: Served, workdir: Path, **order: Any) -> Attempt:
    await site.make_job(**order)
    return Attempt(site, await site.claim(), workdir)


def url_in(request: FileRequest, response: bytes) -> str | None:
    """The URL in a response."""
    match request:
        case DownloadUrlRequest():
            return msgspec.json.decode(response, type=SignedUrl).url
        case UploadPlanRequest():
            return msgspec.json.decode(response, type=UploadPlan).url
        case PartUrlsRequest():
            return msgspec.json.decode(response, type=SignPartsResponse).parts[0].url
    return None


def delay_until_expired(bucket: SigningStore) -> Callable[[FileRequest, bytes], bytes]:
    """Deliver short-lived URLs only after they have expired."""

    def change(request: FileRequest, response: bytes) -> bytes:
        url = url_in(request, response)
        if url is not None and expires_soon(url):
            bucket.write_url_seconds = WRITE_URL_SECONDS
            time.sleep(seconds_until_expired(url))
        return response

    return change


async def complete_and_list_outputs(site: Served, attempt: Attempt) -> dict[str, str]:
    """Complete the job, and list its outputs."""
    path = f"/jobs/{attempt.job.id}"
    completed = await site.call("POST", f"{path}/complete", json={"fence": attempt.job.fence})
    assert completed.status_code == 200, completed.text
    items = (await site.call("GET", f"{path}/files")).json()["items"]
    return {item["name"]: item["blob_id"] for item in items if item["kind"] == "output"}


@pytest.mark.parametrize(
    ("body", "kind"), [(BODY, UploadRenewalRequest), (LARGE, PartUrlsRequest)], ids=["one PUT", "parts"]
)
async def test_an_attempt_sends_its_output_again_to_a_new_url(
    site: Served, tmp_path: Path, body: bytes, kind: type
) -> None:
    with closing(await attempt(site, tmp_path)) as running:
        bucket_of(site).write_url_seconds = SHORT_SECONDS
        running.changes = delay_until_expired(bucket_of(site))
        await asyncio.to_thread(running.files.upload, body, "out.bin")
        assert (running.count(UploadPlanRequest), running.count(kind) > (0 if kind is UploadRenewalRequest else 5)) == (
            1,
            True,
        )
        assert await complete_and_list_outputs(site, running) == {"out.bin": blake3(body).hexdigest()}


async def test_an_attempt_reads_its_input_again_at_a_new_url(site: Served, tmp_path: Path) -> None:
    async with AsyncClient(site.url, token=site.operator) as client:
        blob = (await client.blobs.put(BODY, "file")).blob_id
    url = str(await expired(site, blob))
    old = msgspec.json.encode(FileUrl(url=url, expires_in=SHORT_SECONDS, blob_id=blob, size=len(BODY)))
    with closing(await attempt(site, tmp_path, inputs={"in.bin": blob})) as running:
        running.changes = lambda _, response: old if len(running.requests) == 1 else response
        path = await asyncio.to_thread(running.files.download)
        assert (path.read_bytes() == BODY, running.count(DownloadUrlRequest)) == (True, 2)
        running.changes = lambda _, response: old
        with pytest.raises(AddressRefused):
            await asyncio.to_thread(running.files.download)
        assert running.count(DownloadUrlRequest) == 4


class CallbackSource(io.BytesIO):
    """Bytes that call a function while they are read a second time, before the end of the first piece."""

    def __init__(self, data: bytes, callback: Callable[[], None]) -> None:
        super().__init__(data)
        self._callback = callback
        self._times_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._times_read += self.tell() == 15 * MIB
        if self._times_read == 2:
            self._times_read += 1
            self._callback()
        return super().read(size)


async def test_an_attempt_resumes_an_upload_to_the_server_at_a_new_url(tmp_path: Path) -> None:
    clock, body = ManualClock(), BODY * 4
    async with serving(tmp_path / "data", Settings(lease_seconds=86_400), clock=clock) as site:
        with closing(await attempt(site, tmp_path)) as running:
            source = CallbackSource(body, lambda: clock.advance(seconds=7200))
            await asyncio.to_thread(running.files.upload, source, "out.bin")
            assert (running.count(UploadPlanRequest), running.count(UploadRenewalRequest)) == (1, 1)
            assert await complete_and_list_outputs(site, running) == {"out.bin": blake3(body).hexdigest()}


async def test_only_the_running_attempt_can_renew_its_upload_url(site: Served) -> None:
    job, other = await site.make_job(), await site.make_job()
    first, second = await site.claim(), await site.claim()
    assert [first["id"], second["id"]] == [job["id"], other["id"]]
    body = {"fence": first["fence"], "name": "out", "size": len(BODY)}
    plan = (await site.call("POST", f"/jobs/{job['id']}/uploads", json=body)).json()
    foreign_worker = await site.token(Grant(action="workers.run", resource="jobs/other"))
    submitter = await site.token(Grant(action="jobs.create"), Grant(action="blobs.write"))

    async def renew(job: dict[str, Any], fence: int, token: str | None = None) -> tuple[int, str]:
        path = f"/jobs/{job['id']}/uploads/{plan['upload']['id']}/renew"
        response = await site.call("POST", path, json={"fence": fence}, token=token)
        return response.status_code, response.json().get("code", response.json().get("url"))

    status, url = await renew(first, first["fence"])
    assert (status, url.partition("?")[0]) == (200, plan["url"].partition("?")[0])
    assert await renew(first, second["fence"]) == (409, "lease_lost")
    assert await renew(second, second["fence"]) == (404, "upload_not_found")
    assert await renew(first, first["fence"], foreign_worker) == (404, "job_not_found")
    assert await renew(first, first["fence"], submitter) == (403, "forbidden")
    assert (await site.call("POST", f"/jobs/{job['id']}/release", json={"fence": first["fence"]})).is_success
    assert await renew(first, first["fence"]) == (409, "lease_lost")
