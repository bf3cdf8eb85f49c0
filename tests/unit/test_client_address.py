"""The address of a client: forwarded addresses count only from trusted proxies."""

from __future__ import annotations

import pytest

from ingot.http.client_address import ClientAddressResolver
from ingot.http.request import Headers


def rate_limit_key(address: str | None, *forwarded: str, trusted: tuple[str, ...] = ()) -> str:
    headers = Headers([(b"x-forwarded-for", value.encode()) for value in forwarded])
    return ClientAddressResolver(trusted).rate_limit_key(None if address is None else (address, 1234), headers)


@pytest.mark.parametrize(
    ("address", "forwarded", "trusted", "expected"),
    [
        ("192.0.2.1", "198.51.100.1", (), "192.0.2.1"),
        ("10.0.0.1", "198.51.100.1", ("10.0.0.0/8",), "198.51.100.1"),
        ("10.0.0.1", "203.0.113.9, 198.51.100.1", ("10.0.0.0/8",), "198.51.100.1"),
        ("10.0.0.1", "203.0.113.9, 198.51.100.1, 10.0.0.2", ("10.0.0.0/8",), "198.51.100.1"),
        ("10.0.0.1", "203.0.113.9, nonsense", ("10.0.0.0/8",), "10.0.0.1"),
        ("10.0.0.1", "", ("10.0.0.0/8",), "10.0.0.1"),
        ("10.0.0.1", "10.0.0.2", ("10.0.0.0/8",), "10.0.0.2"),
        ("::ffff:10.0.0.1", "198.51.100.1", ("10.0.0.0/8",), "198.51.100.1"),
        ("2001:db8:1:2:3:4:5:6", "", (), "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "", (), "fe80::/64"),
        (None, "198.51.100.1", ("10.0.0.0/8",), ""),
    ],
)
def test_a_forwarded_address_is_used_only_from_a_trusted_proxy(
    address: str | None, forwarded: str, trusted: tuple[str, ...], expected: str
) -> None:
    assert rate_limit_key(address, forwarded, trusted=trusted) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6"),
        (None, None),
        ("a path", None),
    ],
)
def test_resolve_returns_the_whole_address(address: str | None, expected: str | None) -> None:
    assert ClientAddressResolver().resolve(None if address is None else (address, 1234), Headers([])) == expected


@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [
        (("203.0.113.9", "198.51.100.1"), "198.51.100.1"),
        (("203.0.113.9", "198.51.100.1, 10.0.0.2"), "198.51.100.1"),
        (("203.0.113.9", "198.51.100.1", "10.0.0.2", "10.0.0.3"), "198.51.100.1"),
        (("203.0.113.9", "nonsense"), "10.0.0.1"),
    ],
)
def test_several_forwarded_headers_are_one_list(forwarded: tuple[str, ...], expected: str) -> None:
    assert rate_limit_key("10.0.0.1", *forwarded, trusted=("10.0.0.0/8",)) == expected


def test_several_forwarded_headers_of_an_untrusted_client_are_ignored() -> None:
    assert rate_limit_key("192.0.2.1", "198.51.100.1", "10.0.0.2", trusted=("10.0.0.0/8",)) == "192.0.2.1"
