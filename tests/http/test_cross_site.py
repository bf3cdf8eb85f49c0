"""Requests that a page of another site can make a browser send, to every route."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingot.http.routes import Open, Signed
from ingot.kernel.ids import new_id
from tests.http.one_server import on_one_server
from tests.http.route_table import route_table_of
from tests.http.serving import PEOPLE, Served, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", PEOPLE) as server:
        await server.give_groups(admins="admin")
        yield server


async def test_no_route_that_changes_something_accepts_get(served: Served) -> None:
    headers = await served.sign_in("operators")
    routes = route_table_of(served).routes
    read = {route.path for route in routes if route.method == "GET"}
    requests = 0
    for route in routes:
        if route.method == "GET" or route.path in read:
            continue
        path = route.template.format(**{name: new_id() for name in route.path_parameters})
        for method in ("GET", "HEAD"):
            response = await served.client.request(method, path, headers=headers)
            if response.status_code == 404 and path.startswith("/api/v1/jobs/"):
                continue  # The last segment was taken for a job ID.
            assert response.status_code == 405, f"{method} {path}: {response.status_code}"
            assert "GET" not in response.headers["allow"]
            requests += 1
    assert requests > 30
    handlers = {route.handler for route in routes if route.method != "GET"}
    assert [route.path for route in routes if route.method == "GET" and route.handler in handlers] == []


@on_one_server("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
@on_one_server(("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 415)])
async def test_a_content_type_that_a_form_can_send_creates_no_job(
    served: Served, content_type: str, site: str, status: int
) -> None:
    headers = {**await served.sign_in("admins"), "sec-fetch-site": site, "content-type": content_type}
    response = await served.client.post("/api/v1/jobs", headers=headers, content=b'{"type": "noop"}')
    assert response.status_code == status
    assert (await served.call("GET", "/jobs")).json()["items"] == []


@pytest.mark.parametrize("site_headers", [{}, {"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}])
async def test_headers_of_htmx_do_not_pass_the_cross_site_check_of_any_route(
    served: Served, site_headers: dict[str, str]
) -> None:
    headers = {"cookie": (await served.sign_in("operators"))["cookie"], **site_headers}
    headers |= {"hx-request": "true", "hx-current-url": served.url, "x-requested-with": "XMLHttpRequest"}
    for route in route_table_of(served).routes:
        if route.method == "GET" or isinstance(route.needs, Open | Signed):  # These routes ignore cookies.
            continue
        path = route.template.format(**{name: new_id() for name in route.path_parameters})
        response = await served.client.request(route.method, path, headers=headers, json={})
        assert response.status_code == 403, f"{route.method} {path}: {response.status_code}"
        assert "cross_site" in response.text
