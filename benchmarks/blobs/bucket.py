"""64 MiB in a bucket of SeaweedFS: at addresses that we sign, through the server, and through boto3 alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.blobs.client_process import ClientProcess, curl, started
from benchmarks.blobs.large_blobs import KEYS, StoredBlob, authorized, make, put, signed_url
from benchmarks.blobs.measurements import Measurements
from benchmarks.blobs.socket_client import TransferRequest
from benchmarks.queue.other_load import TICKS_PER_SECOND
from benchmarks.worker import ingot_server
from tests.s3 import ACCESS_KEY, REGION, SECRET_KEY, Server, client_of

BUCKET: Final = "bench"


@contextmanager
def weed(folder: Path, found: Measurements) -> Iterator[str]:
    """A SeaweedFS with a bucket; its address. It is no child that is waited for, so what it used is noted."""
    server = Server(folder)
    server.start()
    try:
        client_of(server.url).create_bucket(Bucket=BUCKET)
        yield server.url
    finally:
        found.servers_seconds += _cpu_seconds(server.pid)
        os.kill(server.pid, signal.SIGKILL)  # It takes half a minute to stop by itself.


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def settings(url: str) -> dict[str, str]:
    """What the server has to know of the bucket."""
    known = {"BUCKET": BUCKET, "ENDPOINT": url, "ACCESS_KEY": ACCESS_KEY, "SECRET_KEY": SECRET_KEY, "REGION": REGION}
    return {f"INGOT_S3_{name}": value for name, value in known.items()}


def compare(client: ClientProcess, folder: Path, found: Measurements, rounds: int) -> None:
    """In and out, in turns."""
    path, own = folder / "object", folder / "weed"
    own.mkdir()
    make(path)
    with (
        weed(own, found) as url,
        ingot_server.serving(folder, more=settings(url)) as running,
        started("direct_bucket_client") as straight,
    ):
        api, headers = f"{running.url}/api/v1", authorized(running)
        stored = msgspec.json.decode(put(client, running, "out", path).body, type=StoredBlob)
        signed = signed_url(client, running, stored.blob_id)
        straight.do(TransferRequest(what="put", url=url, path=str(path), to=f"{BUCKET}/straight/out"))
        for number in range(rounds):
            client.do(TransferRequest(what="stamp", path=str(path)))
            found.speed(
                "boto3 put",
                straight.do(TransferRequest(what="put", url=url, path=str(path), to=f"{BUCKET}/straight/{number}")),
            )
            found.speed(
                "signed put",
                straight.do(
                    TransferRequest(what="send", url=api, headers=headers, path=str(path), to=f"sent/{number}")
                ),
            )
            client.do(TransferRequest(what="stamp", path=str(path)))
            found.speed("server put", put(client, running, f"put/{number}", path))
            found.speed("boto3 get", straight.do(TransferRequest(what="get", url=url, to=f"{BUCKET}/straight/out")))
            found.speed("bucket get signed", client.do(TransferRequest(what="get", url=signed)))
            found.speed("bucket get key", curl(f"{running.url}{KEYS}/out", headers, more=("-L",)))
