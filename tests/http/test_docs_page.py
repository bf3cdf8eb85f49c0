"""The page `/docs`: it shows every route and every error, and contains nothing active."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from ingot.http import docs
from ingot.http.attribute_docs import field_descriptions
from ingot.http.routes import Signed
from ingot.wire.jobs import JobSpec
from tests.http.route_table import route_table_of
from tests.http.serving import Served

VOID = {"meta"}


class PageParser(HTMLParser):
    """Collects the IDs, links and text of a page, and checks that its tags are balanced."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: set[str] = set()
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name not in ("style", "src")
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.add(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


async def test_the_page_shows_every_route_and_every_error(served: Served) -> None:
    response = await served.client.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    page = PageParser(response.text)
    for route in route_table_of(served).routes:
        if route.is_page:
            continue
        label = f"{route.tag}_{route.handler.__name__}"
        article = response.text.partition(f'<article aria-labelledby="{label}">')[2].partition("</article>")[0]
        for part in (route.template, route.method, "curl", "Responses"):
            assert part in article, f"{label}: {part}"
        assert route.title.replace("`", "") in PageParser(article).text, label
        assert ("$TOKEN" in article) == (route.path not in ("/", "/healthz") and not isinstance(route.needs, Signed))
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    for code in ("lease_lost", "body_too_large", "unauthorized", "too_many_connections"):
        assert code in page.ids


def article(page: str, label: str) -> str:
    return page.partition(f'<article aria-labelledby="{label}">')[2].partition("</article>")[0]


async def test_the_page_shows_alternative_bodies_and_streams(served: Served) -> None:
    page = (await served.client.get("/docs")).text
    actions = article(page, "jobs_act")
    for part in (
        "CancelJobs",
        "RetryJobs",
        "ChangeJobs",
        "<code>reset_attempts</code>",
        "&#34;action&#34;:&#34;cancel",
    ):
        assert part in actions
    assert "&#34;outcome&#34;:&#34;succeeded&#34;" in article(page, "work_settle")
    assert "curl -N " in article(page, "events_stream")
    assert "curl -N -H &#39;Accept: text/event-stream&#39;" in article(page, "jobs_log")
    assert "curl -N" not in article(page, "jobs_list")
    assert f"<td>{field_descriptions(JobSpec)['run_at']}</td>" in article(page, "jobs_create")


async def test_the_page_omits_errors_that_no_caller_can_get(served: Served) -> None:
    ids = PageParser((await served.client.get("/docs")).text).ids
    assert docs.UNDOCUMENTED_ERRORS.isdisjoint(ids)
    assert {"internal_error", "store_failed", "store_misconfigured", "rate_limited", "job_not_found"} <= set(ids)


async def test_the_type_of_a_problem_links_to_its_entry_on_the_page(served: Served) -> None:
    problem = (await served.call("GET", "/nowhere")).json()
    page_url, _, code = problem["type"].partition("#")
    assert f'id="{code}"' in (await served.client.get(page_url)).text


async def test_the_page_loads_nothing_but_its_own_style(served: Served) -> None:
    response = await served.client.get("/docs")
    policy = response.headers["content-security-policy"].split("; ")
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"unsafe|https?:|\*", response.headers["content-security-policy"])
    assert response.headers["x-content-type-options"] == "nosniff"
    assert not PageParser(response.text).tags & {"script", "img", "link", "iframe", "form", "object"}
    assert "//" not in re.sub(r'"http://127\.0\.0\.1:8080|&#34;http://127\.0\.0\.1:8080', "", response.text)


def test_text_of_the_document_is_escaped() -> None:
    bad = "<img src=x onerror=alert(1)>\"'&`<b>`"
    schema: dict[str, Any] = {"type": "object", "description": bad, "properties": {bad: {"enum": [bad]}}}
    operation = {
        "operationId": bad,
        "tags": [bad],
        "summary": bad,
        "description": bad,
        "security": [{"token": []}],
        "parameters": [{"name": bad, "in": "query", "required": False, "schema": {"pattern": bad, "format": bad}}],
        "requestBody": {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{bad}"}}}},
        "responses": {bad: {"description": bad, "content": {bad: {}}}},
    }
    document = {
        "info": {"version": bad},
        "tags": [{"name": bad}],
        "paths": {bad: {bad: operation}},
        "components": {"schemas": {bad: schema}},
    }
    page = PageParser(docs.render_docs_page(document).decode())
    assert not page.tags & {"img", "b"}
    assert bad.replace("`", "") in page.text.replace("`", "")
