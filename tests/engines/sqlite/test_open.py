"""Opening the SQLite store: durability settings, one process per folder, migrations forward only."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from ingot.engines.migrations import Migration
from ingot.engines.sqlite import SQLiteStore, connection, migrate
from ingot.engines.sqlite.connection import READER_PRAGMAS, WRITER_PRAGMAS, open_reader, open_writer, pragmas_of
from ingot.engines.sqlite.folder_lock import LOCK_NAME
from ingot.engines.sqlite.migrate import migrations
from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import StoreLocked, StoreMisconfigured, StoreTooNew
from tests.factories import LEASE_SECONDS, open_bench
from tests.processes import started_async

PROGRAM = """
import asyncio, sys
from pathlib import Path
from ingot.engines.sqlite import SQLiteStore
from ingot.kernel.clock import SystemClock

async def main():
    store = await SQLiteStore.open(Path(sys.argv[1]), clock=SystemClock(), lease_seconds=180)
    print("open", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def _open(folder: Path, *, vfs: str | None = None) -> SQLiteStore:
    return await SQLiteStore.open(folder, clock=ManualClock(), lease_seconds=LEASE_SECONDS, vfs=vfs)


# -- durability ---------------------------------------------------------------------------------------------


def test_the_writer_syncs_its_log_at_every_commit(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "file.db")
    assert (writer.pragma("journal_mode"), writer.pragma("synchronous")) == ("wal", 2)
    assert pragmas_of(writer, WRITER_PRAGMAS) == WRITER_PRAGMAS
    writer.close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "file.db")
    writer.execute("CREATE TABLE t (a)")
    reader = open_reader(tmp_path / "file.db")
    assert pragmas_of(reader, READER_PRAGMAS) == READER_PRAGMAS
    with pytest.raises(apsw.ReadOnlyError):
        reader.execute("INSERT INTO t VALUES (1)")
    reader.close()
    writer.close()


async def test_the_file_of_a_store_is_in_wal_mode(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path / "data") as bench:
        await bench.make_job()
        reader = open_reader(tmp_path / "data" / FILE_NAME)
        assert reader.pragma("journal_mode") == "wal"
        reader.close()


async def test_a_file_system_without_a_write_ahead_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreMisconfigured, match="journal_mode") as caught:
        await _open(tmp_path / "data", vfs="unix-dotfile")
    assert "write-ahead log" in caught.value.hint


async def test_a_pragma_that_has_no_effect_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.WRITER_PRAGMAS, "synchronous", 7)
    with pytest.raises(StoreMisconfigured, match="synchronous"):
        await _open(tmp_path / "data")


async def test_a_refused_open_releases_the_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreMisconfigured):
        await _open(tmp_path / "data", vfs="unix-dotfile")
    store = await _open(tmp_path / "data")
    await store.close()


