"""A proxy in front of a server that restarts: its error pages are retried like lost connections."""

from __future__ import annotations

import httpx
import pytest

from ingot.client.asynchronous.event_stream import follow_stream
from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.errors import ServerUnreachable
from ingot.client.retry_policy import RetryPolicy
from ingot.client.server_address import resolve_server_address

PAGE = b"<html><head><title>Bad Gateway</title></head></html>"


def http_with(*responses: httpx.Response) -> tuple[AsyncHttp, list[httpx.Response]]:
    """A client whose requests get these responses, and the list of those that are left."""
    left = list(responses)
    transport = httpx.MockTransport(lambda _: left.pop(0))
    address = resolve_server_address("http://127.0.0.1:1", token="t")
    return AsyncHttp(address, RetryPolicy(retry_seconds=20), transport=transport), left


@pytest.mark.parametrize("content", [PAGE, b""])
@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_request_that_is_safe_to_repeat_survives_a_restart_behind_a_proxy(status: int, content: bytes) -> None:
    for method, idempotent in (("GET", None), ("POST", True)):
        http, left = http_with(httpx.Response(status, content=content), httpx.Response(200, json={"ok": True}))
        assert await http.request(method, "/jobs", dict[str, bool], idempotent=idempotent) == {"ok": True}
        assert not left


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_request_that_a_proxy_may_have_sent_is_not_repeated(status: int) -> None:
    http, left = http_with(httpx.Response(status, content=PAGE), httpx.Response(200, json={}))
    with pytest.raises(ServerUnreachable):
        await http.request("POST", "/jobs", dict[str, bool])
    assert len(left) == 1


async def test_an_event_stream_survives_a_restart_before_its_first_event() -> None:
    stream = httpx.Response(200, text="retry: 2000\n\n")
    event = httpx.Response(200, text='id: 1\ndata: {}\n\nevent: end\ndata: {"reason": "complete"}\n\n')
    http, left = http_with(stream, httpx.Response(502, content=PAGE), httpx.Response(503), event)
    assert [event.id async for event in follow_stream(http, "/events/stream", {})] == ["1"]
    assert not left
