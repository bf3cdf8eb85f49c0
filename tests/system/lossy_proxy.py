"""A proxy in front of a server that loses one response."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CHUNK_BYTES = 65_536


class LossyProxy:
    """Forwards both directions. The response to the first request with a given prefix is lost, with its connection."""

    def __init__(self, url: str, request: bytes) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._server = (host, int(port))
        self._request = request
        self._lock = threading.Lock()
        self.matching_requests = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def serve(self) -> None:
        """Accept connections until the proxy is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._server) as server:
            responses = threading.Thread(target=self._forward_responses, args=(server, client), daemon=True)
            while data := client.recv(CHUNK_BYTES):
                if data.startswith(self._request) and self._is_first():
                    server.sendall(_read_whole_request(data, client))
                    server.recv(CHUNK_BYTES)  # The server has processed the request.
                    return
                server.sendall(data)
                if not responses.is_alive():
                    responses.start()

    def _forward_responses(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(CHUNK_BYTES):
                client.sendall(data)

    def _is_first(self) -> bool:
        with self._lock:
            self.matching_requests += 1
            return self.matching_requests == 1

    def close(self) -> None:
        """Stop accepting connections."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def _read_whole_request(data: bytes, client: socket.socket) -> bytes:
    """Return the request with its whole body, because the server does not respond to a partial one."""
    while True:
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if length is not None and len(body) >= int(length[1]):
            return data
        data += client.recv(CHUNK_BYTES)


@contextmanager
def lossy_proxy(url: str, request: bytes) -> Iterator[LossyProxy]:
    """Run a proxy in front of the server with this URL."""
    proxy = LossyProxy(url, request)
    serving = threading.Thread(target=proxy.serve, daemon=True)
    serving.start()
    try:
        yield proxy
    finally:
        proxy.close()
        serving.join()
