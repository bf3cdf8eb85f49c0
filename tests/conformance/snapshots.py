"""All that can be seen of a store, to prove that a refused call changed nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from ingot.kernel.errors import IngotError
from tests.factories import Bench


async def snapshot(bench: Bench) -> Any:
    """Every tenant with its counts, definitions, pauses, events, jobs and attempts, as plain values."""
    tenants = []
    for tenant in await bench.tenants.list():
        jobs = (await bench.jobs.list(tenant.id, limit=1000)).items
        tenants.append(
            {
                "tenant": tenant,
                "counts": (await bench.jobs.summary(tenant.id)).counts,
                "definitions": await bench.jobs.definitions(tenant=tenant.id),
                "pauses": await bench.jobs.pauses(tenant.id),
                "events": await bench.all_events(tenant.id),
                "jobs": jobs,
                "attempts": [await bench.jobs.attempts(tenant.id, job.id) for job in jobs],
            }
        )
    return msgspec.json.decode(msgspec.json.encode(tenants))


@asynccontextmanager
async def refuses(bench: Bench, kind: type[IngotError]) -> AsyncIterator[pytest.ExceptionInfo[IngotError]]:
    """The block raises exactly this named error, with a hint, and leaves the store as it was."""
    before = await snapshot(bench)
    with pytest.raises(kind) as caught:
        yield caught
    assert (kind, kind.code) == (type(caught.value), caught.value.code)
    assert caught.value.hint.strip()
    assert before == await snapshot(bench)


async def refuses_each(
    bench: Bench, kind: type[IngotError], calls: Mapping[str, Callable[[], Awaitable[object]]]
) -> None:
    """Every call raises exactly this named error, with a hint, and together they leave the store as it was."""
    before = await snapshot(bench)
    wrong = {name: answer for name, call in calls.items() if (answer := await _unlike(kind, call)) is not None}
    assert wrong == {}
    assert before == await snapshot(bench)


async def _unlike(kind: type[IngotError], call: Callable[[], Awaitable[object]]) -> str | None:
    """What a call did instead of raising this error with a hint, or `None`."""
    try:
        answer = await call()
    except Exception as error:
        if type(error) is kind and error.code == kind.code and error.hint.strip():
            return None
        return f"raised {error!r}"
    return f"answered {answer!r}"
