"""Records: named and versioned objects, on every engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from ingot.engines.postgres import PostgresStore
from ingot.events.audit import Act
from ingot.identity import TenantNotFound
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.ids import new_id
from ingot.kernel.pages import InvalidCursor
from ingot.records.kinds import RecordKind
from ingot.records.model import Record, RecordChanged, RecordNotFound, TooManyRecords
from ingot.records.ports import GetSealedValue, PutRecord
from ingot.records.service import Records
from tests.factories import Bench, open_bench, open_store
from tests.waiting import eventually


class Note(msgspec.Struct, frozen=True):
    """A body for tests."""

    text: str


NOTE = RecordKind(name="note", plural="notes", body_type=Note, records_max=5, body_bytes_max=1000)


def notes_of(bench: Bench) -> Records[Note]:
    return Records(bench.store, NOTE)


async def test_a_record_is_read_as_it_was_put(bench: Bench) -> None:
    notes, act = notes_of(bench), Act(who="token:1")
    created = await notes.put(bench.tenant, "todo", Note("milk"), act=act)
    assert (created.name, created.version, created.body) == ("todo", 1, Note("milk"))
    assert (created.created_by, created.updated_by) == ("token:1", "token:1")
    assert await notes.get(bench.tenant, "todo") == created


async def test_every_change_increments_the_version_and_an_equal_put_does_not(bench: Bench) -> None:
    notes = notes_of(bench)
    first = await notes.put(bench.tenant, "todo", Note("milk"), act=Act(who="token:1"))
    bench.clock.advance(seconds=5)
    second = await notes.put(bench.tenant, "todo", Note("tea"), act=Act(who="token:2"))
    assert (second.version, second.created_at, second.created_by) == (2, first.created_at, "token:1")
    assert second.updated_at > first.updated_at
    assert second.updated_by == "token:2"
    assert await notes.put(bench.tenant, "todo", Note("tea"), act=Act(who="token:3")) == second


async def test_a_wrong_if_version_returns_the_current_one_and_changes_nothing(bench: Bench) -> None:
    notes = notes_of(bench)
    current = await notes.put(bench.tenant, "todo", Note("milk"), if_version=0)
    for wrong in (0, 2):
        with pytest.raises(RecordChanged) as refused:
            await notes.put(bench.tenant, "todo", Note("tea"), if_version=wrong)
        assert refused.value.members == {"version": 1}
        with pytest.raises(RecordChanged):
            await notes.delete(bench.tenant, "todo", if_version=wrong)
    with pytest.raises(RecordChanged) as refused:
        await notes.put(bench.tenant, "other", Note("tea"), if_version=1)
    assert refused.value.version == 0
    assert await notes.all(bench.tenant) == [current]
    assert (await notes.put(bench.tenant, "todo", Note("tea"), if_version=1)).version == 2


async def test_only_one_of_many_concurrent_puts_with_one_if_version_succeeds(bench: Bench) -> None:
    notes = notes_of(bench)
    for version in range(3):
        puts = (notes.put(bench.tenant, "todo", Note(f"{version}-{n}"), if_version=version) for n in range(8))
        answers = await asyncio.gather(*puts, return_exceptions=True)
        winners = [answer for answer in answers if isinstance(answer, Record)]
        assert len(winners) == 1
        assert all(isinstance(answer, Record | RecordChanged) for answer in answers)
        assert await notes.get(bench.tenant, "todo") == winners[0]


async def test_a_deleted_record_is_not_found_and_restarts_at_version_1(bench: Bench) -> None:
    notes = notes_of(bench)
    await notes.put(bench.tenant, "todo", Note("milk"))
    current = await notes.put(bench.tenant, "todo", Note("tea"))
    assert await notes.delete(bench.tenant, "todo", if_version=2) == current
    for call in (notes.get, notes.delete):
        with pytest.raises(RecordNotFound):
            await call(bench.tenant, "todo")
    assert (await notes.put(bench.tenant, "todo", Note("tea"))).version == 1


async def test_records_are_listed_by_name_in_pages(bench: Bench) -> None:
    notes = notes_of(bench)
    for name in ("b.2", "a", "b.10", "c", "b.1"):
        await notes.put(bench.tenant, name, Note(name))
    assert [one.name for one in await notes.all(bench.tenant)] == ["a", "b.1", "b.10", "b.2", "c"]
    first = await notes.page(bench.tenant, prefix="b.", limit=2)
    rest = await notes.page(bench.tenant, prefix="b.", limit=2, cursor=first.next_cursor)
    assert [one.name for one in (*first.items, *rest.items)] == ["b.1", "b.10", "b.2"]
    assert rest.next_cursor is None
    with pytest.raises(InvalidCursor):
        await notes.page(bench.tenant, prefix="a", cursor=first.next_cursor)
    with pytest.raises(InvalidInput, match="prefix"):
        await notes.page(bench.tenant, prefix="\0")
    seen = await notes.page(bench.tenant, limit=1, is_visible=lambda name: name.startswith("b.1"))
    rest = await notes.page(bench.tenant, limit=1, is_visible=lambda name: name == "b.10", cursor=seen.next_cursor)
    assert ([one.name for one in (*seen.items, *rest.items)], rest.next_cursor) == (["b.1", "b.10"], None)


async def test_records_are_separated_by_tenant_and_kind(bench: Bench) -> None:
    notes, other = notes_of(bench), await bench.tenants.create("other")
    lists = Records(bench.store, msgspec.structs.replace(NOTE, name="list", plural="lists"))
    await notes.put(bench.tenant, "todo", Note("mine"))
    await notes.put(other.id, "todo", Note("theirs"))
    await notes.put(None, "todo", Note("shared"))
    found = [(await notes.get(owner, "todo")).body.text for owner in (bench.tenant, other.id, None)]
    assert found == ["mine", "theirs", "shared"]
    assert [one.body.text for one in await notes.all(bench.tenant)] == ["mine"]
    assert await lists.all(bench.tenant) == []
    await notes.delete(other.id, "todo")
    assert (await notes.get(bench.tenant, "todo")).body == Note("mine")


async def test_every_change_is_recorded_with_both_bodies(bench: Bench) -> None:
    notes, act = notes_of(bench), Act(who="token:1", name="shop")
    await notes.put(bench.tenant, "todo", Note("milk"), act=act)
    await notes.put(bench.tenant, "todo", Note("milk"), act=act)
    await notes.put(bench.tenant, "todo", Note("tea"), act=act)
    with pytest.raises(RecordChanged):
        await notes.put(bench.tenant, "todo", Note("rum"), if_version=1, act=act)
    await notes.delete(bench.tenant, "todo", act=act)
    entries = (await bench.audit.list(tenant=bench.tenant, target="note/todo")).items
    notifications = [(one.action, bytes(one.before), bytes(one.after)) for one in reversed(entries)]
    milk, tea, none = b'{"text":"milk"}', b'{"text":"tea"}', b"null"
    assert notifications == [("note.put", none, milk), ("note.put", milk, tea), ("note.deleted", tea, none)]
    assert {one.who for one in entries} == {"token:1"}


async def test_invalid_records_are_refused_and_change_nothing(bench: Bench) -> None:
    notes = notes_of(bench)
    cases = [
        (bench.tenant, "", Note("x"), InvalidInput, "name"),
        (bench.tenant, "a" * 101, Note("x"), InvalidInput, "name"),
        (bench.tenant, "a/b", Note("x"), InvalidInput, "name"),
        (bench.tenant, "-a", Note("x"), InvalidInput, "name"),
        (bench.tenant, "a\0", Note("x"), InvalidInput, "name"),
        (bench.tenant, 7, Note("x"), InvalidInput, "name"),
        (bench.tenant, "a", Note("x" * 1000), InvalidInput, "body"),
        (new_id(), "a", Note("x"), TenantNotFound, "tenant"),
        ("nobody", "a", Note("x"), TenantNotFound, "tenant"),
    ]
    for tenant, name, body, error, about in cases:
        with pytest.raises(error, match=about):
            await notes.put(tenant, name, body)  # type: ignore[arg-type]
    for wrong in (-1, 1.5, "1", True):
        with pytest.raises(InvalidInput, match="if_version"):
            await notes.put(bench.tenant, "a", Note("x"), if_version=wrong)  # type: ignore[arg-type]
    assert await notes.all(bench.tenant) == []


async def test_a_tenant_can_have_at_most_records_max_records_of_a_kind(bench: Bench) -> None:
    notes, other = notes_of(bench), await bench.tenants.create("other")
    puts = (notes.put(bench.tenant, f"n{number}", Note("x")) for number in range(8))
    answers = await asyncio.gather(*puts, return_exceptions=True)
    assert sum(isinstance(answer, Record) for answer in answers) == 5
    assert sum(isinstance(answer, TooManyRecords) for answer in answers) == 3
    kept = await notes.all(bench.tenant)
    await notes.put(bench.tenant, kept[0].name, Note("changed"))
    await notes.put(other.id, "a", Note("x"))
    await notes.delete(bench.tenant, kept[0].name)
    await notes.put(bench.tenant, "new", Note("x"))


async def test_sealed_values_are_returned_only_by_get_sealed_value(bench: Bench) -> None:
    notes = notes_of(bench)
    created = await notes.put(bench.tenant, "todo", Note("shown"), sealed=b"\0sealed\xff")
    assert await bench.store.run(GetSealedValue(kind="note", tenant=bench.tenant, name="todo")) == (1, b"\0sealed\xff")
    call = await notes.put(bench.tenant, "todo", Note("shown"), sealed=b"other")
    assert (created.version, call.version) == (1, 2)
    for shown in (created, call, await notes.get(bench.tenant, "todo"), *await notes.all(bench.tenant)):
        assert b"sealed" not in msgspec.json.encode(shown)
    entries = (await bench.audit.list(tenant=bench.tenant, target="note/todo")).items
    assert all(b"sealed" not in bytes(one.before) + bytes(one.after) for one in entries)
    for tenant, name in ((bench.tenant, "none"), ((await bench.tenants.create("other")).id, "todo")):
        with pytest.raises(RecordNotFound):
            await bench.store.run(GetSealedValue(kind="note", tenant=tenant, name=name))


async def test_a_resent_put_returns_the_same_record(engine: str, bench: Bench) -> None:
    if engine == "sqlite":
        return  # Responses of SQLite cannot be lost: the writer is in the same process.
    command = PutRecord(
        kind="note",
        tenant=bench.tenant,
        name="todo",
        body=b'{"text":"milk"}',
        if_version=0,
        records_max=5,
        act=Act(),
        action="note.put",
        target="note/todo",
    )
    assert await bench.store.run(command) == await bench.store.run(command)
    assert len((await bench.audit.list(tenant=bench.tenant, target="note/todo")).items) == 1


async def test_records_of_a_removed_tenant_are_removed(bench: Bench) -> None:
    notes, other = notes_of(bench), await bench.tenants.create("other")
    await notes.put(bench.tenant, "mine", Note("x"))
    await notes.put(other.id, "theirs", Note("x"), sealed=b"x")
    await bench.tenants.remove("other")
    for call in (notes.get, notes.delete):
        with pytest.raises(TenantNotFound):
            await call(other.id, "theirs")
    with pytest.raises(TenantNotFound):
        await notes.all(other.id)
    with pytest.raises(TenantNotFound):
        await notes.put(other.id, "more", Note("x"))
    assert [one.name for one in await notes.all(bench.tenant)] == ["mine"]


async def test_records_are_kept_across_a_restart(engine: str, tmp_path: Path) -> None:
    async with open_bench(engine, tmp_path / "data") as bench:
        created = await notes_of(bench).put(bench.tenant, "todo", Note("milk"))
        await bench.jobs.pause(bench.tenant, "mail")
    async with open_bench(engine, tmp_path / "data", bench.clock) as bench:
        assert await notes_of(bench).get(bench.tenant, "todo") == created
        await bench.make_job("mail")
        assert await bench.jobs.claim("worker", ["mail"]) == []


async def test_listeners_are_notified_of_changes_only(bench: Bench) -> None:
    notes, notifications = notes_of(bench), []
    bench.store.on_record_changed(lambda: notifications.append(len(notifications)))
    await notes.put(bench.tenant, "todo", Note("milk"))
    await eventually(lambda: notifications)
    before = len(notifications)
    await notes.delete(bench.tenant, "todo")
    await eventually(lambda: len(notifications) > before)
    before = len(notifications)
    with pytest.raises(IngotError):
        await notes.delete(bench.tenant, "todo")
    assert len(notifications) == before


@pytest.mark.postgres
async def test_another_server_is_notified_of_changes(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as bench:
        other = await open_store("postgres", tmp_path / "data", bench.clock)
        try:
            notifications: list[int] = []
            other.on_record_changed(lambda: notifications.append(1))
            assert isinstance(other, PostgresStore)
            other.listener.start()
            await notes_of(bench).put(bench.tenant, "todo", Note("milk"))
            await eventually(lambda: notifications)
        finally:
            await other.close()
