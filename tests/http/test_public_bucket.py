"""A bucket that clients reach by another name than the server does: URLs are signed for that name."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import httpx
import pytest

from ingot.client import AsyncClient
from ingot.client.asynchronous.blobs import AsyncBlobs
from tests import s3
from tests.http.bucket_settings import bucket_settings
from tests.http.faulty_transport import FaultyTransport, blobs_client
from tests.http.serving import Served, serving
from tests.waiting import SECONDS_MAX

pytestmark = pytest.mark.s3

MIB = 1024 * 1024
BODY = Random(3).randbytes(5 * MIB)


def public_endpoint() -> str:
    """The URL by which clients reach the S3 server."""
    return s3.server_url().replace("127.0.0.1", "localhost")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", bucket_settings(s3_public_endpoint=public_endpoint())) as served:
        yield served


@pytest.fixture
async def transport() -> AsyncIterator[FaultyTransport]:
    faulty = FaultyTransport()
    yield faulty
    await faulty.aclose()


def hosts_of(transport: FaultyTransport, site: Served, method: str) -> set[str]:
    """The hosts, except the server, that got requests with this method."""
    urls = [request.url for request in transport.requests if request.method == method]
    return {f"http://{url.netloc.decode()}" for url in urls if not str(url).startswith(site.url)}


async def store_file(site: Served, transport: FaultyTransport, size: int) -> tuple[AsyncBlobs, bytes]:
    blobs, body = blobs_client(transport, site.url, site.operator), (BODY * 14)[:size]
    assert (await blobs.put(body, "file")).size == size
    return blobs, body


@pytest.mark.parametrize("size", [5 * MIB, 65 * MIB], ids=["one PUT", "parts"])
async def test_clients_upload_and_download_at_the_public_endpoint(
    site: Served, transport: FaultyTransport, size: int
) -> None:
    blobs, body = await store_file(site, transport, size)
    assert await blobs.get("file") == body
    assert [hosts_of(transport, site, method) for method in ("PUT", "GET")] == [
        {public_endpoint()},
        {public_endpoint()},
    ]


@pytest.mark.curl
async def test_a_signed_url_is_valid_at_the_public_endpoint_only(site: Served, tmp_path: Path) -> None:
    async with AsyncClient(site.url, token=site.operator) as client:
        await client.blobs.put(BODY, "file")
        url = (await client.blobs.url("file")).url
    assert urlsplit(url).hostname == "localhost"
    command = ["curl", "-sSf", "--max-time", str(SECONDS_MAX), "-o", str(tmp_path / "back"), url]
    await asyncio.to_thread(subprocess.run, command, check=True)
    assert (tmp_path / "back").read_bytes() == BODY
    async with httpx.AsyncClient(verify=False) as other:
        assert (await other.get(url.replace("localhost", "127.0.0.1"))).status_code == 403
