"""Uploads and downloads while the server is killed, and transfers with curl."""

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


class RestartableServer:
    """A server on a fixed port that can be killed and restarted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free_port:
            free_port.bind(("127.0.0.1", 0))
            self._port = free_port.getsockname()[1]
        self._running: AbstractContextManager[object] | None = None
        self.kills = 0

    def start(self) -> str:
        """Start the server, wait until it accepts requests, and return its URL."""
        self._running = served(self._folder / "data", "--port", str(self._port))
        _, url = self._running.__enter__()
        return url

    def kill(self) -> None:
        """Kill the server."""
        if self._running is not None:
            self._running.__exit__(None, None, None)
        self._running = None

    def kill_once(self) -> None:
        """Kill and restart the server at the first call."""
        if not self.kills:
            self.kills += 1
            self.kill()
            self.start()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestartableServer]:
    restartable = RestartableServer(tmp_path)
    yield restartable
    restartable.kill()


def client_of(url: str, folder: Path) -> Client:
    token = (folder / "data" / "operator.token").read_text(encoding="utf-8").strip()
    return Client(url, token=token, patience=15)


def test_an_upload_resumes_after_the_server_was_killed(server: RestartableServer, tmp_path: Path) -> None:
    url = server.start()
    progress: list[int] = []

    def on_progress(done: int, _: int) -> None:
        progress.append(done)
        if done >= 24 * MIB:
            server.kill_once()

    with client_of(url, tmp_path) as client:
        key = client.blobs.put(BIG, "big", progress=on_progress)
        assert (key.blob_id, server.kills) == (blake3(BIG).hexdigest(), 1)
        after_kill = progress[progress.index(24 * MIB) + 1 :]
        assert after_kill[0] >= 16 * MIB, "synced bytes were sent again"
        assert client.blobs.get("big") == BIG
        usage = client.blobs.usage()
        assert (usage.bytes, usage.reserved_bytes) == (len(BIG), 0)


def test_a_download_resumes_after_the_server_was_killed(server: RestartableServer, tmp_path: Path) -> None:
    url = server.start()
    progress: list[int] = []

    def on_progress(done: int, _: int) -> None:
        progress.append(done)
        if done >= MIB:
            server.kill_once()

    with client_of(url, tmp_path) as client:
        client.blobs.put(BIG, "big")
        client.blobs.get("big", tmp_path / "back", progress=on_progress)
    assert (server.kills, progress) == (1, sorted(progress)), "the download began again"
    assert (tmp_path / "back").read_bytes() == BIG


def test_curl_uploads_and_resumes_downloads(server: RestartableServer, tmp_path: Path) -> None:
    url = server.start()
    (tmp_path / "big").write_bytes(BIG)
    token = (tmp_path / "data" / "operator.token").read_text(encoding="utf-8").strip()

    def curl(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["curl", "-sS", *arguments], cwd=tmp_path, capture_output=True, timeout=45, check=False)

    authorization = ("-H", f"Authorization: Bearer {token}")
    assert curl("-f", *authorization, "-T", "big", f"{url}/api/v1/keys/big").returncode == 0
    (tmp_path / "back").write_bytes(BIG[: 10 * MIB])
    resumed = curl(
        "-f", *authorization, "-C", "-", "-o", "back", "-w", "%{http_code} %{size_download}", f"{url}/api/v1/keys/big"
    )
    assert resumed.stdout.decode() == f"206 {len(BIG) - 10 * MIB}"
    assert (tmp_path / "back").read_bytes() == BIG
    with client_of(url, tmp_path) as client:
        url_without_token = client.blobs.url("big").url
    (tmp_path / "back").write_bytes(BIG[: 10 * MIB])
    assert curl("-f", "-C", "-", "-o", "back", url_without_token).returncode == 0, "the signed URL needs a token"
    assert (tmp_path / "back").read_bytes() == BIG
