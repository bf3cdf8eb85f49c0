"""The process that has its blobs in a bucket: through boto3 alone, or at addresses that Ingot signs."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.blobs import socket_client
from benchmarks.blobs.socket_client import READ_BYTES, TransferRequest, TransferResult
from tests.s3 import client_of


class UploadId(msgspec.Struct):
    """What matters of an upload."""

    id: str


class DirectUploadPlan(msgspec.Struct):
    """What matters of how an upload is sent."""

    upload: UploadId
    url: str
    headers: dict[str, str]


def put(order: TransferRequest) -> TransferResult:
    """Put an object with boto3, in one request: `to` is bucket and key."""
    client: Any = client_of(order.url)
    bucket, _, key = order.to.partition("/")
    began = time.perf_counter()
    with Path(order.path).open("rb") as file:
        client.put_object(Bucket=bucket, Key=key, Body=file)
    return TransferResult(seconds=time.perf_counter() - began, bytes=Path(order.path).stat().st_size)


def get(order: TransferRequest) -> TransferResult:
    """Read an object with boto3."""
    client: Any = client_of(order.url)
    bucket, _, key = order.to.partition("/")
    size = 0
    began = time.perf_counter()
    for chunk in client.get_object(Bucket=bucket, Key=key)["Body"].iter_chunks(READ_BYTES):
        size += len(chunk)
    return TransferResult(seconds=time.perf_counter() - began, bytes=size)


def send(order: TransferRequest) -> TransferResult:
    """Begin an upload of the key `to`, send it to the address that is answered, and complete it."""
    began = time.perf_counter()
    with Path(order.path).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size = Path(order.path).stat().st_size
    body = msgspec.json.encode({"key": order.to, "size": size, "sha256": sha256}).decode()
    headers = {**order.headers, "content-type": "application/json"}
    asked = socket_client.ask(TransferRequest(what="ask", url=f"{order.url}/blobs/uploads", headers=headers, body=body))
    plan = msgspec.json.decode(asked.body, type=DirectUploadPlan)
    given = {name: value for name, value in plan.headers.items() if name.lower() != "content-length"}
    socket_client.put(TransferRequest(what="put", url=plan.url, headers=given, path=order.path))
    socket_client.ask(
        TransferRequest(
            what="ask", url=f"{order.url}/blobs/uploads/{plan.upload.id}/complete", headers=headers, body="{}"
        )
    )
    return TransferResult(seconds=time.perf_counter() - began, bytes=size)


WAYS: Final = {"put": put, "get": get, "send": send}

if __name__ == "__main__":
    socket_client.serve(WAYS)
