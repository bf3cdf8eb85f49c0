"""What must not bring the store down: errors nobody thought of, logs that cannot be written, callers that go away."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import structlog

from ingot.engines.sqlite import SQLiteStore
from ingot.engines.sqlite.memory import FENCES_PER_EPOCH, Memory
from ingot.engines.sqlite.opening import Opened, open_folder
from ingot.engines.sqlite.transaction import Transaction
from ingot.engines.sqlite.writer import Writer
from ingot.jobs.orders import new_job
from ingot.kernel.clock import Clock, ManualClock
from ingot.kernel.errors import IngotError, StoreError
from tests.factories import LEASE_SECONDS, Bench, open_bench


def _break(name: str) -> None:
    raise ValueError(name)


async def test_the_writer_lives_on_when_its_memory_cannot_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench("sqlite", tmp_path / "data") as bench:
        with monkeypatch.context() as patched:
            patched.setattr(Transaction, "flush", lambda _: _break("flush"))
            patched.setattr(Memory, "reload", lambda _: _break("reload"))
            with pytest.raises(IngotError):
                await bench.make_job()
        assert (await bench.make_job()).id


async def test_the_writer_lives_on_when_an_error_escapes_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench("sqlite", tmp_path / "data") as bench:
        with monkeypatch.context() as patched:
            patched.setattr(Writer, "_commit", lambda *_: _break("commit"))
            patched.setattr(Writer, "_recover", lambda _: _break("recover"))
            with pytest.raises(StoreError):
                await bench.make_job()
        assert (await bench.make_job()).id


async def test_the_writer_lives_on_when_its_log_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_pipe(*_: object) -> str:
        raise BrokenPipeError

    async with open_bench("sqlite", tmp_path / "data") as bench:
        before = structlog.get_config()["processors"]
        structlog.configure(processors=[broken_pipe])
        try:
            with monkeypatch.context() as patched:
                patched.setattr(Transaction, "flush", lambda _: _break("flush"))
                with pytest.raises(IngotError):
                    await bench.make_job()
            assert (await bench.make_job()).id
        finally:
            structlog.configure(processors=before)


async def test_a_listener_that_fails_keeps_the_news_from_nobody(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path / "data") as bench:
        heard: list[int] = []
        bench.store.on_ready(lambda *_: _break("listener"))
        bench.store.on_ready(lambda _tenant, _type, count: heard.append(count))
        await bench.make_job()
        assert heard == [1]


async def test_a_close_whose_caller_goes_away_lets_the_folder_go_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, gate = tmp_path / "data", threading.Event()
    store = await SQLiteStore.open(folder, clock=ManualClock(), lease_seconds=LEASE_SECONDS)
    join = Writer.join
    monkeypatch.setattr(Writer, "join", lambda writer: (gate.wait(), join(writer)))
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    gate.set()
    await store.close()
    again = await SQLiteStore.open(folder, clock=ManualClock(), lease_seconds=LEASE_SECONDS)
    await again.close()


async def test_an_open_whose_caller_goes_away_lets_the_folder_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened, gate, let_go = tmp_path / "data", threading.Event(), threading.Event(), asyncio.Event()

    def slow_open(folder: Path, clock: Clock, *, lease_seconds: float, vfs: str | None) -> Opened:
        result = open_folder(folder, clock, lease_seconds=lease_seconds, vfs=vfs)
        opened.set()
        gate.wait()
        return result

    def close(opened: Opened) -> None:
        real_close(opened)
        let_go.set()

    real_close = Opened.close
    monkeypatch.setattr("ingot.engines.sqlite.store.open_folder", slow_open)
    monkeypatch.setattr(Opened, "close", close)
    opening = asyncio.create_task(SQLiteStore.open(folder, clock=ManualClock(), lease_seconds=LEASE_SECONDS))
    await asyncio.to_thread(opened.wait)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    gate.set()
    await let_go.wait()
    monkeypatch.undo()
    again = await SQLiteStore.open(folder, clock=ManualClock(), lease_seconds=LEASE_SECONDS)
    await again.close()


async def test_a_fence_that_carries_over_stays_above_all_others_after_a_failed_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, clock = tmp_path / "data", ManualClock()
    async with open_bench("sqlite", folder, clock) as bench:
        first = bench.sqlite.memory
        first.fence = (first.epoch + 1) * FENCES_PER_EPOCH - 1
        await bench.make_job()
        with monkeypatch.context() as patched:
            patched.setattr(Transaction, "flush", lambda _: _break("flush"))
            with pytest.raises(IngotError):
                await bench.jobs.claim("worker", ["noop"])
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        highest = claim.fence
        await bench.jobs.release(claim)
    async with open_bench("sqlite", folder, clock) as bench:
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        assert claim.fence > highest


def test_use_from_another_event_loop_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    async def scenario() -> dict[str, int]:
        async with open_bench("sqlite", tmp_path / "data") as bench:
            await asyncio.to_thread(asyncio.run, elsewhere(bench))
            summary = await bench.jobs.summary(bench.tenant)
            return {status.value: count for status, count in summary.counts.items() if count}

    async def elsewhere(bench: Bench) -> None:
        with pytest.raises(StoreError, match="another event loop"):
            await bench.jobs.enqueue_many([new_job(bench.tenant, "noop")])

    assert asyncio.run(scenario()) == {}
