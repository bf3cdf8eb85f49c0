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
ANSWER_SECONDS = 30
STREAM_SECONDS = 0.5
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


class Site:
    """A server with something in it, so that names in paths can be those of things that are there."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.headers = {"authorization": f"Bearer {token}"}
        self.client = httpx.Client(base_url=f"{url}/api/v1", headers=self.headers, verify=False)
        self.random = random.Random(SEED)
        self.furnish()

    def furnish(self) -> None:
        """Make one of everything."""
        self.post("/jobs", type="press")
        self.job = self.post("/jobs/claim", types=["press"], worker_id="w")["jobs"][0]
        grants = [{"action": "jobs.read"}]
        self.token = self.post("/admin/tokens", description="x", grants=grants)["id"]
        self.client.post("/admin/workers", json={"id": "press"})
        self.client.post("/admin/tenants", json={"slug": "press"})
        self.post("/jobs", type="press", batch="b")

    def post(self, path: str, **body: Any) -> Any:
        answer = self.client.post(path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def aim(self, case: Any) -> None:
        """Half of the time, name what is there; wait for nothing."""
        names = case.path_parameters
        if names and self.random.random() < 0.5:
            known = {"slug": "press", "type": "press", "batch": "b", "id": self.job["id"]}
            if "/admin/tokens" in case.path:
                known["id"] = self.token
            elif "workers" in case.path:
                known["id"] = "press"
            for name in names:
                names[name] = known.get(name, names[name])
        if "Ingot-Tenant" in case.headers and not _is_wrong(case):
            case.headers["Ingot-Tenant"] = "default"
        if case.path.endswith("/wait") and _is_a_while(case.query.get("wait_seconds", "30")):
            case.query["wait_seconds"] = WAIT_SECONDS
        body = case.body
        if isinstance(body, dict):
            if isinstance(seconds := body.get("wait_seconds"), int | float) and 0 < seconds <= 60:
                body["wait_seconds"] = WAIT_SECONDS
            if "fence" in body and not _is_wrong(case) and self.random.random() < 0.5:
                body["fence"] = self.job["fence"]

    def try_out(self, case: Any) -> None:
        """Send it, and look at the answer."""
        self.aim(case)
        for name in ("X-Worker-ID", "X-Worker-Secret"):
            case.headers.pop(name, None)
        answer = self.call(case)
        checks = [*CHECKS, negative_data_rejection] if _is_wrong(case) else CHECKS
        case.validate_response(answer, checks=checks)
        if answer.status_code < 400:  # The document's `default` is for problems only.
            assert str(answer.status_code) in case.operation.definition.raw["responses"], answer.status_code
        else:
            assert answer.headers["content-type"] == ["application/problem+json"]
            assert answer.json()["status"] == answer.status_code
        if answer.status_code == 200 and case.path.endswith(("/complete", "/fail", "/release", "/snooze", "/cancel")):
            self.furnish()

    def call(self, case: Any) -> Any:
        """Send it. A stream has no end, and is read for as long as the timeout says."""
        ways = {"base_url": self.url, "headers": self.headers}
        if _is_stream(case):
            with suppress(requests.Timeout):  # On a slow machine the response itself may take longer.
                return case.call(**ways, timeout=(ANSWER_SECONDS, STREAM_SECONDS))
        return case.call(**ways, timeout=ANSWER_SECONDS)


def _is_stream(case: Any) -> bool:
    answers = case.operation.definition.raw["responses"].values()
    return any("text/event-stream" in answer.get("content", {}) for answer in answers)


def _is_a_while(seconds: object) -> bool:
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
    with ExitStack() as opened:
        made = []
        for engine, environment in {"sqlite": {}, "postgres": on_postgres}.items():
            folder = tmp_path / engine
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            _, url = opened.enter_context(served(folder))
            made.append(Site(url, (folder / "operator.token").read_text(encoding="utf-8").strip()))
            opened.callback(made[-1].client.close)
        yield made


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.timeout(0 if IS_WHOLE else 300)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_response_is_one_that_the_document_describes(sites: list[Site], mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_dict(
        httpx.get(f"{sites[0].url}/openapi.json", headers=sites[0].headers, verify=False).json()
    )
    wrong: list[str] = []
    asked = 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()

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
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            parts = deepcopy((case.path_parameters, case.headers, case.query, case.body))  # A site aims them.
            for site in sites:
                case.path_parameters, case.headers, case.query, case.body = deepcopy(parts)
                site.try_out(case)

        try:
            ask()
        except Unsatisfiable:  # There is nothing about it that can be wrong.
            continue
        except (AssertionError, FailureGroup, BaseExceptionGroup) as failed:
            wrong.append(f"{operation.label}: {failed!r}")
    assert not wrong, "\n".join(wrong)
    assert asked > 200
