"""The process of a client that uses a bucket: with boto3 alone, or with URLs that Ingot signs."""

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
    """The field of an upload that is used here."""

    id: str


class DirectUploadPlan(msgspec.Struct):
    """The fields of an upload plan that are used here."""

    upload: UploadId
    url: str
    headers: dict[str, str]


def put(request: TransferRequest) -> TransferResult:
    """Upload an object with boto3 in one request. `to` is the bucket and the key."""
    client: Any = client_of(request.url)
    bucket, _, key = request.to.partition("/")
    began = time.perf_counter()
    with Path(request.path).open("rb") as file:
        client.put_object(Bucket=bucket, Key=key, Body=file)
    return TransferResult(seconds=time.perf_counter() - began, bytes=Path(request.path).stat().st_size)


def get(request: TransferRequest) -> TransferResult:
    """Download an object with boto3."""
    client: Any = client_of(request.url)
    bucket, _, key = request.to.partition("/")
    size = 0
    began = time.perf_counter()
    for chunk in client.get_object(Bucket=bucket, Key=key)["Body"].iter_chunks(READ_BYTES):
        size += len(chunk)
    return TransferResult(seconds=time.perf_counter() - began, bytes=size)


def send(request: TransferRequest) -> TransferResult:
    """Begin an upload of the key `to`, send the bytes to its signed URL, and complete it."""
    began = time.perf_counter()
    with Path(request.path).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size = Path(request.path).stat().st_size
    body = msgspec.json.encode({"key": request.to, "size": size, "sha256": sha256}).decode()
    headers = {**request.headers, "content-type": "application/json"}
    response = socket_client.call(
        TransferRequest(what="call", url=f"{request.url}/blobs/uploads", headers=headers, body=body)
    )
    plan = msgspec.json.decode(response.body, type=DirectUploadPlan)
    upload_headers = {name: value for name, value in plan.headers.items() if name.lower() != "content-length"}
    socket_client.put(TransferRequest(what="put", url=plan.url, headers=upload_headers, path=request.path))
    socket_client.call(
        TransferRequest(
            what="call", url=f"{request.url}/blobs/uploads/{plan.upload.id}/complete", headers=headers, body="{}"
        )
    )
    return TransferResult(seconds=time.perf_counter() - began, bytes=size)


OPERATIONS: Final = {"put": put, "get": get, "send": send}

if __name__ == "__main__":
    socket_client.serve(OPERATIONS)
