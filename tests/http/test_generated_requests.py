"""Requests generated from the OpenAPI document: every response is documented, on both engines, and none is a failure.

Generating a request takes longer than answering it, so each one is sent to a server on SQLite and to one on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.campaigns import IS_WHOLE
from tests.postgres import empty_database
from tests.system.programs import served

EXAMPLES = int(os.environ.get("INGOT_TEST_EXAMPLES", "20" if IS_WHOLE else "3"))
SEED = int(os.environ.get("INGOT_TEST_SEED", "5"))
WAIT_SECONDS = 0.05
RESPONSE_SECONDS = 30
STREAM_SECONDS = 0.5
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


class Site:
    """A server with some objects, so that paths can name existing ones."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.headers = {"authorization": f"Bearer {token}"}
        self.client = httpx.Client(base_url=f"{url}/api/v1", headers=self.headers, verify=False)
        self.random = random.Random(SEED)
        self.furnish()

    def furnish(self) -> None:
        """Create one object of each kind."""
        self.post("/jobs", type="press")
        self.job = self.post("/jobs/claim", types=["press"], worker_id="w")["jobs"][0]
        grants = [{"action": "jobs.read"}]
        self.token = self.post("/admin/tokens", description="x", grants=grants)["id"]
        self.client.post("/admin/workers", json={"id": "press"})
        self.client.post("/admin/tenants", json={"slug": "press"})
        self.post("/jobs", type="press", batch="b")

    def post(self, path: str, **body: Any) -> Any:
        response = self.client.post(path, json=body)
        assert response.status_code < 300, response.text
        return response.json()

    def aim(self, case: Any) -> None:
        """Name existing objects half of the time, and shorten waiting times."""
        names = case.path_parameters
        if names and self.random.random() < 0.5:
            existing = {"slug": "press", "type": "press", "batch": "b", "id": self.job["id"]}
            if "/admin/tokens" in case.path:
                existing["id"] = self.token
            elif "workers" in case.path:
                existing["id"] = "press"
            for name in names:
                names[name] = existing.get(name, names[name])
        if "Ingot-Tenant" in case.headers and not _is_wrong(case):
            case.headers["Ingot-Tenant"] = "default"
        if case.path.endswith("/wait") and _is_valid_wait(case.query.get("wait_seconds", "30")):
            case.query["wait_seconds"] = WAIT_SECONDS
        body = case.body
        if isinstance(body, dict):
            if isinstance(seconds := body.get("wait_seconds"), int | float) and 0 < seconds <= 60:
                body["wait_seconds"] = WAIT_SECONDS
            if "fence" in body and not _is_wrong(case) and self.random.random() < 0.5:
                body["fence"] = self.job["fence"]

    def try_out(self, case: Any) -> None:
        """Send the request, and check the response."""
        self.aim(case)
        for name in ("X-Worker-ID", "X-Worker-Secret"):
            case.headers.pop(name, None)
        response = self.call(case)
        checks = [*CHECKS, negative_data_rejection] if _is_wrong(case) else CHECKS
        case.validate_response(response, checks=checks)
        if response.status_code < 400:  # The document's `default` is for problems only.
            assert str(response.status_code) in case.operation.definition.raw["responses"], response.status_code
        else:
            assert response.headers["content-type"] == ["application/problem+json"]
            assert response.json()["status"] == response.status_code
        if response.status_code == 200 and case.path.endswith(("/complete", "/fail", "/release", "/snooze", "/cancel")):
            self.furnish()

    def call(self, case: Any) -> Any:
        """Send the request. A stream has no end, so it is read until the timeout."""
        options = {"base_url": self.url, "headers": self.headers}
        if _is_stream(case):
            with suppress(requests.Timeout):  # On a slow machine the response itself may take longer.
                return case.call(**options, timeout=(RESPONSE_SECONDS, STREAM_SECONDS))
        return case.call(**options, timeout=RESPONSE_SECONDS)


def _is_stream(case: Any) -> bool:
    responses = case.operation.definition.raw["responses"].values()
    return any("text/event-stream" in response.get("content", {}) for response in responses)


def _is_valid_wait(seconds: object) -> bool:
    try:
        return 0 < float(str(seconds)) <= 60
    except ValueError:
        return False


def _is_wrong(case: Any) -> bool:
    return case.meta is not None and case.meta.generation.mode.is_negative


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Site]]:
    """A server on each engine."""
    database = asyncio.run(empty_database())
    on_postgres = {"INGOT_DATABASE_URL": database.server_url, "INGOT_DATABASE_OWNER_URL": database.owner_url}
    with ExitStack() as stack:
        sites = []
        for engine, environment in {"sqlite": {}, "postgres": on_postgres}.items():
            folder = tmp_path / engine
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            _, url = stack.enter_context(served(folder))
            sites.append(Site(url, (folder / "operator.token").read_text(encoding="utf-8").strip()))
            stack.callback(sites[-1].client.close)
        yield sites


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.timeout(0 if IS_WHOLE else 300)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_response_to_a_generated_request_is_documented(sites: list[Site], mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_dict(
        httpx.get(f"{sites[0].url}/openapi.json", headers=sites[0].headers, verify=False).json()
    )
    failures: list[str] = []
    cases = 0
    for parsed in schema.get_all_operations():
        assert isinstance(parsed, Ok), parsed
        operation = parsed.ok()

        @seed(SEED)
        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def try_case(case: Any) -> None:
            nonlocal cases
            cases += 1
            parts = deepcopy((case.path_parameters, case.headers, case.query, case.body))  # Each site changes them.
            for site in sites:
                case.path_parameters, case.headers, case.query, case.body = deepcopy(parts)
                site.try_out(case)

        try:
            try_case()
        except Unsatisfiable:  # The operation has no invalid requests.
            continue
        except (AssertionError, FailureGroup, BaseExceptionGroup) as failed:
            failures.append(f"{operation.label}: {failed!r}")
    assert not failures, "\n".join(failures)
    assert cases > 200
