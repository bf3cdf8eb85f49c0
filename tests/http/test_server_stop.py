"""Stopping a server: running requests finish or get an error."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from ingot.http.app import cancel_on_disconnect
from ingot.http.authentication import ANONYMOUS
from ingot.http.request import Headers, Request
from tests.http.raw_connections import BODY, connected, request_head, statuses
from tests.http.serving import Served
from tests.waiting import eventually


async def test_a_request_that_is_not_finished_in_time_gets_503(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.server.config.timeout_graceful_shutdown = 0.1  # type: ignore[assignment]
    async with connected(served) as (reader, writer):
        writer.write(request_head(served, b"host: x", b"content-length: 17") + BODY)
        await eventually(lambda: len(served.server.server_state.tasks) == 1)
        served.server.stop()
        response = await reader.read()
    assert statuses(response) == [503], response
    assert b"content-type: application/problem+json" in response
    assert b'"code":"stopping"' in response
    assert b"retry-after: 5" in response
    assert [record.exc_info for record in caplog.records if record.exc_info] == []


async def test_a_canceled_request_undoes_its_work() -> None:
    call = Request(caller=ANONYMOUS, tenant="", headers=Headers([]), path_params={}, request_id="")
    rolled_back = asyncio.Event()

    async def undo() -> None:
        rolled_back.set()

    async def work() -> str:
        call.undo = undo
        waiting.cancel()
        return "taken"

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    waiting = asyncio.create_task(cancel_on_disconnect(work(), call, receive))
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert rolled_back.is_set()
