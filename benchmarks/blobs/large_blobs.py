"""64 MiB out and in, in turns: beside nginx, and beside a copy with fsync."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.blobs import nginx
from benchmarks.blobs.client_process import ClientProcess, bare, curl
from benchmarks.blobs.measurements import Measurements
from benchmarks.blobs.socket_client import TransferRequest, TransferResult
from benchmarks.worker.ingot_server import IngotServer

BYTES: Final = 64 * 1024 * 1024
KEYS: Final = "/api/v1/keys"


class StoredBlob(msgspec.Struct):
    """What matters of a key."""

    blob_id: str
    size: int


class SignedBlobUrl(msgspec.Struct):
    """What matters of a signed address."""

    url: str


def authorized(site: IngotServer) -> dict[str, str]:
    """The headers of a request."""
    return {"authorization": f"Bearer {site.token}"}


def make(path: Path, size: int = BYTES) -> None:
    """A file of chance."""
    path.write_bytes(os.urandom(size))


def put(client: ClientProcess, site: IngotServer, key: str, path: Path, *, times: int = 1) -> TransferResult:
    """Send a file, so many times over, as one blob."""
    url = f"{site.url}{KEYS}/{key}"
    return client.do(TransferRequest(what="put", url=url, headers=authorized(site), path=str(path), times=times))


def get(client: ClientProcess, site: IngotServer, key: str) -> TransferResult:
    """Read a key."""
    return client.do(TransferRequest(what="get", url=f"{site.url}{KEYS}/{key}", headers=authorized(site)))


def signed_url(client: ClientProcess, site: IngotServer, blob_id: str) -> str:
    """Where a blob can be read without a credential."""
    asked = TransferRequest(what="ask", url=f"{site.url}/api/v1/blobs/{blob_id}/url", headers=authorized(site))
    return msgspec.json.decode(client.do(asked).body, type=SignedBlobUrl).url


def out(client: ClientProcess, site: IngotServer, folder: Path, found: Measurements, rounds: int) -> None:
    """Read a blob of ours, and the same file from nginx."""
    root, own = folder / "www", folder / "nginx"
    root.mkdir()
    own.mkdir()
    make(root / "blob")
    stored = msgspec.json.decode(put(client, site, "out", root / "blob").body, type=StoredBlob)
    signed = signed_url(client, site, stored.blob_id)
    with nginx.serving(own, root) as url:
        for _ in range(rounds):
            found.speed("get key", get(client, site, "out"))
            found.speed("get nginx", client.do(TransferRequest(what="get", url=f"{url}/blob")))
            found.speed("get signed", client.do(TransferRequest(what="get", url=signed)))
            found.speed("curl key", curl(f"{site.url}{KEYS}/out", authorized(site)))
            found.speed("curl nginx", curl(f"{url}/blob", {}))
            found.speed("curl signed", curl(signed, {}))


def into(client: ClientProcess, site: IngotServer, folder: Path, found: Measurements, rounds: int) -> None:
    """Send blobs that are new, beside copies of the same file, a bare intake, and their digests alone."""
    path = folder / "new"
    make(path)

    def fresh() -> None:
        client.do(TransferRequest(what="stamp", path=str(path)))

    with bare(folder / "bare") as url:
        for number in range(rounds):
            fresh()
            found.speed("put", put(client, site, f"in/{number}", path))
            found.speed("copy", client.do(TransferRequest(what="copy", path=str(path), to=str(folder / "copy"))))
            found.speed("bare", client.do(TransferRequest(what="put", url=f"{url}/", path=str(path))))
            fresh()
            found.speed("curl put", curl(f"{site.url}{KEYS}/curl/{number}", authorized(site), send=str(path)))
            found.speed("digests", client.do(TransferRequest(what="digests", path=str(path))))
