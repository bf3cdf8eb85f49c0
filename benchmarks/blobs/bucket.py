"""64 MiB in a bucket of SeaweedFS: with signed URLs, through the server, and with boto3 alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.blobs.client_process import ClientProcess, curl, started
from benchmarks.blobs.large_blobs import KEYS, StoredBlob, authorized, put, signed_url, write_random_file
from benchmarks.blobs.measurements import Measurements
from benchmarks.blobs.socket_client import TransferRequest
from benchmarks.queue.other_load import TICKS_PER_SECOND
from benchmarks.worker import ingot_server
from tests.s3 import ACCESS_KEY, REGION, SECRET_KEY, Server, client_of

BUCKET: Final = "bench"


@contextmanager
def seaweedfs(folder: Path, measurements: Measurements) -> Iterator[str]:
    """Run SeaweedFS with a bucket, and yield its URL. Its CPU time is recorded, since it is not our child process."""
    server = Server(folder)
    server.start()
    try:
        client_of(server.url).create_bucket(Bucket=BUCKET)
        yield server.url
    finally:
        measurements.servers_seconds += _cpu_seconds(server.pid)
        os.kill(server.pid, signal.SIGKILL)  # A normal stop takes half a minute.


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def settings(url: str) -> dict[str, str]:
    """Return the settings with which a server uses the bucket."""
    values = {"BUCKET": BUCKET, "ENDPOINT": url, "ACCESS_KEY": ACCESS_KEY, "SECRET_KEY": SECRET_KEY, "REGION": REGION}
    return {f"INGOT_S3_{name}": value for name, value in values.items()}


def compare(client: ClientProcess, folder: Path, measurements: Measurements, rounds: int) -> None:
    """Upload and download in each way, in turn."""
    path, store_folder = folder / "object", folder / "weed"
    store_folder.mkdir()
    write_random_file(path)
    with (
        seaweedfs(store_folder, measurements) as url,
        ingot_server.serving(folder, more=settings(url)) as server,
        started("direct_bucket_client") as direct_client,
    ):
        api, headers = f"{server.url}/api/v1", authorized(server)
        stored = msgspec.json.decode(put(client, server, "out", path).body, type=StoredBlob)
        signed = signed_url(client, server, stored.blob_id)
        direct_client.do(TransferRequest(what="put", url=url, path=str(path), to=f"{BUCKET}/direct/out"))
        for number in range(rounds):
            client.do(TransferRequest(what="stamp", path=str(path)))
            measurements.record_speed(
                "boto3 put",
                direct_client.do(TransferRequest(what="put", url=url, path=str(path), to=f"{BUCKET}/direct/{number}")),
            )
            measurements.record_speed(
                "signed put",
                direct_client.do(
                    TransferRequest(what="send", url=api, headers=headers, path=str(path), to=f"sent/{number}")
                ),
            )
            client.do(TransferRequest(what="stamp", path=str(path)))
            measurements.record_speed("server put", put(client, server, f"put/{number}", path))
            measurements.record_speed(
                "boto3 get", direct_client.do(TransferRequest(what="get", url=url, to=f"{BUCKET}/direct/out"))
            )
            measurements.record_speed("bucket get signed", client.do(TransferRequest(what="get", url=signed)))
            measurements.record_speed("bucket get key", curl(f"{server.url}{KEYS}/out", headers, more=("-L",)))
