"""Published events: they appear in the log in order, and a repeated request creates one event."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest

from ingot.events import Event, EventTooLarge
from ingot.events.checks import DATA_BYTES_MAX, KEY_CHARS_MAX, NAME_CHARS_MAX, RESERVED_FAMILIES, RESERVED_NAMES
from ingot.events.model import Published
from ingot.identity import TenantNotFound
from ingot.kernel.errors import IdempotencyMismatch, IngotError, InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.job_endings import all_events
from tests.conformance.snapshots import refuses, refuses_each
from tests.factories import Bench

DAY = 86_400.0


def as_tuples(events: list[Event]) -> list[tuple[str, str, bytes]]:
    return [(event.id, event.name, bytes(event.data)) for event in events]


@pytest.mark.parametrize(
    "data",
    [
        b"null",
        b'{"a": 1,\n "b":  [1.0, 2e5]}',
        rb'"\u0000\ud83d\ude00\"[\\]"',
        '"é\u2028"'.encode(),
        b"12345678901234567890",
    ],
)
async def test_a_published_event_is_stored_unchanged(bench: Bench, data: bytes) -> None:
    published_results = await bench.events.publish(bench.tenant, "order.paid", data)
    (event,) = await all_events(bench)
    assert (event.id, event.name, bytes(event.data)) == (published_results.id, "order.paid", data)
    assert (event.tenant, event.at) == (bench.tenant, bench.clock.now())
    assert published_results.created


async def test_published_events_are_in_order_with_job_events(bench: Bench) -> None:
    for n in range(3):
        await bench.events.publish(bench.tenant, f"step.n{n}", n)
        await bench.make_job()
    events = await all_events(bench)
    assert [event.name for event in events] == [name for n in range(3) for name in (f"step.n{n}", "job.created")]
    assert sorted(event.id for event in events) == [event.id for event in events]


async def test_events_published_concurrently_return_their_ids_in_the_log(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    tenants = [bench.tenant, other.id]
    making = asyncio.ensure_future(bench.make_job())
    published_results = await asyncio.gather(
        *(bench.events.publish(tenants[n % 2], "n.n", n, dedupe_key=f"{n}" if n % 3 else None) for n in range(60)),
        *(bench.events.publish(bench.tenant, "large.n", "x" * 60_000) for _ in range(8)),
    )
    await making
    ids: dict[str, Any] = {event.id: msgspec.json.decode(event.data) for event in await all_events(bench)}
    assert [ids[one.id] for n, one in enumerate(published_results[:60]) if n % 2 == 0] == list(range(0, 60, 2))
    assert len(ids) == 30 + 1 + 8
    other_events = {
        event.id: msgspec.json.decode(event.data) for event in await bench.events.read(other.id, limit=1000)
    }
    assert [other_events.get(one.id) for n, one in enumerate(published_results[:60]) if n % 2] == list(range(1, 60, 2))


async def test_a_repeated_dedupe_key_returns_the_same_event(bench: Bench) -> None:
    first = await bench.events.publish(bench.tenant, "order.paid", {"a": 1, "b": 2}, dedupe_key="k")
    again = await bench.events.publish(bench.tenant, "order.paid", b'{"b":2, "a":1}', dedupe_key="k")
    assert (again.id, again.created) == (first.id, False)
    assert [event.id for event in await all_events(bench)] == [first.id]


async def test_dedupe_keys_are_scoped_to_their_tenant(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    assert (await bench.events.publish(bench.tenant, "a.b", 1, dedupe_key="k")).created
    assert (await bench.events.publish(other.id, "a.b", 2, dedupe_key="k")).created


@pytest.mark.parametrize(("name", "data"), [("order.paid", 2), ("order.sent", 1)])
async def test_a_dedupe_key_with_another_name_or_other_data_is_a_mismatch(
    bench: Bench, name: str, data: object
) -> None:
    await bench.events.publish(bench.tenant, "order.paid", 1, dedupe_key="k")
    async with refuses(bench, IdempotencyMismatch):
        await bench.events.publish(bench.tenant, name, data, dedupe_key="k")


async def test_concurrent_calls_with_one_dedupe_key_create_one_event(bench: Bench) -> None:
    published_results = await asyncio.gather(
        *(bench.events.publish(bench.tenant, "a.b", n % 2, dedupe_key="k") for n in range(20)), return_exceptions=True
    )
    published = [one for one in published_results if isinstance(one, Published)]
    assert Counter(type(one) for one in published_results) == {
        Published: 10,
        IdempotencyMismatch: 10,
    }  # Which data is accepted depends on which call is first.
    assert len({one.id for one in published}) == 1
    assert sum(one.created for one in published) == 1
    assert len(await all_events(bench)) == 1


async def test_a_dedupe_key_can_be_used_again_after_a_day(bench: Bench) -> None:
    first = await bench.events.publish(bench.tenant, "a.b", 1, dedupe_key="k")
    bench.clock.advance(seconds=DAY - 1)
    assert (await bench.events.publish(bench.tenant, "a.b", 1, dedupe_key="k")).id == first.id
    bench.clock.advance(seconds=1)
    second = await bench.events.publish(bench.tenant, "a.b", 2, dedupe_key="k")
    assert second.created
    assert (await bench.events.publish(bench.tenant, "a.b", 2, dedupe_key="k")).id == second.id
    assert [event.id for event in await all_events(bench)] == [first.id, second.id]


async def test_dedupe_keys_are_removed_after_a_day(bench: Bench) -> None:
    await bench.events.publish(bench.tenant, "a.b", 1, dedupe_key="old")
    bench.clock.advance(seconds=DAY - 1)
    await bench.events.publish(bench.tenant, "a.b", 1, dedupe_key="new")
    assert (await bench.events.forget(keep=None, limit=10)).keys == 0
    bench.clock.advance(seconds=1)
    assert (await bench.events.forget(keep=None, limit=10)).keys == 1
    assert (await bench.events.forget(keep=None, limit=10)).keys == 0
    assert not (await bench.events.publish(bench.tenant, "a.b", 1, dedupe_key="new")).created


BAD_NAMES: list[Any] = [
    "",
    ".",
    "a.",
    ".a",
    "a..b",
    "A.b",
    "a b",
    "a\nb",
    "a.b\n",
    "a/b",
    "ü.b",
    "-a",
    "a" * (NAME_CHARS_MAX + 1),
    *sorted(f"{family}.thing" for family in RESERVED_FAMILIES),
    *sorted(RESERVED_FAMILIES | RESERVED_NAMES),
    7,
    None,
]


async def test_invalid_and_reserved_names_are_refused(bench: Bench) -> None:
    calls = {repr(name): partial(bench.events.publish, bench.tenant, name) for name in BAD_NAMES}
    assert len(calls) == len(BAD_NAMES)
    await refuses_each(bench, InvalidInput, calls)


@pytest.mark.parametrize("name", ["a", "jobs.done", "a.job", "a-1.b_2.3", "end.of.day", "a" * NAME_CHARS_MAX])
async def test_valid_names_are_accepted(bench: Bench, name: str) -> None:
    assert (await bench.events.publish(bench.tenant, name)).created


async def test_data_must_be_json_up_to_the_maximum_size(bench: Bench) -> None:
    wrong: list[tuple[object, type[IngotError]]] = [
        (b"{", InvalidInput),
        (b"", InvalidInput),
        (b"NaN", InvalidInput),
        (b"\xff", InvalidInput),
        (b"[" * 300 + b"]" * 300, InvalidInput),
        (object(), InvalidInput),
        ("x" * DATA_BYTES_MAX, EventTooLarge),
    ]
    for data, error in wrong:
        async with refuses(bench, error):
            await bench.events.publish(bench.tenant, "a.b", data)
    assert (await bench.events.publish(bench.tenant, "a.b", "x" * (DATA_BYTES_MAX - 2))).created


async def test_invalid_dedupe_keys_are_refused(bench: Bench) -> None:
    keys: list[Any] = ["", "x" * (KEY_CHARS_MAX + 1), "a\x00b", "\ud800", 7]
    calls = {repr(key): partial(bench.events.publish, bench.tenant, "a.b", dedupe_key=key) for key in keys}
    await refuses_each(bench, InvalidInput, calls)


async def test_publishing_for_an_unknown_tenant_is_refused(bench: Bench) -> None:
    for tenant in (new_id(), "default", ""):
        async with refuses(bench, TenantNotFound):
            await bench.events.publish(tenant, "a.b")


async def test_listeners_are_notified_once_of_a_published_event(bench: Bench) -> None:
    notified_tenants: list[str] = []
    bench.store.on_event(notified_tenants.append)
    await bench.events.publish(bench.tenant, "a.b", dedupe_key="k")
    await bench.events.publish(bench.tenant, "a.b", dedupe_key="k")
    assert notified_tenants == [bench.tenant]
