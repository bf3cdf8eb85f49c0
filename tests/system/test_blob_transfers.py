"""Files on their way to a real server, and back, when that is killed; and what curl makes of it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random

import pytest
from blake3 import blake3

from ingot.client import Client
from tests.system.programs import served

MIB = 1024 * 1024
BIG = Random(9).randbytes(40 * MIB + 11)


class Standing:
    """A server at one address, that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as door:
            door.bind(("127.0.0.1", 0))
            self._port = door.getsockname()[1]
        self._running: AbstractContextManager[object] | None = None
        self.kills = 0

    def start(self) -> str:
        """Start it, and wait until it serves."""
        self._running = served(self._folder / "data", "--port", str(self._port))
        _, url = self._running.__enter__()
        return url

    def kill(self) -> None:
        """End it as a power failure of its own would."""
        if self._running is not None:
            self._running.__exit__(None, None, None)
        self._running = None

    def kill_once(self) -> None:
        """Kill it and start it again, the first time."""
        if not self.kills:
            self.kills += 1
            self.kill()
            self.start()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Standing]:
    standing = Standing(tmp_path)
    yield standing
    standing.kill()


def client_of(url: str, folder: Path) -> Client:
    token = (folder / "data" / "operator.token").read_text(encoding="utf-8").strip()
    return Client(url, token=token, patience=15)


def test_an_upload_resumes_after_the_server_was_killed(server: Standing, tmp_path: Path) -> None:
    url = server.start()
    told: list[int] = []

    def tell(done: int, _: int) -> None:
        told.append(done)
        if done >= 24 * MIB:
            server.kill_once()

    with client_of(url, tmp_path) as client:
        made = client.blobs.put(BIG, "big", progress=tell)
        assert (made.blob_id, server.kills) == (blake3(BIG).hexdigest(), 1)
        again = told[told.index(24 * MIB) + 1 :]
        assert again[0] >= 16 * MIB, "what was safe before the kill is not sent again"
        assert client.blobs.get("big") == BIG
        used = client.blobs.usage()
        assert (used.bytes, used.reserved_bytes) == (len(BIG), 0)


def test_a_download_resumes_after_the_server_was_killed(server: Standing, tmp_path: Path) -> None:
    url = server.start()
    told: list[int] = []

    def tell(done: int, _: int) -> None:
        told.append(done)
        if done >= MIB:
            server.kill_once()

    with client_of(url, tmp_path) as client:
        client.blobs.put(BIG, "big")
        client.blobs.get("big", tmp_path / "back", progress=tell)
    assert (server.kills, told) == (1, sorted(told)), "it goes on, and does not begin again"
    assert (tmp_path / "back").read_bytes() == BIG


def test_curl_uploads_and_resumes_downloads(server: Standing, tmp_path: Path) -> None:
    url = server.start()
    (tmp_path / "big").write_bytes(BIG)
    token = (tmp_path / "data" / "operator.token").read_text(encoding="utf-8").strip()

    def curl(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["curl", "-sS", *words], cwd=tmp_path, capture_output=True, timeout=45, check=False)

    own = ("-H", f"Authorization: Bearer {token}")
    assert curl("-f", *own, "-T", "big", f"{url}/api/v1/keys/big").returncode == 0
    (tmp_path / "back").write_bytes(BIG[: 10 * MIB])
    resumed = curl("-f", *own, "-C", "-", "-o", "back", "-w", "%{http_code} %{size_download}", f"{url}/api/v1/keys/big")
    assert resumed.stdout.decode() == f"206 {len(BIG) - 10 * MIB}"
    assert (tmp_path / "back").read_bytes() == BIG
    with client_of(url, tmp_path) as client:
        address = client.blobs.url("big").url
    (tmp_path / "back").write_bytes(BIG[: 10 * MIB])
    assert curl("-f", "-C", "-", "-o", "back", address).returncode == 0, "nor does it need a token"
    assert (tmp_path / "back").read_bytes() == BIG
