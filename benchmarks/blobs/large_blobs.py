"""Downloads and uploads of 64 MiB, compared with nginx and with a copy with fsync."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.blobs import nginx
from benchmarks.blobs.client_process import ClientProcess, bare_put_server, curl
from benchmarks.blobs.measurements import Measurements
from benchmarks.blobs.socket_client import TransferRequest, TransferResult
from benchmarks.worker.ingot_server import IngotServer

BYTES: Final = 64 * 1024 * 1024
KEYS: Final = "/api/v1/keys"


class StoredBlob(msgspec.Struct):
    """The fields of a key that are used here."""

    blob_id: str
    size: int


class SignedBlobUrl(msgspec.Struct):
    """The field of a signed URL that is used here."""

    url: str


def authorized(server: IngotServer) -> dict[str, str]:
    """Return the headers that authenticate a request."""
    return {"authorization": f"Bearer {server.token}"}


def write_random_file(path: Path, size: int = BYTES) -> None:
    """Write a file with random bytes."""
    path.write_bytes(os.urandom(size))


def put(client: ClientProcess, server: IngotServer, key: str, path: Path, *, times: int = 1) -> TransferResult:
    """Upload a file, repeated `times` times, as one blob."""
    url = f"{server.url}{KEYS}/{key}"
    return client.do(TransferRequest(what="put", url=url, headers=authorized(server), path=str(path), times=times))


def get(client: ClientProcess, server: IngotServer, key: str) -> TransferResult:
    """Download a key."""
    return client.do(TransferRequest(what="get", url=f"{server.url}{KEYS}/{key}", headers=authorized(server)))


def signed_url(client: ClientProcess, server: IngotServer, blob_id: str) -> str:
    """Return a signed URL of a blob."""
    request = TransferRequest(what="call", url=f"{server.url}/api/v1/blobs/{blob_id}/url", headers=authorized(server))
    return msgspec.json.decode(client.do(request).body, type=SignedBlobUrl).url


def measure_downloads(
    client: ClientProcess, server: IngotServer, folder: Path, measurements: Measurements, rounds: int
) -> None:
    """Download a blob from Ingot and the same file from nginx, in turn."""
    root, nginx_folder = folder / "www", folder / "nginx"
    root.mkdir()
    nginx_folder.mkdir()
    write_random_file(root / "blob")
    stored = msgspec.json.decode(put(client, server, "out", root / "blob").body, type=StoredBlob)
    signed = signed_url(client, server, stored.blob_id)
    with nginx.serving(nginx_folder, root) as url:
        for _ in range(rounds):
            measurements.record_speed("get key", get(client, server, "out"))
            measurements.record_speed("get nginx", client.do(TransferRequest(what="get", url=f"{url}/blob")))
            measurements.record_speed("get signed", client.do(TransferRequest(what="get", url=signed)))
            measurements.record_speed("curl key", curl(f"{server.url}{KEYS}/out", authorized(server)))
            measurements.record_speed("curl nginx", curl(f"{url}/blob", {}))
            measurements.record_speed("curl signed", curl(signed, {}))


def measure_uploads(
    client: ClientProcess, server: IngotServer, folder: Path, measurements: Measurements, rounds: int
) -> None:
    """Upload new blobs, copy the same file, send it to a bare server, and compute its digests, in turn."""
    path = folder / "new"
    write_random_file(path)

    def change_content() -> None:
        client.do(TransferRequest(what="stamp", path=str(path)))

    with bare_put_server(folder / "bare") as url:
        for number in range(rounds):
            change_content()
            measurements.record_speed("put", put(client, server, f"in/{number}", path))
            measurements.record_speed(
                "copy", client.do(TransferRequest(what="copy", path=str(path), to=str(folder / "copy")))
            )
            measurements.record_speed("bare", client.do(TransferRequest(what="put", url=f"{url}/", path=str(path))))
            change_content()
            measurements.record_speed(
                "curl put", curl(f"{server.url}{KEYS}/curl/{number}", authorized(server), send=str(path))
            )
            measurements.record_speed("digests", client.do(TransferRequest(what="digests", path=str(path))))
