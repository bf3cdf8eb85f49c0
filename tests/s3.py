"""A real S3 server for the tests: SeaweedFS, one per run, with a bucket per test process and a prefix per test."""

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
from tests.time_report import record_program
from tests.waiting import SECONDS_MAX

FOLDER_VARIABLE: Final = "INGOT_TEST_S3_FOLDER"
ACCESS_KEY: Final = "tests"
SECRET_KEY: Final = "the-secret-of-the-tests"
REGION: Final = "us-east-1"
START_SECONDS: Final = 60
TRY_SECONDS: Final = 10.0  # For one of the requests that are repeated until the server is ready.
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
    """Return the path of SeaweedFS. Raises an error that explains how to install it."""
    expect_marker("s3")
    local_path = Path(sys.executable).with_name("weed")
    path = local_path if local_path.exists() else shutil.which("weed")
    assert path, COMPONENTS["s3"].sentence
    return Path(path)


class Server:
    """A server in its own folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pid = 0
        self.url = ""

    def start(self) -> None:
        """Start the server, and wait until it stores objects."""
        identity = {"name": "tests", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]}
        settings = self._folder / "s3.json"
        settings.write_text(json.dumps({"identities": [identity | {"actions": ["Admin", "Read", "Write", "List"]}]}))
        (self._folder / "data").mkdir(exist_ok=True)
        for _ in range(TRIES_MAX):  # Another program may take a port that was free.
            if self._try_start(settings):
                return
        raise AssertionError(f"SeaweedFS does not start: {(self._folder / 'log').read_text()[-500:]}")

    def _try_start(self, settings: Path) -> bool:
        ports = _free_ports(len(PORTS))
        self.url = f"http://127.0.0.1:{ports[PORTS.index('s3.port')]}"
        options = [f"-{name}={port}" for name, port in zip(PORTS, ports, strict=True)]
        options += [f"-{name}.localSocket={self._folder / name}.sock" for name in ("filer", "s3")]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._folder), "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(program()),
                    "server",
                    f"-dir={self._folder / 'data'}",
                    f"-s3.config={settings}",
                    *OPTIONS,
                    *options,
                ],
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
            process.returncode = 0  # It may outlive this process, so that Popen must not wait for it.
        return is_ready

    def _becomes_ready(self, process: subprocess.Popen[str]) -> bool:
        """Wait until the server stores an object. Return `False` if it ends or takes too long."""
        client = client_of(self.url, seconds=TRY_SECONDS)
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
                client.create_bucket(Bucket="ready")
                client.put_object(Bucket="ready", Key="ready", Body=b"1")
                return True
            time.sleep(0.1)
        return False


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]


@cache
def client_of(
    url: str, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY, *, seconds: float = SECONDS_MAX
) -> Any:
    """Return an independent client for the server."""
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
    """Provide the folder in which test processes find the server, and stop the server at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ingot-s3-", dir="/var/tmp"))
    os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(FOLDER_VARIABLE, None)
        if (folder / "pid").exists():
            pid = int((folder / "pid").read_text())
            record_program(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # A regular stop takes half a minute.
        shutil.rmtree(folder, ignore_errors=True)


def server_url() -> str:
    """Return the URL of the server, which the first caller of a run starts."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        url_file = folder / "url"
        if not url_file.exists():
            server = Server(folder)
            server.start()
            keep(server.pid)
            (folder / "pid").write_text(str(server.pid))
            url_file.write_text(server.url)
        return url_file.read_text()


@cache
def bucket() -> str:
    """Return the bucket of this test process."""
    name = f"ingot-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{os.getpid()}"
    client_of(server_url()).create_bucket(Bucket=name)
    return name


def prefix_of(store: BucketStore) -> str:
    """Return the prefix of a store in the bucket, with a slash at the end."""
    return store.store_id.removeprefix(f"s3://{bucket()}/")


def key_of(store: BucketStore, storage_key: str) -> str:
    """Return the key of an object in the bucket."""
    return f"{prefix_of(store)}blobs/{storage_key[:2]}/{storage_key}"


async def begin_parts(store: BucketStore, storage_key: str, *parts: bytes) -> tuple[str, list[ObjectPart]]:
    """Begin a multipart upload and send parts. Return the ID of the multipart upload and the parts."""
    plan = await store.plan(storage_key, size=SINGLE_PUT_BYTES_MAX + 1, sha256=None)
    assert plan.multipart is not None
    parts_sent = [
        ObjectPart(number=number, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for number, data in enumerate(parts, start=1)
    ]
    async with httpx.AsyncClient(timeout=30, verify=False) as client:
        for signed, data in zip(await store.sign_parts(storage_key, plan.multipart, parts_sent), parts, strict=True):
            (await client.put(signed.url, headers=signed.headers, content=data)).raise_for_status()
    return plan.multipart, parts_sent


@asynccontextmanager
async def open_bucket(**other: Any) -> AsyncIterator[BucketStore]:
    """Open a store with its own prefix."""
    options: dict[str, Any] = {
        "bucket": bucket(),
        "endpoint": server_url(),
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
        "region": REGION,
        "prefix": f"{new_id()}/",
        "clock": SystemClock(),
    }
    store = await BucketStore.open(**(options | other))
    try:
        yield store
    finally:
        await store.close()
