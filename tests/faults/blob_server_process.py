"""A server in a process of its own, that dies at a named point, or lives until it is killed."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvloop

from ingot.blobs import verification
from ingot.blobs.ports import BeginUpload, CollectBlob, DeleteKey, EndUpload, FinishUpload, PutBlob, SweepUploads
from ingot.engines.postgres import PostgresStore
from ingot.engines.sqlite import SQLiteStore
from ingot.http.server import listen, url_of
from ingot.kernel.clock import MICROS
from ingot.kernel.commands import Command
from ingot.objects.local import LocalStore
from ingot.objects.local_writer import LocalWriter
from ingot.objects.s3 import BucketStore
from ingot.objects.s3_writer import BucketWriter
from ingot.settings import Settings
from ingot.wiring import api_server, services
from tests.faults.kill_points import Trap

COLLECT_SECONDS = 0.05
GRACE_SECONDS = 0.2


class Point(NamedTuple):
    """Where a process dies: before or after a call, of those that answer something when that is asked for.

    The owner is what has that part with the settings of the process; of a call with a command, those of one kind count.
    """

    owner: Callable[[Settings], Any]
    name: str
    command: type[Command[Any]] | None = None
    after: bool = True
    answers: bool = False


def engine(settings: Settings) -> Any:
    """What keeps rows."""
    return SQLiteStore if settings.database_url is None else PostgresStore


def objects(settings: Settings) -> Any:
    """What keeps bytes."""
    return LocalStore if settings.s3_bucket is None else BucketStore


def writer(settings: Settings) -> Any:
    """What writes them."""
    return LocalWriter if settings.s3_bucket is None else BucketWriter


def reading(_: Settings) -> Any:
    """What reads them back."""
    return verification


POINTS = {
    "when an upload has begun, before the answer": Point(engine, "run", BeginUpload),
    "in the middle of an object": Point(writer, "write"),
    "when a part is safe, before it is told": Point(writer, "sync"),
    "when an object is whole, before the row": Point(writer, "finish"),
    "when a blob is stored, before the answer": Point(engine, "run", FinishUpload),
    "when a small blob is stored, before the answer": Point(engine, "run", PutBlob),
    "when bytes were read back, before the end": Point(reading, "check_announced"),
    "before a key is deleted": Point(engine, "run", DeleteKey, after=False),
    "when a key is deleted, before the answer": Point(engine, "run", DeleteKey),
    "when an upload is given up, before the answer": Point(engine, "run", EndUpload),
    "when uploads are swept, before blobs are": Point(engine, "run", SweepUploads, answers=True),
    "when a blob is taken away, before its object": Point(engine, "run", CollectBlob, answers=True),
    "before an object is deleted": Point(objects, "delete", after=False),
    "when an object is deleted, before it is forgotten": Point(objects, "delete"),
}
# Clients send to a bucket by themselves.
POINTS_OF_BUCKETS = [name for name in POINTS if name != "when a part is safe, before it is told"]


class BlobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one server is to do."""

    settings: Settings
    output: Path
    address: Path
    token: str
    point: str | None = None
    countdown: int = 1


def serve(plan: BlobPlan) -> None:
    """The life of the process. What it has to say goes to a file, so that a test can show it."""
    output = os.open(plan.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        uvloop.run(_serve(plan))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


async def _serve(plan: BlobPlan) -> None:
    if plan.point is not None:
        point = POINTS[plan.point]
        _arm(point, point.owner(plan.settings), Trap(plan.countdown))
    async with services.open(settings=plan.settings) as ingot:
        # Sooner than any settings allow. Its first round has not begun.
        ingot.garbage_collector.every_seconds, ingot.garbage_collector.grace_micros = (
            COLLECT_SECONDS,
            round(GRACE_SECONDS * MICROS),
        )
        await ingot.credentials.ensure_operator_token(plan.token)
        with listen("127.0.0.1", 0) as listening:
            fresh = plan.address.with_suffix(".new")
            fresh.write_text(url_of(listening), encoding="utf-8")
            fresh.rename(plan.address)
            await api_server.build_server(ingot, plan.settings).serve(sockets=[listening])


def _arm(point: Point, owner: Any, trap: Trap) -> None:
    original: Callable[..., Any] = getattr(owner, point.name)

    def step(answer: object) -> None:
        if answer or not point.answers:
            trap.step()

    async def deadly(*args: Any, **options: Any) -> Any:
        if point.command is not None and not isinstance(args[1], point.command):
            return await original(*args, **options)
        if not point.after:
            trap.step()
        answer = await original(*args, **options)
        if point.after:
            step(answer)
        return answer

    def at_once(*args: Any, **options: Any) -> Any:
        answer = original(*args, **options)
        step(answer)
        return answer

    setattr(owner, point.name, at_once if owner is verification else deadly)
