"""A relay before a server that loses the answer to a request, once."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CHUNK_BYTES = 65_536


class Relay:
    """Passes on what both sides say. The answer to the first request that begins so is lost, with its connection."""

    def __init__(self, url: str, request: bytes) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._server = (host, int(port))
        self._request = request
        self._door = threading.Lock()
        self.lost = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def serve(self) -> None:
        """Take connections until it is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._server) as server:
            answers = threading.Thread(target=self._answer, args=(server, client), daemon=True)
            while data := client.recv(CHUNK_BYTES):
                if data.startswith(self._request) and self._is_first():
                    server.sendall(_whole(data, client))
                    server.recv(CHUNK_BYTES)  # It has done what it was asked for.
                    return
                server.sendall(data)
                if not answers.is_alive():
                    answers.start()

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(CHUNK_BYTES):
                client.sendall(data)

    def _is_first(self) -> bool:
        with self._door:
            self.lost += 1
            return self.lost == 1

    def close(self) -> None:
        """Take no more."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def _whole(data: bytes, client: socket.socket) -> bytes:
    """A request with its whole body, of which the first part has arrived: the server answers no part of one."""
    while True:
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if length is not None and len(body) >= int(length[1]):
            return data
        data += client.recv(CHUNK_BYTES)


@contextmanager
def losing(url: str, request: bytes) -> Iterator[Relay]:
    """Such a relay, before the server at this address."""
    relay = Relay(url, request)
    serving = threading.Thread(target=relay.serve, daemon=True)
    serving.start()
    try:
        yield relay
    finally:
        relay.close()
        serving.join()
