"""NUL in every text that a client can send: the request is refused, and the server never fails."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from ingot.http.metrics import Metrics
from ingot.http.request import RequestBody
from ingot.http.routes import Route
from ingot.settings import Settings
from ingot.wiring.api_server import build_routes
from tests.http.serving import Served, serving
from tests.postgres import borrowed_database

NUL = "a\x00b"
SOME_ID = "0198c0ffee0198c0ffee0198c0"
PARAMETER = re.compile(r"\{[^}]*\}")
Sent = tuple[str, dict[str, Any]]  # A path, and options of the request.


@pytest.fixture(params=["sqlite", "postgres"])
async def on_engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    if request.param == "sqlite":
        async with serving(tmp_path) as served:
            yield served
        return
    async with borrowed_database() as database:
        settings = Settings(database_url=database.server_url, database_owner_url=database.owner_url)
        async with serving(tmp_path, settings) as served:
            yield served


def with_nul(value: Any) -> Iterator[Any]:
    """Copies of a JSON value, each with NUL in one of its texts."""
    if isinstance(value, str):
        yield value + "\x00"
    elif isinstance(value, list):
        for n, element in enumerate(value):
            yield from ([*value[:n], changed, *value[n + 1 :]] for changed in with_nul(element))
    elif isinstance(value, dict):
        for name, element in value.items():
            yield from ({**value, name: changed} for changed in with_nul(element))


def fields_of(type: Any) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(type)] if hasattr(type, "__struct_fields__") else []


def bodies_of(route: Route, body: Any) -> Iterator[Any]:
    example = {} if route.example is None else json.loads(msgspec.json.encode(route.example))
    yield from with_nul(example)
    for field in fields_of(body):
        yield {**example, field: NUL}
        yield {**example, field: [NUL]}


def requests_of(route: Route) -> Iterator[Sent]:
    """Requests with NUL in each parameter of the path and of the query, and in each field of the body."""
    for name in route.path_parameters:
        path = re.sub(rf"\{{{name}\*?\}}", "a%00b", route.path)
        yield PARAMETER.sub(SOME_ID, path), {}
    path, types = PARAMETER.sub(SOME_ID, route.path), route.handler_types()
    for field in fields_of(types.get("query")):
        yield path, {"params": {field: NUL}}
    if (body := types.get("body")) not in (None, RequestBody):
        yield from ((path, {"json": changed}) for changed in bodies_of(route, body))


async def test_no_request_with_nul_is_a_failure_of_the_server(on_engine: Served) -> None:
    sent, failed = 0, []
    for route in build_routes(on_engine.ingot, Metrics(CollectorRegistry())).routes:
        for path, options in requests_of(route) if not (route.is_page or route.is_stream_only) else ():
            headers = {"authorization": f"Bearer {on_engine.operator}"}
            response = await on_engine.client.request(route.method, path, headers=headers, **options)
            sent += 1
            if response.status_code >= 500:
                failed.append((route.method, path, options, response.text))
    assert failed == []
    assert sent > 300


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/workers/a%00b"),
        ("POST", "/workers/a%00b/heartbeat"),
        ("GET", "/keys/a%00b"),
        ("GET", "/jobs?type=a%00b"),
        ("GET", "/keys?prefix=a&cursor=%00"),
    ],
)
async def test_nul_in_a_path_or_query_is_invalid_input(served: Served, method: str, path: str) -> None:
    response = await served.call(method, path)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_input")
