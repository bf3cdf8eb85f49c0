"""The end of a server: what is under way is finished or told so, whatever holds it up."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from ingot.http.app import cancel_on_disconnect
from ingot.http.authentication import ANONYMOUS
from ingot.http.request import Headers, Request
from tests.http.raw_connections import BODY, connected, head, statuses
from tests.http.serving import Served
from tests.waiting import eventually


async def test_a_request_that_does_not_end_in_time_is_told_so(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.server.config.timeout_graceful_shutdown = 0.1  # type: ignore[assignment]
    async with connected(served) as (reader, writer):
        writer.write(head(served, b"host: x", b"content-length: 17") + BODY)
        await eventually(lambda: len(served.server.server_state.tasks) == 1)
        served.server.stop()
        answer = await reader.read()
    assert statuses(answer) == [503], answer
    assert b"content-type: application/problem+json" in answer
    assert b'"code":"stopping"' in answer
    assert b"retry-after: 5" in answer
    assert [record.exc_info for record in caplog.records if record.exc_info] == []


async def test_what_was_taken_for_an_answer_that_the_end_overtakes_is_given_back() -> None:
    call = Request(caller=ANONYMOUS, tenant="", headers=Headers([]), path_params={}, request_id="")
    rolled_back = asyncio.Event()

    async def undo() -> None:
        rolled_back.set()

    async def work() -> str:
        call.undo = undo
        waiting.cancel()
        return "taken"

    async def stays() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    waiting = asyncio.create_task(cancel_on_disconnect(work(), call, stays))
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert rolled_back.is_set()
