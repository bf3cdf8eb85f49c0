"""A server in a process of its own, which kills itself at a named point or runs until it is killed."""

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


class KillPoint(NamedTuple):
    """A call at which a process kills itself: before it, or after it returned.

    `find_owner` returns the class or module that has the method `name` under the settings of the process. With a
    `command`, only calls with that kind of command count; with `only_if_result`, only calls that return a true value.
    """

    find_owner: Callable[[Settings], Any]
    name: str
    command: type[Command[Any]] | None = None
    after: bool = True
    only_if_result: bool = False


def engine_class(settings: Settings) -> Any:
    """Return the class of the engine."""
    return SQLiteStore if settings.database_url is None else PostgresStore


def object_store_class(settings: Settings) -> Any:
    """Return the class of the object store."""
    return LocalStore if settings.s3_bucket is None else BucketStore


def object_writer_class(settings: Settings) -> Any:
    """Return the class that writes objects."""
    return LocalWriter if settings.s3_bucket is None else BucketWriter


def verification_module(_: Settings) -> Any:
    """Return the module that verifies uploads."""
    return verification


KILL_POINTS = {
    "after an upload began, before the response": KillPoint(engine_class, "run", BeginUpload),
    "in the middle of an object": KillPoint(object_writer_class, "write"),
    "after a part was synced, before the response": KillPoint(object_writer_class, "sync"),
    "after an object was finished, before its row": KillPoint(object_writer_class, "finish"),
    "after a blob was stored, before the response": KillPoint(engine_class, "run", FinishUpload),
    "after a small blob was stored, before the response": KillPoint(engine_class, "run", PutBlob),
    "after an upload was verified, before it is finished": KillPoint(verification_module, "check_announced"),
    "before a key is deleted": KillPoint(engine_class, "run", DeleteKey, after=False),
    "after a key was deleted, before the response": KillPoint(engine_class, "run", DeleteKey),
    "after an upload was canceled, before the response": KillPoint(engine_class, "run", EndUpload),
    "after uploads were swept, before blobs are collected": KillPoint(
        engine_class, "run", SweepUploads, only_if_result=True
    ),
    "after a blob was collected, before its object is deleted": KillPoint(
        engine_class, "run", CollectBlob, only_if_result=True
    ),
    "before an object is deleted": KillPoint(object_store_class, "delete", after=False),
    "after an object was deleted, before its row is removed": KillPoint(object_store_class, "delete"),
}
# Clients send their parts to the bucket, and the server does not sync any.
BUCKET_KILL_POINTS = [name for name in KILL_POINTS if name != "after a part was synced, before the response"]


class BlobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The task of one server process."""

    settings: Settings
    output: Path
    address: Path
    token: str
    point: str | None = None
    countdown: int = 1


def serve(plan: BlobPlan) -> None:
    """Run the process. Its output goes to a file, so that a test can print it."""
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
        point = KILL_POINTS[plan.point]
        _arm(point, point.find_owner(plan.settings), Trap(plan.countdown))
    async with services.open(settings=plan.settings) as ingot:
        # The settings do not allow such short times. The first round has not begun yet.
        ingot.garbage_collector.every_seconds, ingot.garbage_collector.grace_micros = (
            COLLECT_SECONDS,
            round(GRACE_SECONDS * MICROS),
        )
        await ingot.credentials.ensure_operator_token(plan.token)
        with listen("127.0.0.1", 0) as listening:
            new_file = plan.address.with_suffix(".new")
            new_file.write_text(url_of(listening), encoding="utf-8")
            new_file.rename(plan.address)
            await api_server.build_server(ingot, plan.settings).serve(sockets=[listening])


def _arm(point: KillPoint, owner: Any, trap: Trap) -> None:
    original: Callable[..., Any] = getattr(owner, point.name)

    def step(result: object) -> None:
        if result or not point.only_if_result:
            trap.step()

    async def call_with_trap(*args: Any, **options: Any) -> Any:
        if point.command is not None and not isinstance(args[1], point.command):
            return await original(*args, **options)
        if not point.after:
            trap.step()
        result = await original(*args, **options)
        if point.after:
            step(result)
        return result

    def call_with_trap_sync(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        step(result)
        return result

    setattr(owner, point.name, call_with_trap_sync if owner is verification else call_with_trap)
