"""Signed URLs: valid unchanged, for their method and path, until they expire."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.blobs.errors import SignatureInvalid
from ingot.http.signing import Signer
from ingot.kernel.clock import ManualClock

KEY = b"k" * 32
PATH = "/api/v1/x/a%2Fb"
PARAMS = {"name": "a b&c=d/\u00fc", "tenant": "t", "empty": ""}
CLOCK = ManualClock()
SIGNER = Signer(KEY, CLOCK)


def split_url(url: str) -> tuple[str, bytes]:
    path, _, query = url.partition("?")
    return path, query.encode()


def signed(method: str = "GET", seconds: float = 60) -> tuple[str, bytes]:
    return split_url(SIGNER.sign(method, PATH, PARAMS, seconds))


def test_a_signed_url_returns_its_parameters() -> None:
    path, query = signed()
    assert path == PATH
    assert SIGNER.verify("GET", path, query) == PARAMS
    assert SIGNER.verify("HEAD", path, query) == PARAMS
    assert Signer(KEY, CLOCK).verify("GET", path, query) == PARAMS
    assert SIGNER.verify("GET", *split_url(SIGNER.sign("HEAD", PATH, {}, 60))) == {}


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "get", ""])
def test_a_signed_url_is_valid_for_one_method(method: str) -> None:
    with pytest.raises(SignatureInvalid):
        SIGNER.verify(method, *signed())
    with pytest.raises(SignatureInvalid):
        SIGNER.verify("GET", *signed("PUT"))


@pytest.mark.parametrize("path", ["/api/v1/x/a/b", "/api/v1/x/a%2fb", "/api/v1/x/a%2Fb/", "/api/v1/x/c", ""])
def test_a_signed_url_is_valid_for_one_path(path: str) -> None:
    with pytest.raises(SignatureInvalid):
        SIGNER.verify("GET", path, signed()[1])


def test_a_signed_url_is_valid_until_it_expires() -> None:
    clock = ManualClock()
    signer = Signer(KEY, clock)
    path, query = split_url(signer.sign("GET", PATH, {}, 60))
    clock.advance(seconds=59)
    assert signer.verify("GET", path, query) == {}
    clock.advance(seconds=1)
    with pytest.raises(SignatureInvalid, match="expired"):
        signer.verify("GET", path, query)


def test_every_part_of_the_query_is_signed() -> None:
    path, query = signed()
    pairs = parse_qsl(query.decode(), keep_blank_values=True)
    assert [name for name, _ in pairs] == ["empty", "name", "tenant", "expires", "signature"]
    altered_queries: list[list[tuple[str, str]]] = []
    for index, (name, value) in enumerate(pairs):
        without = pairs[:index] + pairs[index + 1 :]
        altered_queries.append(without)
        altered_queries.append([*pairs[:index], (name, value + "1"), *pairs[index + 1 :]])
        altered_queries.append([*pairs[:index], (name, value), (name, value), *pairs[index + 1 :]])
        altered_queries.append([(name, value), *without] if index else [*without, (name, value)])
    altered_queries.append([("x", "1"), *pairs])
    altered_queries.append([*pairs, ("x", "1")])
    altered_queries.append([*pairs[:-1], ("x", "1"), pairs[-1]])
    altered_queries.append([*pairs[:-2], ("expires", "99999999999"), pairs[-1]])
    assert SIGNER.verify("GET", path, urlencode(pairs, quote_via=quote, safe="").encode()) == PARAMS
    for altered in altered_queries:
        with pytest.raises(SignatureInvalid):
            SIGNER.verify("GET", path, urlencode(altered, quote_via=quote, safe="").encode())


def test_a_url_signed_with_another_key_is_rejected() -> None:
    with pytest.raises(SignatureInvalid):
        Signer(b"o" * 32, CLOCK).verify("GET", *signed())


@pytest.mark.parametrize(
    "query",
    [
        b"",
        b"&",
        b"signature=",
        b"&signature=",
        b"expires=1&signature=\xff",
        b"a" * 60_000,
        b"&signature=" * 700,
        b"x=1&expires=99999999999&signature=" + b"0" * 64,
    ],
)
def test_an_unsigned_query_is_rejected(query: bytes) -> None:
    with pytest.raises(SignatureInvalid):
        SIGNER.verify("GET", PATH, query)


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_url_with_one_changed_bit_is_rejected(position: int, bit: int) -> None:
    path, query = signed()
    changed = bytearray(query)
    changed[position % len(changed)] ^= 1 << bit
    with pytest.raises(SignatureInvalid):
        SIGNER.verify("GET", path, bytes(changed))


@given(params=st.dictionaries(st.text(min_size=1).filter(lambda name: name not in ("expires", "signature")), st.text()))
def test_arbitrary_parameters_can_be_signed_and_verified(params: dict[str, str]) -> None:
    if all(_is_encodable(text) for pair in params.items() for text in pair):
        assert SIGNER.verify("GET", *split_url(SIGNER.sign("GET", PATH, params, 60))) == params


def _is_encodable(text: str) -> bool:
    try:
        return bool(text.encode() or True)
    except UnicodeEncodeError:
        return False


def test_reserved_parameters_cannot_be_signed() -> None:
    with pytest.raises(AssertionError):
        SIGNER.sign("GET", PATH, {"expires": "1"}, 60)