async def test_the_folder_is_accessible_only_to_its_owner(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    store = await _open(folder)
    await store.close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


# -- one process --------------------------------------------------------------------------------------------


async def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with started_async(sys.executable, "-c", PROGRAM, folder, stdout=asyncio.subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"open\n"
        with pytest.raises(StoreLocked) as caught:
            await _open(folder)
        assert caught.value.detail == f"Another Ingot process (pid {holder.pid}) holds the data folder {folder}."
        assert "INGOT_DATA" in caught.value.hint
    store = await _open(folder)  # The lock ends with the process.
    await store.close()


async def test_a_refused_open_does_not_overwrite_the_pid_in_the_lock_file(tmp_path: Path) -> None:
    store = await _open(tmp_path / "data")
    for _ in range(2):
        with pytest.raises(StoreLocked, match=f"pid {os.getpid()}"):
            await _open(tmp_path / "data")
    assert (tmp_path / "data" / LOCK_NAME).read_text() == f"{os.getpid()}\n"
    await store.close()


async def test_a_closed_store_can_be_opened_again(tmp_path: Path) -> None:
    for _ in range(3):
        store = await _open(tmp_path / "data")
        await store.close()


async def test_a_store_can_be_closed_twice(tmp_path: Path) -> None:
    store = await _open(tmp_path / "data")
    await asyncio.gather(store.close(), store.close())
    await store.close()
    again = await _open(tmp_path / "data")
    await again.close()


# -- migrations ---------------------------------------------------------------------------------------------


def _ledger(path: Path) -> list[tuple[int, str, int]]:
    reader = open_reader(path)
    rows = list(reader.execute("SELECT number, name, applied_at FROM migrations ORDER BY number"))
    reader.close()
    return rows


def _schema(path: Path) -> list[tuple[str, str]]:
    reader = open_reader(path)
    rows = list(reader.execute("SELECT name, sql FROM sqlite_schema ORDER BY name"))
    reader.close()
    return rows


def test_migrations_are_numbered_from_one_without_a_gap() -> None:
    assert [step.number for step in migrations()] == list(range(1, len(migrations()) + 1))


async def test_every_migration_is_applied_once(tmp_path: Path) -> None:
    file = tmp_path / "data" / FILE_NAME
    await (await _open(tmp_path / "data")).close()
    first, schema = _ledger(file), _schema(file)
    assert [(number, name) for number, name, _ in first] == [(step.number, step.name) for step in migrations()]
    clock = ManualClock()
    clock.advance(days=1)
    store = await SQLiteStore.open(tmp_path / "data", clock=clock, lease_seconds=LEASE_SECONDS)
    await store.close()
    assert (_ledger(file), _schema(file)) == (first, schema)


def use_migrations(steps: list[Migration], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the migrations of the program by these."""
    package = folder / f"migrations_{secrets.token_hex(8)}"
    package.mkdir()
    for step in steps:
        (package / f"{step.number:04}_{step.name}.sql").write_text(step.text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(migrate, "PACKAGE", package.name)


async def test_a_newer_program_applies_missing_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "data" / FILE_NAME
    async with open_bench("sqlite", tmp_path / "data") as bench:
        job = await bench.make_job("noop", {"kept": True})
    existing = migrations()
    added = Migration(len(existing) + 1, "more", "CREATE TABLE more (a); INSERT INTO more VALUES (1);")
    use_migrations([*existing, added], tmp_path, monkeypatch)
    async with open_bench("sqlite", tmp_path / "data") as bench:
        assert (await bench.reload(job)).read() == {"kept": True}
    assert [number for number, _, _ in _ledger(file)] == [step.number for step in [*existing, added]]


def test_rebuilt_tables_keep_their_rows_and_indexes(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    *before, rebuild = migrations()[:11]
    with closing(apsw.Connection(str(file))) as writer:
        for migration in before:
            writer.execute(migration.text)
        writer.execute("""
            INSERT INTO uploads (tenant, id, state, epoch, owner, reserved, received, content_type, key, place,
                created_at, expires_at, done_at)
            VALUES (1, 'a', 'open', 1, 'token/a', 5, 2, 'text/plain', 'k', 'place', 1, 2, NULL),
                (1, 'b', 'done', 1, 'token/a', 0, 3, 'text/plain', NULL, NULL, 1, 2, 3);
            INSERT INTO job_files (tenant, job, kind, name, blob, content_type, owner, fence, since)
            VALUES (1, 1, 'output', 'a', 1, 'text/plain', 'token/a', 1, 1),
                (1, 1, 'log', 'b', 2, 'text/plain', 'token/a', 1, 1);
        """)
    before_rebuild = _rows_and_indexes(file)
    with closing(apsw.Connection(str(file))) as writer:
        writer.execute(rebuild.text)
    assert _rows_and_indexes(file) == before_rebuild
    assert [(len(rows), len(indexes)) for rows, indexes in before_rebuild.values()] == [(2, 5), (2, 1)]


def _rows_and_indexes(path: Path) -> dict[str, tuple[list[tuple[object, ...]], list[tuple[object, ...]]]]:
    reader = open_reader(path)
    indexes = "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = ? ORDER BY name"
    found = {
        table: (list(reader.execute(f"SELECT * FROM {table}")), list(reader.execute(indexes, (table,))))
        for table in ("uploads", "job_files")
    }
    reader.close()
    return found


async def test_a_failed_migration_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "data" / FILE_NAME
    await (await _open(tmp_path / "data")).close()
    before = (_ledger(file), _schema(file))
    existing = migrations()
    broken = Migration(len(existing) + 1, "broken", "CREATE TABLE half (a); INSERT INTO nowhere VALUES (1);")
    with monkeypatch.context() as patch:
        use_migrations([*existing, broken], tmp_path, patch)
        with pytest.raises(StoreMisconfigured):
            await _open(tmp_path / "data")
    assert (_ledger(file), _schema(file)) == before
    await (await _open(tmp_path / "data")).close()


async def test_a_file_of_a_newer_program_is_refused_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "data" / FILE_NAME
    await (await _open(tmp_path / "data")).close()
    writer = open_writer(file)
    writer.execute("INSERT INTO migrations VALUES (9999, 'from_the_future', 0)")
    writer.close()
    before = (_ledger(file), _schema(file))
    with pytest.raises(StoreTooNew, match="9999"):
        await _open(tmp_path / "data")
    assert (_ledger(file), _schema(file)) == before


async def test_every_open_starts_a_higher_epoch_of_fences(tmp_path: Path) -> None:
    epochs = []
    for type in "abc":
        async with open_bench("sqlite", tmp_path / "data") as bench:
            epochs.append((await bench.make_claim(type)).fence >> 32)
    assert epochs == [1, 2, 3]
