"""Signed URLs, and path parameters that contain slashes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingot.http import authentication
from ingot.http.rate_limits import RateLimit
from ingot.http.signing import Signer
from ingot.kernel.clock import ManualClock
from tests.http.byte_routes import KEY, ByteRoutes
from tests.http.curl import curl
from tests.http.one_server import on_one_server
from tests.http.serving import Served, serving

PATH = "/bytes/signed"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def signer(clock: ManualClock) -> Signer:
    return Signer(KEY, clock)


@pytest.fixture
async def site(tmp_path: Path, signer: Signer) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", extra_routes=ByteRoutes().routes(), signer=signer) as served:
        yield served


@pytest.mark.curl
async def test_a_signed_url_needs_no_credential_and_passes_its_parameters(site: Served, signer: Signer) -> None:
    url = signer.sign("GET", PATH, {"name": "a b", "number": "7"}, 60)
    response = await site.client.get(url)
    assert (response.status_code, response.json()) == (200, {"text": "a b:7"})
    assert (await site.client.head(url)).status_code == 200
    assert '"text":"a b:7"' in await curl(site.url + url)
    put = await site.client.put(signer.sign("PUT", PATH, {}, 60), content=b"abc")
    assert put.json()["size"] == 3


@on_one_server("defect", ["none", "altered", "added", "method", "expired", "credential", "other key"])
async def test_an_invalid_signed_url_is_rejected(site: Served, signer: Signer, clock: ManualClock, defect: str) -> None:
    url = signer.sign("GET", PATH, {"name": "a", "number": "7"}, 60)
    method, headers = "GET", {}
    if defect == "none":
        url = PATH
    elif defect == "altered":
        url = url.replace("number=7", "number=8")
    elif defect == "added":
        url += "&number=8"
    elif defect == "method":
        method = "PUT"
    elif defect == "expired":
        clock.advance(seconds=60)
    elif defect == "credential":
        url, headers = PATH, {"authorization": f"Bearer {site.operator}"}
    else:
        url = Signer(b"another" * 8, clock).sign("GET", PATH, {}, 60)
    response = await site.client.request(method, url, headers=headers)
    assert (response.status_code, response.json()["code"]) == (403, "signature_invalid")


async def test_only_invalid_signed_urls_count_as_failures(
    site: Served, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "FAILURE_RATE", RateLimit(0.001, 5))
    valid, invalid = signer.sign("GET", PATH, {}, 60), f"{PATH}?signature=x"
    assert [(await site.client.get(valid)).status_code for _ in range(10)] == [200] * 10
    assert [(await site.client.get(invalid)).status_code for _ in range(6)] == [403] * 5 + [429]
    limited = await site.client.get(invalid)
    assert (limited.status_code, limited.json()["code"]) == (429, "too_many_failures")
    assert (await site.client.get(valid)).status_code == 200  # Others can have the same address.


async def test_a_server_without_a_signer_rejects_signed_urls(tmp_path: Path, signer: Signer) -> None:
    async with serving(tmp_path / "other", extra_routes=ByteRoutes().routes()) as site:
        response = await site.client.get(signer.sign("GET", PATH, {}, 60))
        assert (response.status_code, response.json()["code"]) == (403, "signature_invalid")


@pytest.mark.curl
async def test_a_key_parameter_takes_the_rest_of_the_path(site: Served) -> None:
    for sent, key in {"a": "a", "a/b%2Fc": "a/b/c", "%F0%9F%8D%AA/%20": "\U0001f36a/ "}.items():
        assert (await site.client.get(f"/bytes/rest/jobs/{sent}")).json() == {"text": key}
    for sent in ("", "a%00", "%ff", "%2", "x" * 60_000 + "%ff"):
        response = await curl("--path-as-is", f"{site.url}/bytes/rest/jobs/{sent}")
        assert '"code":"invalid_input"' in response
    assert '"text":"../../x"' in await curl("--path-as-is", f"{site.url}/bytes/rest/jobs/../../x")
