"""A bucket that clients reach by another name than the server: what they are given is signed for that name."""

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
from tests.http.bucket_settings import in_bucket
from tests.http.faulty_transport import Line, blobs_over
from tests.http.serving import Served, serving
from tests.waiting import SECONDS_MAX

pytestmark = pytest.mark.s3

MIB = 1024 * 1024
BODY = Random(3).randbytes(5 * MIB)


def elsewhere() -> str:
    """The S3 server as clients call it."""
    return s3.server_url().replace("127.0.0.1", "localhost")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", in_bucket(s3_public_endpoint=elsewhere())) as served:
        yield served


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    one = Line()
    yield one
    await one.aclose()


def asked_of(line: Line, site: Served, method: str) -> set[str]:
    """The hosts other than the server that were asked in this way."""
    asked = [one.url for one in line.asked if one.method == method]
    return {f"http://{url.netloc.decode()}" for url in asked if not str(url).startswith(site.url)}


async def stored(site: Served, line: Line, size: int) -> tuple[AsyncBlobs, bytes]:
    blobs, body = blobs_over(line, site.url, site.operator), (BODY * 14)[:size]
    assert (await blobs.put(body, "file")).size == size
    return blobs, body


@pytest.mark.parametrize("size", [5 * MIB, 65 * MIB], ids=["one PUT", "parts"])
async def test_clients_send_and_read_at_the_public_address(site: Served, line: Line, size: int) -> None:
    blobs, body = await stored(site, line, size)
    assert await blobs.get("file") == body
    assert [asked_of(line, site, method) for method in ("PUT", "GET")] == [{elsewhere()}, {elsewhere()}]


@pytest.mark.curl
async def test_curl_reads_at_the_public_address_and_nobody_at_the_other(site: Served, tmp_path: Path) -> None:
    async with AsyncClient(site.url, token=site.operator) as client:
        await client.blobs.put(BODY, "file")
        address = (await client.blobs.url("file")).url
    assert urlsplit(address).hostname == "localhost"
    command = ["curl", "-sSf", "--max-time", str(SECONDS_MAX), "-o", str(tmp_path / "back"), address]
    await asyncio.to_thread(subprocess.run, command, check=True)
    assert (tmp_path / "back").read_bytes() == BODY
    async with httpx.AsyncClient(verify=False) as other:
        assert (await other.get(address.replace("localhost", "127.0.0.1"))).status_code == 403
