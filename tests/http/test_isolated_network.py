"""The network of isolated handlers: there is none, unless the handler has permission. Files work in any case."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import httpx
import msgspec
import pytest

from ingot.client import AsyncClient
from ingot.client.errors import JobDead
from ingot.client.retry_policy import RetryPolicy
from ingot.client.server_address import resolve_server_address
from ingot.kernel.errors import IngotError
from ingot.worker.http_job_source import HttpFileClient
from ingot.worker.isolation import Templates
from ingot.worker.isolation.network import network_obstacle
from ingot.worker.isolation.transfers import IssuedUrls, RelayedUrlClient, TransferThread
from tests.http.isolated_network import worker
from tests.http.running_worker import running_worker
from tests.http.serving import Served

MIB = 1024 * 1024
pytestmark = pytest.mark.skipif(network_obstacle() is not None, reason=f"no seccomp: {network_obstacle()}")


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.url, token=served.operator) as opened_client:
        yield opened_client


@pytest.fixture(scope="module")
def templates() -> Iterator[Templates]:
    shared = Templates()
    yield shared
    shared.close()


def port_of(served: Served) -> int:
    return int(served.url.rpartition(":")[2])


async def test_an_isolated_handler_has_no_network(served: Served, client: AsyncClient, templates: Templates) -> None:
    async with running_worker(served, worker, templates=templates):
        tries = (await (await client.submit("offline", port_of(served))).wait("30s")).result
    assert tries == {
        **dict.fromkeys(("connect", "lookup", "ipv4", "ipv6", "unix", "netlink", "datagram pair"), "PermissionError"),
        "program": "CalledProcessError",
        "pair": "x",
        "io_uring": "ENOSYS",
    }


async def test_an_isolated_handler_with_permission_has_a_network(
    served: Served, client: AsyncClient, templates: Templates
) -> None:
    async with running_worker(served, worker, templates=templates):
        tries = (await (await client.submit("online", port_of(served))).wait("30s")).result
    assert {name: tries[name] for name in ("connect", "lookup", "program", "ipv4", "unix")} == dict.fromkeys(
        ("connect", "lookup", "program", "ipv4", "unix"), "done"
    )


async def test_the_error_says_how_to_allow_the_network(
    served: Served, client: AsyncClient, templates: Templates
) -> None:
    async with running_worker(served, worker, templates=templates):
        with pytest.raises(JobDead, match="network=True"):
            await (await client.submit("connect", port_of(served), max_attempts=1)).wait("30s")


@pytest.mark.parametrize("size", [10, 100_000, 20 * MIB])
async def test_files_of_a_handler_without_a_network_are_transferred(
    served: Served, client: AsyncClient, templates: Templates, size: int
) -> None:
    content = os.urandom(size)
    address = resolve_server_address(served.url, token=served.operator, tenant="default")
    async with running_worker(served, worker, templates=templates, file_client=HttpFileClient(address)):
        job = await (await client.submit("copy", file={"in.bin": content})).wait("60s")
        assert job.result == size
        assert bytes(await job.outputs["copy.bin"].bytes()) == content


# -- what the worker relays -----------------------------------------------------------------------------------


@pytest.fixture
def store() -> Iterator[tuple[str, list[bytes]]]:
    """An object store that accepts everything: the URL of an object, and the requests it gets."""
    requests: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, suppress(OSError):
                    requests.append(connection.recv(65536))
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/object?signature=s", requests
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def relayed(store: tuple[str, list[bytes]]) -> Iterator[RelayedUrlClient]:
    issued_urls = IssuedUrls()
    part = {"url": store[0] + "&part=2", "headers": {"X-Amz-Checksum-SHA256": "abc="}}
    issued_urls.add_from(msgspec.json.encode({"url": store[0], "parts": [part]}))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        TransferThread(theirs, issued_urls).start()
        yield RelayedUrlClient(RetryPolicy(retry_seconds=0), ours)
        ours.shutdown(socket.SHUT_RDWR)


def test_an_issued_url_is_relayed(relayed: RelayedUrlClient, store: tuple[str, list[bytes]]) -> None:
    url, requests = store
    assert relayed.request_signed_url("GET", url, headers={}).content == b"hello"
    headers = {"Content-Length": "3", "x-amz-checksum-sha256": "abc="}
    response = relayed.request_signed_url("PUT", url + "&part=2", headers=headers, content=iter([b"a", b"bc"]))
    assert (response.status_code, requests[1][:3], requests[1][-3:]) == (200, b"PUT", b"abc")
    with relayed.fetch_signed_url(url, headers={"range": "bytes=0-"}) as response:
        assert b"".join(response.iter_bytes()) == b"hello"
    with relayed.fetch_signed_url(url, headers={}):
        pass  # The rest is discarded, so that the next request gets its own response.
    assert relayed.request_signed_url("GET", url, headers={}).content == b"hello"


@pytest.mark.parametrize(
    ("method", "suffix", "headers"),
    [
        ("GET", "x", {}),
        ("GET", "", {"host": "attacker.example"}),
        ("GET", "", {"range": "bytes=0-\r\nhost: attacker.example"}),
        ("GET", "", {"authorization": "Bearer x"}),
        ("DELETE", "", {}),
        ("PUT", "", {"content-length": "1", "transfer-encoding": "chunked"}),
    ],
)
def test_a_request_that_was_not_issued_is_refused(
    relayed: RelayedUrlClient, store: tuple[str, list[bytes]], method: str, suffix: str, headers: dict[str, str]
) -> None:
    url, requests = store
    content = iter([b"a"]) if method == "PUT" else None
    with pytest.raises(IngotError, match="refused"):
        relayed.request_signed_url(method, url + suffix, headers=headers, content=content)
    assert requests == []
    assert relayed.request_signed_url("GET", url, headers={}).content == b"hello"


def test_an_unreachable_store_is_reported(relayed: RelayedUrlClient) -> None:
    ours, theirs = socket.socketpair()
    issued_urls = IssuedUrls()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/object"
    issued_urls.add_from(msgspec.json.encode({"url": url}))
    with ours, theirs:
        TransferThread(theirs, issued_urls).start()
        with pytest.raises(IngotError, match="cannot be reached") as caught:
            RelayedUrlClient(RetryPolicy(retry_seconds=0), ours).request_signed_url("GET", url, headers={})
        assert isinstance(caught.value.__cause__, httpx.ReadError)
        ours.shutdown(socket.SHUT_RDWR)
