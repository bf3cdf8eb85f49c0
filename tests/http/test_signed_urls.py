"""Signed addresses and names with slashes, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingot.http import authentication
from ingot.http.rate_limits import RateLimit
from ingot.http.signing import Signer
from ingot.kernel.clock import ManualClock
from tests.http.byte_routes import KEY, Depot
from tests.http.curl import curl
from tests.http.one_server import on_one_server
from tests.http.serving import Served, serving

PATH = "/depot/signed"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def signer(clock: ManualClock) -> Signer:
    return Signer(KEY, clock)


@pytest.fixture
async def site(tmp_path: Path, signer: Signer) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", more=Depot().routes(), signer=signer) as served:
        yield served


@pytest.mark.curl
async def test_an_address_needs_no_credential_and_says_what_it_is_for(site: Served, signer: Signer) -> None:
    url = signer.sign("GET", PATH, {"name": "a b", "number": "7"}, 60)
    answer = await site.client.get(url)
    assert (answer.status_code, answer.json()) == (200, {"text": "a b:7"})
    assert (await site.client.head(url)).status_code == 200
    assert '"text":"a b:7"' in await curl(site.url + url)
    put = await site.client.put(signer.sign("PUT", PATH, {}, 60), content=b"abc")
    assert put.json()["size"] == 3


@on_one_server("how", ["none", "altered", "added", "method", "expired", "credential", "other key"])
async def test_an_address_that_does_not_hold_is_refused(
    site: Served, signer: Signer, clock: ManualClock, how: str
) -> None:
    url = signer.sign("GET", PATH, {"name": "a", "number": "7"}, 60)
    method, headers = "GET", {}
    if how == "none":
        url = PATH
    elif how == "altered":
        url = url.replace("number=7", "number=8")
    elif how == "added":
        url += "&number=8"
    elif how == "method":
        method = "PUT"
    elif how == "expired":
        clock.advance(seconds=60)
    elif how == "credential":
        url, headers = PATH, {"authorization": f"Bearer {site.operator}"}
    else:
        url = Signer(b"another" * 8, clock).sign("GET", PATH, {}, 60)
    answer = await site.client.request(method, url, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "signature_invalid")


async def test_addresses_that_do_not_hold_are_counted_and_others_are_not(
    site: Served, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "FAILURE_RATE", RateLimit(0.001, 5))
    good, wrong = signer.sign("GET", PATH, {}, 60), f"{PATH}?signature=x"
    assert [(await site.client.get(good)).status_code for _ in range(10)] == [200] * 10
    assert [(await site.client.get(wrong)).status_code for _ in range(6)] == [403] * 5 + [429]
    refused = await site.client.get(good)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_failures")


async def test_a_server_without_a_key_takes_no_address(tmp_path: Path, signer: Signer) -> None:
    async with serving(tmp_path / "other", more=Depot().routes()) as site:
        answer = await site.client.get(signer.sign("GET", PATH, {}, 60))
        assert (answer.status_code, answer.json()["code"]) == (403, "signature_invalid")


@pytest.mark.curl
async def test_the_rest_of_a_path_is_a_name(site: Served) -> None:
    for sent, key in {"a": "a", "a/b%2Fc": "a/b/c", "%F0%9F%8D%AA/%20": "\U0001f36a/ "}.items():
        assert (await site.client.get(f"/depot/rest/jobs/{sent}")).json() == {"text": key}
    for sent in ("", "a%00", "%ff", "%2", "x" * 60_000 + "%ff"):
        answer = await curl("--path-as-is", f"{site.url}/depot/rest/jobs/{sent}")
        assert '"code":"invalid_input"' in answer
    assert '"text":"../../x"' in await curl("--path-as-is", f"{site.url}/depot/rest/jobs/../../x")
