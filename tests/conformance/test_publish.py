"""Publishing: a user's own events are in the log in order, and what is sent again is there once."""

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


def shown(events: list[Event]) -> list[tuple[str, str, bytes]]:
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
async def test_a_published_event_is_in_the_log_as_it_was_sent(bench: Bench, data: bytes) -> None:
    made = await bench.events.publish(bench.tenant, "order.paid", data)
    (event,) = await all_events(bench)
    assert (event.id, event.name, bytes(event.data)) == (made.id, "order.paid", data)
    assert (event.tenant, event.at) == (bench.tenant, bench.clock.now())
    assert made.created


async def test_published_events_stand_in_order_among_the_others(bench: Bench) -> None:
    for n in range(3):
        await bench.events.publish(bench.tenant, f"step.n{n}", n)
        await bench.make_job()
    events = await all_events(bench)
    assert [event.name for event in events] == [name for n in range(3) for name in (f"step.n{n}", "job.created")]
    assert sorted(event.id for event in events) == [event.id for event in events]


async def test_those_published_together_each_get_the_id_they_have_in_the_log(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    tenants = [bench.tenant, other.id]
    making = asyncio.ensure_future(bench.make_job())
    made = await asyncio.gather(
        *(bench.events.publish(tenants[n % 2], "n.n", n, dedupe_key=f"{n}" if n % 3 else None) for n in range(60)),
        *(bench.events.publish(bench.tenant, "large.n", "x" * 60_000) for _ in range(8)),
    )
    await making
    ids: dict[str, Any] = {event.id: msgspec.json.decode(event.data) for event in await all_events(bench)}
    assert [ids[one.id] for n, one in enumerate(made[:60]) if n % 2 == 0] == list(range(0, 60, 2))
    assert len(ids) == 30 + 1 + 8
    theirs = {event.id: msgspec.json.decode(event.data) for event in await bench.events.read(other.id, limit=1000)}
    assert [theirs.get(one.id) for n, one in enumerate(made[:60]) if n % 2] == list(range(1, 60, 2))


async def test_the_same_key_is_the_same_event(bench: Bench) -> None:
    first = await bench.events.publish(bench.tenant, "order.paid", {"a": 1, "b": 2}, dedupe_key="k")
    again = await bench.events.publish(bench.tenant, "order.paid", b'{"b":2, "a":1}', dedupe_key="k")
    assert (again.id, again.created) == (first.id, False)
    assert [event.id for event in await all_events(bench)] == [first.id]


async def test_keys_of_one_tenant_are_not_those_of_another(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    assert (await bench.events.publish(bench.tenant, "a.b", 1, dedupe_key="k")).created
    assert (await bench.events.publish(other.id, "a.b", 2, dedupe_key="k")).created


@pytest.mark.parametrize(("name", "data"), [("order.paid", 2), ("order.sent", 1)])
async def test_a_key_with_another_name_or_other_data_is_a_mistake(bench: Bench, name: str, data: object) -> None:
    await bench.events.publish(bench.tenant, "order.paid", 1, dedupe_key="k")
    async with refuses(bench, IdempotencyMismatch):
        await bench.events.publish(bench.tenant, name, data, dedupe_key="k")


async def test_a_key_that_is_sent_by_many_at_once_makes_one_event(bench: Bench) -> None:
    made = await asyncio.gather(
        *(bench.events.publish(bench.tenant, "a.b", n % 2, dedupe_key="k") for n in range(20)), return_exceptions=True
    )
    published = [one for one in made if isinstance(one, Published)]
    assert Counter(type(one) for one in made) == {Published: 10, IdempotencyMismatch: 10}  # Whichever came first.
    assert len({one.id for one in published}) == 1
    assert sum(one.created for one in published) == 1
    assert len(await all_events(bench)) == 1


async def test_a_key_is_free_again_after_a_day(bench: Bench) -> None:
    first = await bench.events.publish(bench.tenant, "a.b", 1, dedupe_key="k")
    bench.clock.advance(seconds=DAY - 1)
    assert (await bench.events.publish(bench.tenant, "a.b", 1, dedupe_key="k")).id == first.id
    bench.clock.advance(seconds=1)
    second = await bench.events.publish(bench.tenant, "a.b", 2, dedupe_key="k")
    assert second.created
    assert (await bench.events.publish(bench.tenant, "a.b", 2, dedupe_key="k")).id == second.id
    assert [event.id for event in await all_events(bench)] == [first.id, second.id]


async def test_keys_are_removed_after_a_day_and_not_before(bench: Bench) -> None:
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


async def test_names_that_are_not_to_be_had_are_refused(bench: Bench) -> None:
    calls = {repr(name): partial(bench.events.publish, bench.tenant, name) for name in BAD_NAMES}
    assert len(calls) == len(BAD_NAMES)
    await refuses_each(bench, InvalidInput, calls)


@pytest.mark.parametrize("name", ["a", "jobs.done", "a.job", "a-1.b_2.3", "end.of.day", "a" * NAME_CHARS_MAX])
async def test_other_names_are_taken(bench: Bench, name: str) -> None:
    assert (await bench.events.publish(bench.tenant, name)).created


async def test_data_is_json_within_bounds(bench: Bench) -> None:
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


async def test_keys_have_bounds(bench: Bench) -> None:
    keys: list[Any] = ["", "x" * (KEY_CHARS_MAX + 1), "a\x00b", "\ud800", 7]
    calls = {repr(key): partial(bench.events.publish, bench.tenant, "a.b", dedupe_key=key) for key in keys}
    await refuses_each(bench, InvalidInput, calls)


async def test_an_unknown_tenant_has_no_log(bench: Bench) -> None:
    for tenant in (new_id(), "default", ""):
        async with refuses(bench, TenantNotFound):
            await bench.events.publish(tenant, "a.b")


async def test_who_publishes_is_heard(bench: Bench) -> None:
    heard: list[str] = []
    bench.store.on_event(heard.append)
    await bench.events.publish(bench.tenant, "a.b", dedupe_key="k")
    await bench.events.publish(bench.tenant, "a.b", dedupe_key="k")
    assert heard == [bench.tenant]
