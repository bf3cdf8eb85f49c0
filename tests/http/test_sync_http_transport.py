"""The worker's synchronous HTTP transport, against servers that respond, close the connection or do not read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

from ingot.client.errors import ServerUnreachable
from ingot.client.retry_policy import RetryPolicy
from ingot.worker.signed_url_client import SignedUrlClient
from ingot.worker.sync_http_transport import SyncKeepAliveTransport
from tests.waiting import SECONDS_MAX

RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
MIB = 1024 * 1024
Serve = Callable[[socket.socket], None]


class Site:
    """A client, and the number of connections to its server."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.connections = 0


@contextmanager
def site_of(serve: Serve) -> Iterator[Site]:
    """A client of a server that handles one connection after another with this function."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        httpx.Client(
            base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", transport=SyncKeepAliveTransport()
        ) as client,
    ):
        site = Site(client)

        def accept_all() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    site.connections += 1
                    with connection, suppress(OSError):
                        serve(connection)

        thread = threading.Thread(target=accept_all, daemon=True)
        thread.start()
        yield site
        client.close()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(SECONDS_MAX)
        assert not thread.is_alive()


def read_head(connection: socket.socket) -> bytes:
    """The head of the next request; empty at the end of the connection."""
    text = b""
    while not text.endswith(b"\r\n\r\n"):
        if not (part := connection.recv(1)):
            return b""
        text += part
    return text


def test_a_connection_is_reused() -> None:
    def serve(connection: socket.socket) -> None:
        while read_head(connection):
            connection.sendall(RESPONSE)

    with site_of(serve) as site:
        for _ in range(3):
            assert site.client.get("/").text == "ok"
        assert site.connections == 1


@pytest.mark.parametrize("content", [RESPONSE + RESPONSE, RESPONSE.replace(b"OK\r\n", b"OK\r\nconnection: close\r\n")])
def test_a_connection_with_unexpected_bytes_or_a_close_header_is_not_reused(content: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(content)

    with site_of(serve) as site:
        for expected in (1, 2):
            assert site.client.get("/").text == "ok"
            assert site.connections == expected


def test_large_bodies_are_sent_and_received_in_parts() -> None:
    sent = b"".join(bytes([number]) * MIB for number in range(8))
    received = bytearray()

    def serve(connection: socket.socket) -> None:
        assert b"content-length: %d" % len(sent) in read_head(connection).lower()
        while len(received) < len(sent):
            received.extend(connection.recv(MIB))
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(sent))
        connection.sendall(sent)

    with site_of(serve) as site:
        parts = (sent[at : at + MIB] for at in range(0, len(sent), MIB))
        headers = {"content-length": str(len(sent))}
        with site.client.stream("PUT", "/", content=parts, headers=headers) as response:
            parts_received = list(response.iter_raw())
    assert bytes(received) == sent
    assert b"".join(parts_received) == sent
    assert len(parts_received) > 8, "the response must not be buffered whole"


def test_a_response_to_a_half_sent_body_is_returned() -> None:
    def serve(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")

    with site_of(serve) as site:
        parts = (b"x" * MIB for _ in range(64))
        response = site.client.put("/", content=parts, headers={"content-length": str(64 * MIB)})
        assert response.status_code == 413


def test_a_connection_after_an_incomplete_request_is_not_reused() -> None:
    """The server would take the next request for the rest of the body."""
    answered = threading.Event()

    def serve(connection: socket.socket) -> None:
        while read_head(connection):
            connection.sendall(RESPONSE)
            answered.set()

    def parts() -> Iterator[bytes]:
        yield b"x" * 20_000
        assert answered.wait(SECONDS_MAX)
        raise BrokenPipeError

    with site_of(serve) as site:
        assert site.client.put("/", content=parts(), headers={"content-length": "30000"}).text == "ok"
        assert (site.client.get("/").text, site.connections) == ("ok", 2)


def test_an_error_while_sending_closes_the_connection() -> None:
    class SourceFailed(Exception):
        pass

    def parts() -> Iterator[bytes]:
        yield b"x" * MIB
        raise SourceFailed

    def serve(connection: socket.socket) -> None:
        if read_head(connection).startswith(b"GET"):
            connection.sendall(RESPONSE)
        while connection.recv(MIB):
            pass

    with site_of(serve) as site:
        with pytest.raises(SourceFailed):
            site.client.put("/", content=parts(), headers={"content-length": str(2 * MIB)})
        assert (site.client.get("/").text, site.connections) == ("ok", 2)


@pytest.mark.parametrize(
    "content", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", b"no HTTP at all\r\n\r\n"]
)
def test_an_incomplete_response_is_a_transport_error(content: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(content)

    with site_of(serve) as site, pytest.raises(httpx.TransportError):
        site.client.get("/")


def test_timeouts_refused_connections_and_tls_errors_are_distinguished() -> None:
    silent = threading.Event()

    def serve(connection: socket.socket) -> None:
        assert silent.wait(SECONDS_MAX)

    with site_of(serve) as site:
        with pytest.raises(httpx.ReadTimeout):
            site.client.get("/", timeout=0.05)
        silent.set()
    with site_of(lambda connection: connection.sendall(RESPONSE)) as site, pytest.raises(httpx.ConnectError):
        site.client.get(f"https://127.0.0.1:{site.client.base_url.port}/", timeout=SECONDS_MAX)
    with httpx.Client(transport=SyncKeepAliveTransport()) as client, pytest.raises(httpx.ConnectError):
        client.get("http://127.0.0.1:1/")


@pytest.mark.parametrize(
    ("target", "sent"),
    [
        ("/a?b=c%2Fd&e=~", b"/a?b=c%2Fd&e=~"),
        ("/\u00fc b", b"/%C3%BC%20b"),
        ("/a#part", b"/a"),
        ("", b"/"),
    ],
)
def test_signed_urls_are_requested_unchanged(target: str, sent: bytes) -> None:
    requests: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        while request := read_head(connection):
            requests.append(request)
            if request.startswith(b"PUT"):
                connection.recv(2, socket.MSG_WAITALL)
            connection.sendall(RESPONSE)

    with site_of(serve) as site:
        address = f"127.0.0.1:{site.client.base_url.port}"
        http = SignedUrlClient(RetryPolicy(retry_seconds=0))
        with http.fetch_signed_url(f"http://{address}{target}", headers={"range": "bytes=0-"}) as response:
            assert b"".join(response.iter_raw()) == b"ok"
        put = http.request_signed_url(
            "PUT", f"http://{address}{target}", headers={"content-length": "2"}, content=iter([b"o", b"k"])
        )
        assert (put.status_code, put.content, site.connections) == (200, b"ok", 1)
        http.close()
    for request, method in zip(requests, (b"GET", b"PUT"), strict=True):
        assert request.startswith(b"%s %s HTTP/1.1\r\n" % (method, sent))
        assert b"\r\nhost: %s\r\n" % address.encode() in request.lower()
    assert b"\r\nrange: bytes=0-\r\n" in requests[0].lower()


def test_a_url_cannot_inject_headers() -> None:
    with site_of(lambda connection: connection.sendall(RESPONSE)) as site:
        http = SignedUrlClient(RetryPolicy(retry_seconds=0))
        with pytest.raises(ServerUnreachable):
            http.request_signed_url(
                "GET", f"http://127.0.0.1:{site.client.base_url.port}/a\r\nx-injected: more", headers={}
            )
        http.close()
        assert site.connections == 0


def test_a_body_without_a_length_is_not_sent() -> None:
    with site_of(lambda connection: connection.sendall(RESPONSE)) as site, pytest.raises(httpx.TransportError):
        site.client.put("/", content=iter([b"x"]))
