"""Failures that the store survives: unexpected errors, logs that cannot be written, canceled callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
import structlog
from structlog.testing import capture_logs

from ingot.engines.sqlite import SQLiteStore
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.writer_state import FENCES_PER_EPOCH
from ingot.identity import Tenants
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import IngotError, OutcomeUnknown, StoreError, StoreLocked
from tests.engines.sqlite.commit_gate import CommitGate
from tests.factories import LEASE_SECONDS, Bench, open_bench
from tests.waiting import SECONDS_MAX


def _raise_error(name: str) -> None:
    raise ValueError(name)


@contextmanager
def failing(bench: Bench, *statements: str) -> Iterator[None]:
    """Make these statements of the writer fail with an error that is not from SQLite."""

    def trace(_cursor: object, sql: str, _values: object) -> bool:
        if sql in statements:
            _raise_error(sql)
        return True

    bench.sqlite.connection.exec_trace = trace
    try:
        yield
    finally:
        bench.sqlite.connection.exec_trace = None


async def test_the_writer_survives_a_failed_recovery_of_its_state(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path / "data") as bench:
        with capture_logs() as logs, failing(bench, "COMMIT", SQL.live_lanes), pytest.raises(IngotError):
            await bench.make_job()
        assert "recovery_failed" in {line["event"] for line in logs}
        assert (await bench.make_job()).id


async def test_the_writer_survives_an_unhandled_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = asyncio.BaseEventLoop.call_soon_threadsafe

    def fail_once(loop: asyncio.BaseEventLoop, *args: Any, **options: Any) -> asyncio.Handle:
        if threading.current_thread().name == "ingot-writer":
            monkeypatch.undo()
            _raise_error("delivery")
        return deliver(loop, *args, **options)

    async with open_bench("sqlite", tmp_path / "data") as bench:
        monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", fail_once)
        with capture_logs() as logs, pytest.raises(OutcomeUnknown):
            await bench.make_job()
        assert [line["event"] for line in logs] == ["writer_failed"]
        assert (await bench.make_job()).id


async def test_the_writer_survives_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    def broken_pipe(*_: object) -> str:
        raise BrokenPipeError

    async with open_bench("sqlite", tmp_path / "data") as bench:
        before = structlog.get_config()["processors"]
        structlog.configure(processors=[broken_pipe])
        try:
            with failing(bench, "COMMIT"), pytest.raises(IngotError):
                await bench.make_job()
            assert (await bench.make_job()).id
        finally:
            structlog.configure(processors=before)


async def test_a_failing_listener_does_not_stop_other_listeners(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path / "data") as bench:
        counts: list[int] = []
        bench.store.on_ready(lambda *_: _raise_error("listener"))
        bench.store.on_ready(lambda _tenant, _type, count: counts.append(count))
        await bench.make_job()
        assert counts == [1]


async def test_a_canceled_close_still_releases_the_folder(tmp_path: Path) -> None:
    folder, clock = tmp_path / "data", ManualClock()
    store = await SQLiteStore.open(folder, clock=clock, lease_seconds=LEASE_SECONDS)
    bench = Bench(store, clock, await Tenants(store).ensure_default())
    gate = CommitGate(bench)
    running = asyncio.create_task(bench.make_job())
    await gate.reached()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(StoreLocked):
        await SQLiteStore.open(folder, clock=clock, lease_seconds=LEASE_SECONDS)
    gate.open()
    await store.close()
    assert (await running).id
    again = await SQLiteStore.open(folder, clock=ManualClock(), lease_seconds=LEASE_SECONDS)
    await again.close()


async def test_a_canceled_open_releases_the_folder(tmp_path: Path) -> None:
    folder, opened, gate = tmp_path / "data", threading.Event(), threading.Event()

    def slow_open(_: apsw.Connection) -> None:
        opened.set()
        assert gate.wait(SECONDS_MAX)

    apsw.connection_hooks.append(slow_open)
    try:
        opening = asyncio.create_task(SQLiteStore.open(folder, clock=ManualClock(), lease_seconds=LEASE_SECONDS))
        assert await asyncio.to_thread(opened.wait, SECONDS_MAX)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        with pytest.raises(StoreLocked):
            await SQLiteStore.open(folder, clock=ManualClock(), lease_seconds=LEASE_SECONDS)
        gate.set()
        async with asyncio.timeout(SECONDS_MAX):
            again = await _open_when_free(folder)
    finally:
        apsw.connection_hooks.remove(slow_open)
    await again.close()


async def _open_when_free(folder: Path) -> SQLiteStore:
    while True:
        with suppress(StoreLocked):
            return await SQLiteStore.open(folder, clock=ManualClock(), lease_seconds=LEASE_SECONDS)


async def test_a_fence_that_overflows_its_epoch_stays_highest_after_a_failed_transaction(tmp_path: Path) -> None:
    folder, clock = tmp_path / "data", ManualClock()
    async with open_bench("sqlite", folder, clock) as bench:
        first = bench.sqlite.writer_state
        first.fence = (first.epoch + 1) * FENCES_PER_EPOCH - 1
        await bench.make_job()
        with failing(bench, "COMMIT"), pytest.raises(IngotError):
            await bench.jobs.claim("worker", ["noop"])
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        highest = claim.fence
        await bench.jobs.release(claim)
    async with open_bench("sqlite", folder, clock) as bench:
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        assert claim.fence > highest


def test_a_call_from_another_event_loop_is_refused(tmp_path: Path) -> None:
    async def scenario() -> dict[str, int]:
        async with open_bench("sqlite", tmp_path / "data") as bench:
            await asyncio.to_thread(asyncio.run, use_in_another_loop(bench))
            summary = await bench.jobs.summary(bench.tenant)
            return {status.value: count for status, count in summary.counts.items() if count}

    async def use_in_another_loop(bench: Bench) -> None:
        with pytest.raises(StoreError, match="another event loop"):
            await bench.jobs.enqueue_many([new_job(bench.tenant, "noop")])

    assert asyncio.run(scenario()) == {}
