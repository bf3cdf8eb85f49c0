"""What a page of another site can make a browser send, to every route."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingot.http.routes import Open, Signed
from ingot.kernel.ids import new_id
from tests.http.one_server import on_one_server
from tests.http.route_table import table
from tests.http.serving import PEOPLE, Served, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", PEOPLE) as one:
        await one.give_groups(admins="admin")
        yield one


async def test_no_route_that_changes_something_takes_get(served: Served) -> None:
    headers = await served.sign_in("operators")
    routes = table(served).routes
    read = {route.path for route in routes if route.method == "GET"}
    asked = 0
    for route in routes:
        if route.method == "GET" or route.path in read:
            continue
        path = route.template.format(**{name: new_id() for name in route.path_parameters})
        for method in ("GET", "HEAD"):
            answer = await served.client.request(method, path, headers=headers)
            if answer.status_code == 404 and path.startswith("/api/v1/jobs/"):
                continue  # It is read as the id of a job.
            assert answer.status_code == 405, f"{method} {path}: {answer.status_code}"
            assert "GET" not in answer.headers["allow"]
            asked += 1
    assert asked > 30
    handlers = {route.handler for route in routes if route.method != "GET"}
    assert [route.path for route in routes if route.method == "GET" and route.handler in handlers] == []


@on_one_server("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
@on_one_server(("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 415)])
async def test_what_a_form_can_send_is_no_json(served: Served, kind: str, site: str, status: int) -> None:
    headers = {**await served.sign_in("admins"), "sec-fetch-site": site, "content-type": kind}
    answer = await served.client.post("/api/v1/jobs", headers=headers, content=b'{"type": "noop"}')
    assert answer.status_code == status
    assert (await served.call("GET", "/jobs")).json()["items"] == []


@pytest.mark.parametrize("said", [{}, {"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}])
async def test_a_header_of_htmx_is_no_proof_on_any_route(served: Served, said: dict[str, str]) -> None:
    headers = {"cookie": (await served.sign_in("operators"))["cookie"], **said}
    headers |= {"hx-request": "true", "hx-current-url": served.url, "x-requested-with": "XMLHttpRequest"}
    for route in table(served).routes:
        if route.method == "GET" or isinstance(route.needs, Open | Signed):  # No cookie counts there.
            continue
        path = route.template.format(**{name: new_id() for name in route.path_parameters})
        answer = await served.client.request(route.method, path, headers=headers, json={})
        assert answer.status_code == 403, f"{route.method} {path}: {answer.status_code}"
        assert "cross_site" in answer.text
