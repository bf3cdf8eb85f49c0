"""Rate limits of callers, of tenants, and of addresses that try wrong credentials."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingot.engines.sqlite import SQLiteStore
from ingot.http import authentication, rate_limits
from ingot.http.rate_limits import RateLimit, RateLimiter, TooManyRequests
from ingot.http.request import Headers, Request
from ingot.http.routes import Authenticated, Route
from ingot.identity import credential_secrets
from ingot.identity.authenticator import Authenticator
from ingot.identity.tenants import Tenants
from ingot.kernel.clock import SystemClock
from ingot.kernel.errors import StoreError
from ingot.kernel.ids import new_id
from ingot.settings import Settings
from tests.http.serving import Served, serving

FEW = RateLimit(0.001, 3)


@pytest.fixture
async def behind_a_proxy(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, Settings(trusted_proxies=("127.0.0.0/8",))) as server:
        yield server


@pytest.fixture
def few_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "FAILURE_RATE", FEW)


async def list_jobs(served: Served, token: str, **headers: str) -> tuple[int, str]:
    response = await served.call("GET", "/jobs", token=token, headers=headers)
    return response.status_code, "" if response.status_code == 200 else response.json()["code"]


async def test_reads_and_writes_have_separate_rates(tmp_path: Path) -> None:
    async with serving(tmp_path, Settings(rate_read=0.5, rate_write=0.001)) as served:
        reads = [(await served.call("GET", "/jobs")).status_code for _ in range(2)]
        writes = [(await served.call("POST", "/jobs", json={"type": "a"})).status_code for _ in range(2)]
        assert (reads, writes) == ([200, 429], [201, 429])
        assert (await served.call("POST", "/jobs/claim", json={"types": ["a"]})).status_code == 200


async def test_callers_of_a_tenant_share_a_rate_that_other_tenants_do_not(tmp_path: Path) -> None:
    async with serving(tmp_path, Settings(rate_read=0.001)) as served:
        tokens = [await served.token() for _ in range(authentication.TENANT_RATE_FACTOR + 1)]
        responses = [await list_jobs(served, token) for token in tokens]
        assert [status for status, _ in responses] == [200] * authentication.TENANT_RATE_FACTOR + [429]
        other = await served.ingot.tenants.create("other")
        assert await list_jobs(served, await served.token(tenant=other.id)) == (200, "")


@pytest.mark.usefixtures("few_failures")
async def test_an_address_with_many_wrong_credentials_is_blocked(served: Served) -> None:
    verified, unknown = await served.token(), await served.token()
    assert await list_jobs(served, verified) == (200, "")
    for _ in range(3):
        assert await list_jobs(served, credential_secrets.new_token(new_id())) == (401, "unauthorized")
    for headers in ({}, {"x-forwarded-for": "192.0.2.7"}):
        assert await list_jobs(served, credential_secrets.new_token(new_id()), **headers) == (429, "too_many_failures")
    worker = {
        "x-worker-id": "press",
        "x-worker-secret": credential_secrets.new_secret(credential_secrets.WORKER_PREFIX),
    }
    response = await served.client.post("/api/v1/jobs/claim", headers=worker, json={"types": ["a"]})
    assert (response.status_code, response.json()["code"]) == (429, "too_many_failures")
    assert int(response.headers["retry-after"]) > 1
    assert await list_jobs(served, unknown) == (429, "too_many_failures")
    assert await list_jobs(served, verified) == (200, "")  # A credential that was verified before is not blocked.
    assert await list_jobs(served, "nonsense") == (401, "unauthorized")  # Rejecting it needs no query.


@pytest.mark.usefixtures("few_failures")
async def test_valid_credentials_do_not_count_as_failures(served: Served) -> None:
    for _ in range(5):
        assert await list_jobs(served, await served.token()) == (200, "")
    assert await list_jobs(served, credential_secrets.new_token(new_id())) == (401, "unauthorized")


@pytest.mark.usefixtures("few_failures")
async def test_errors_of_the_store_do_not_count_as_failures(tmp_path: Path) -> None:
    store = await SQLiteStore.open(tmp_path, clock=SystemClock(), lease_seconds=60)
    await store.close()
    authenticator = authentication.RequestAuthenticator(
        Authenticator(store, SystemClock()), Tenants(store), RateLimiter()
    )
    route = Route(method="GET", path="/x", handler=_silent, needs=Authenticated(), tag="test")
    for _ in range(5):
        headers = Headers([(b"authorization", b"Bearer " + credential_secrets.new_token(new_id()).encode())])
        with pytest.raises(StoreError):
            await authenticator.authenticate(route, headers, {}, request_id="", client=("192.0.2.1", 1))


async def _silent(call: Request) -> None:
    """Never called."""


@pytest.mark.usefixtures("few_failures")
async def test_failures_behind_a_trusted_proxy_are_counted_by_forwarded_address(behind_a_proxy: Served) -> None:
    for _ in range(3):
        forwarded = {"x-forwarded-for": "198.51.100.9, 192.0.2.7"}
        assert await list_jobs(behind_a_proxy, credential_secrets.new_token(new_id()), **forwarded) == (
            401,
            "unauthorized",
        )
    forged = {"x-forwarded-for": "203.0.113.1, 192.0.2.7"}
    assert await list_jobs(behind_a_proxy, credential_secrets.new_token(new_id()), **forged) == (
        429,
        "too_many_failures",
    )
    other = {"x-forwarded-for": "192.0.2.8"}
    assert await list_jobs(behind_a_proxy, credential_secrets.new_token(new_id()), **other) == (401, "unauthorized")


def test_the_number_of_rate_buckets_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "BUCKETS_MAX", 100)
    limiter = RateLimiter(now=lambda: 0.0)
    limiter.take(("first", "read"), RateLimit(1, 1))
    for number in range(1000):
        limiter.take((f"peer {number}", "read"), FEW)
        if number < 50:
            with pytest.raises(TooManyRequests):
                limiter.take(("first", "read"), RateLimit(1, 1))
    assert len(limiter) == 100


async def test_anonymous_callers_of_all_addresses_share_one_rate(
    behind_a_proxy: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller with many addresses cannot start more sign-ins than the store can take."""
    monkeypatch.setattr(authentication, "ALL_ANONYMOUS_RATE", RateLimit(0.001, 5))
    statuses = [
        (
            await behind_a_proxy.client.get("/auth/start", headers={"x-forwarded-for": f"2001:db8:0:{n:x}::1"})
        ).status_code
        for n in range(7)
    ]
    assert statuses == [303] * 5 + [429] * 2
    assert (await behind_a_proxy.call("GET", "/jobs")).status_code == 200
    assert (await behind_a_proxy.client.get("/static/ingot.css")).status_code == 200
