"""A real S3 server for the tests: SeaweedFS, one for a test run, a bucket for each worker, a folder for each test."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import boto3
import botocore.config
import botocore.exceptions
import httpx

from ingot.blobs.ports import ObjectPart
from ingot.kernel.clock import SystemClock
from ingot.kernel.ids import new_id
from ingot.objects.s3 import SINGLE_PUT_BYTES_MAX, BucketStore
from tests.components import COMPONENTS, expect_marker
from tests.processes import end, keep
from tests.time_report import note_program
from tests.waiting import SECONDS_MAX

FOLDER_VARIABLE: Final = "INGOT_TEST_S3_FOLDER"
ACCESS_KEY: Final = "tests"
SECRET_KEY: Final = "the-secret-of-the-tests"
REGION: Final = "us-east-1"
START_SECONDS: Final = 60
TRY_SECONDS: Final = 10.0  # For one request of those that are repeated until the server is ready.
TRIES_MAX: Final = 3
PORTS: Final = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)
OPTIONS: Final = (
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-s3",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-master.telemetry=false",
    "-master.volumeSizeLimitMB=256",
    "-volume.max=200",
)


def program() -> Path:
    """SeaweedFS. Raises with a sentence that says how to get it."""
    expect_marker("s3")
    beside = Path(sys.executable).with_name("weed")
    found = beside if beside.exists() else shutil.which("weed")
    assert found, COMPONENTS["s3"].sentence
    return Path(found)


class Server:
    """A server of our own in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pid = 0
        self.url = ""

    def start(self) -> None:
        """Start it, and wait until it takes objects."""
        who = {"name": "tests", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]}
        settings = self._folder / "s3.json"
        settings.write_text(json.dumps({"identities": [who | {"actions": ["Admin", "Read", "Write", "List"]}]}))
        (self._folder / "data").mkdir(exist_ok=True)
        for _ in range(TRIES_MAX):  # Somebody else may take a port that was free.
            if self._try_start(settings):
                return
        raise AssertionError(f"SeaweedFS does not start: {(self._folder / 'log').read_text()[-500:]}")

    def _try_start(self, settings: Path) -> bool:
        ports = _free_ports(len(PORTS))
        self.url = f"http://127.0.0.1:{ports[PORTS.index('s3.port')]}"
        given = [f"-{name}={port}" for name, port in zip(PORTS, ports, strict=True)]
        given += [f"-{name}.localSocket={self._folder / name}.sock" for name in ("filer", "s3")]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._folder), "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [str(program()), "server", f"-dir={self._folder / 'data'}", f"-s3.config={settings}", *OPTIONS, *given],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.pid = process.pid
        is_ready = False
        try:
            is_ready = self._becomes_ready(process)
        finally:
            if not is_ready:
                end(process)
        if is_ready:
            process.returncode = 0  # It lives longer than this process may, and is nobody's child then.
        return is_ready

    def _becomes_ready(self, process: subprocess.Popen[str]) -> bool:
        """Wait until it stores an object. Return `False` when it has ended, or takes too long."""
        client = client_of(self.url, seconds=TRY_SECONDS)
        until = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            with suppress(botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
                client.create_bucket(Bucket="ready")
                client.put_object(Bucket="ready", Key="ready", Body=b"1")
                return True
            time.sleep(0.1)
        return False


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@cache
def client_of(
    url: str, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY, *, seconds: float = SECONDS_MAX
) -> Any:
    """Somebody else's client for the same server."""
    return boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name=REGION,
        config=botocore.config.Config(connect_timeout=seconds, read_timeout=seconds, retries={"total_max_attempts": 1}),
    )


@contextmanager
def shared_bucket_server() -> Iterator[None]:
    """Around a test run: the folder in which its workers find their server, which is stopped at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ingot-s3-", dir="/var/tmp"))
    os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(FOLDER_VARIABLE, None)
        if (folder / "pid").exists():
            pid = int((folder / "pid").read_text())
            note_program(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # It takes half a minute to stop by itself.
        shutil.rmtree(folder, ignore_errors=True)


def server_url() -> str:
    """The server of this test run, started by the first worker that asks."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = folder / "url"
        if not known.exists():
            server = Server(folder)
            server.start()
            keep(server.pid)
            (folder / "pid").write_text(str(server.pid))
            known.write_text(server.url)
        return known.read_text()


@cache
def bucket() -> str:
    """The bucket of this worker."""
    name = f"ingot-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{os.getpid()}"
    client_of(server_url()).create_bucket(Bucket=name)
    return name


def prefix_of(store: BucketStore) -> str:
    """The folder of a store in the bucket, with a slash behind it."""
    return store.store_id.removeprefix(f"s3://{bucket()}/")


def key_of(store: BucketStore, place: str) -> str:
    """The key of an object, as other clients see it."""
    return f"{prefix_of(store)}blobs/{place[:2]}/{place}"


async def begin_parts(store: BucketStore, place: str, *parts: bytes) -> tuple[str, list[ObjectPart]]:
    """Begin an object in parts, send these, and return the id of the multipart upload and the parts."""
    plan = await store.plan(place, size=SINGLE_PUT_BYTES_MAX + 1, sha256=None)
    assert plan.multipart is not None
    sent = [
        ObjectPart(number=number, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for number, data in enumerate(parts, start=1)
    ]
    async with httpx.AsyncClient(timeout=30, verify=False) as client:
        for signed, data in zip(await store.sign_parts(place, plan.multipart, sent), parts, strict=True):
            (await client.put(signed.url, headers=signed.headers, content=data)).raise_for_status()
    return plan.multipart, sent


@asynccontextmanager
async def open_bucket(**other: Any) -> AsyncIterator[BucketStore]:
    """A store in a folder of its own."""
    given: dict[str, Any] = {
        "bucket": bucket(),
        "endpoint": server_url(),
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
        "region": REGION,
        "prefix": f"{new_id()}/",
        "clock": SystemClock(),
    }
    store = await BucketStore.open(**(given | other))
    try:
        yield store
    finally:
        await store.close()
