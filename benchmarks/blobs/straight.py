"""The process that has its blobs in a bucket: through boto3 alone, or at addresses that Ingot signs."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.blobs import wire
from benchmarks.blobs.wire import READ_BYTES, Order, Took
from tests.s3 import client_of


class Id(msgspec.Struct):
    """What matters of an upload."""

    id: str


class Plan(msgspec.Struct):
    """What matters of how an upload is sent."""

    upload: Id
    url: str
    headers: dict[str, str]


def put(order: Order) -> Took:
    """Put an object with boto3, in one request: `to` is bucket and key."""
    client: Any = client_of(order.url)
    bucket, _, key = order.to.partition("/")
    began = time.perf_counter()
    with Path(order.path).open("rb") as file:
        client.put_object(Bucket=bucket, Key=key, Body=file)
    return Took(seconds=time.perf_counter() - began, bytes=Path(order.path).stat().st_size)


def get(order: Order) -> Took:
    """Read an object with boto3."""
    client: Any = client_of(order.url)
    bucket, _, key = order.to.partition("/")
    size = 0
    began = time.perf_counter()
    for chunk in client.get_object(Bucket=bucket, Key=key)["Body"].iter_chunks(READ_BYTES):
        size += len(chunk)
    return Took(seconds=time.perf_counter() - began, bytes=size)


def send(order: Order) -> Took:
    """Begin an upload of the key `to`, send it to the address that is answered, and complete it."""
    began = time.perf_counter()
    with Path(order.path).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size = Path(order.path).stat().st_size
    body = msgspec.json.encode({"key": order.to, "size": size, "sha256": sha256}).decode()
    headers = {**order.headers, "content-type": "application/json"}
    asked = wire.ask(Order(what="ask", url=f"{order.url}/blobs/uploads", headers=headers, body=body))
    plan = msgspec.json.decode(asked.body, type=Plan)
    given = {name: value for name, value in plan.headers.items() if name.lower() != "content-length"}
    wire.put(Order(what="put", url=plan.url, headers=given, path=order.path))
    wire.ask(Order(what="ask", url=f"{order.url}/blobs/uploads/{plan.upload.id}/complete", headers=headers, body="{}"))
    return Took(seconds=time.perf_counter() - began, bytes=size)


WAYS: Final = {"put": put, "get": get, "send": send}

if __name__ == "__main__":
    wire.serve(WAYS)
