"""The worker's own way over HTTP for threads, against servers that answer, close, and do not read."""

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

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
MIB = 1024 * 1024
Serve = Callable[[socket.socket], None]


class Site:
    """A client, and how often its server was connected to."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.connections = 0


@contextmanager
def asking(serve: Serve) -> Iterator[Site]:
    """A client of a server that does this with each connection, one after the other."""
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        httpx.Client(
            base_url=f"http://127.0.0.1:{door.getsockname()[1]}", transport=SyncKeepAliveTransport()
        ) as client,
    ):
        site = Site(client)

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = door.accept()
                    site.connections += 1
                    with connection, suppress(OSError):
                        serve(connection)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield site
        client.close()
        door.shutdown(socket.SHUT_RDWR)
        thread.join(SECONDS_MAX)
        assert not thread.is_alive()


def head(connection: socket.socket) -> bytes:
    """A request up to its body; nothing at the end of the line."""
    text = b""
    while not text.endswith(b"\r\n\r\n"):
        if not (part := connection.recv(1)):
            return b""
        text += part
    return text


def test_a_connection_is_used_again() -> None:
    def serve(connection: socket.socket) -> None:
        while head(connection):
            connection.sendall(ANSWER)

    with asking(serve) as site:
        for _ in range(3):
            assert site.client.get("/").text == "ok"
        assert site.connections == 1


@pytest.mark.parametrize("said", [ANSWER + ANSWER, ANSWER.replace(b"OK\r\n", b"OK\r\nconnection: close\r\n")])
def test_a_connection_on_which_more_or_no_more_is_said_is_not_used_again(said: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        head(connection)
        connection.sendall(said)

    with asking(serve) as site:
        for expected in (1, 2):
            assert site.client.get("/").text == "ok"
            assert site.connections == expected


def test_what_is_large_comes_and_goes_in_parts() -> None:
    sent = b"".join(bytes([number]) * MIB for number in range(8))
    got = bytearray()

    def serve(connection: socket.socket) -> None:
        assert b"content-length: %d" % len(sent) in head(connection).lower()
        while len(got) < len(sent):
            got.extend(connection.recv(MIB))
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(sent))
        connection.sendall(sent)

    with asking(serve) as site:
        parts = (sent[at : at + MIB] for at in range(0, len(sent), MIB))
        headers = {"content-length": str(len(sent))}
        with site.client.stream("PUT", "/", content=parts, headers=headers) as answer:
            found = list(answer.iter_raw())
    assert bytes(got) == sent
    assert b"".join(found) == sent
    assert len(found) > 8, "it is not held here whole"


def test_who_does_not_read_to_the_end_says_why() -> None:
    def serve(connection: socket.socket) -> None:
        head(connection)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")

    with asking(serve) as site:
        parts = (b"x" * MIB for _ in range(64))
        answer = site.client.put("/", content=parts, headers={"content-length": str(64 * MIB)})
        assert answer.status_code == 413


def test_a_connection_that_half_a_request_went_over_is_not_used_again() -> None:
    """One end may be closed and the other open: what comes then is read as the rest of the body."""
    answered = threading.Event()

    def serve(connection: socket.socket) -> None:
        while head(connection):
            connection.sendall(ANSWER)
            answered.set()

    def parts() -> Iterator[bytes]:
        yield b"x" * 20_000
        assert answered.wait(SECONDS_MAX)
        raise BrokenPipeError

    with asking(serve) as site:
        assert site.client.put("/", content=parts(), headers={"content-length": "30000"}).text == "ok"
        assert (site.client.get("/").text, site.connections) == ("ok", 2)


def test_who_gives_up_in_the_middle_leaves_no_connection_behind() -> None:
    class GivenUp(Exception):
        pass

    def parts() -> Iterator[bytes]:
        yield b"x" * MIB
        raise GivenUp

    def serve(connection: socket.socket) -> None:
        if head(connection).startswith(b"GET"):
            connection.sendall(ANSWER)
        while connection.recv(MIB):
            pass

    with asking(serve) as site:
        with pytest.raises(GivenUp):
            site.client.put("/", content=parts(), headers={"content-length": str(2 * MIB)})
        assert (site.client.get("/").text, site.connections) == ("ok", 2)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", b"no HTTP at all\r\n\r\n"])
def test_half_an_answer_is_none(said: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        head(connection)
        connection.sendall(said)

    with asking(serve) as site, pytest.raises(httpx.TransportError):
        site.client.get("/")


def test_who_is_silent_away_or_no_server_of_https_is_told_apart() -> None:
    silent = threading.Event()

    def serve(connection: socket.socket) -> None:
        assert silent.wait(SECONDS_MAX)

    with asking(serve) as site:
        with pytest.raises(httpx.ReadTimeout):
            site.client.get("/", timeout=0.05)
        silent.set()
    with asking(lambda connection: connection.sendall(ANSWER)) as site, pytest.raises(httpx.ConnectError):
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
def test_bytes_find_their_way_to_any_address(target: str, sent: bytes) -> None:
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        while request := head(connection):
            asked.append(request)
            if request.startswith(b"PUT"):
                connection.recv(2, socket.MSG_WAITALL)
            connection.sendall(ANSWER)

    with asking(serve) as site:
        place = f"127.0.0.1:{site.client.base_url.port}"
        http = SignedUrlClient(RetryPolicy(retry_seconds=0))
        with http.fetch_signed_url(f"http://{place}{target}", headers={"range": "bytes=0-"}) as answer:
            assert b"".join(answer.iter_raw()) == b"ok"
        put = http.request_signed_url(
            "PUT", f"http://{place}{target}", headers={"content-length": "2"}, content=iter([b"o", b"k"])
        )
        assert (put.status_code, put.content, site.connections) == (200, b"ok", 1)
        http.close()
    for request, method in zip(asked, (b"GET", b"PUT"), strict=True):
        assert request.startswith(b"%s %s HTTP/1.1\r\n" % (method, sent))
        assert b"\r\nhost: %s\r\n" % place.encode() in request.lower()
    assert b"\r\nrange: bytes=0-\r\n" in asked[0].lower()


def test_an_address_says_nothing_but_where() -> None:
    with asking(lambda connection: connection.sendall(ANSWER)) as site:
        http = SignedUrlClient(RetryPolicy(retry_seconds=0))
        with pytest.raises(ServerUnreachable):
            http.request_signed_url(
                "GET", f"http://127.0.0.1:{site.client.base_url.port}/a\r\nx-told: more", headers={}
            )
        http.close()
        assert site.connections == 0


def test_a_body_of_no_known_size_is_not_sent() -> None:
    with asking(lambda connection: connection.sendall(ANSWER)) as site, pytest.raises(httpx.TransportError):
        site.client.put("/", content=iter([b"x"]))
