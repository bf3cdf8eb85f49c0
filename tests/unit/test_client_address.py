"""Where a request comes from: what a stranger says of it counts for nothing."""

from __future__ import annotations

import pytest

from ingot.http.client_address import ClientAddressResolver
from ingot.http.request import Headers


def peer(address: str | None, *forwarded: str, trusted: tuple[str, ...] = ()) -> str:
    headers = Headers([(b"x-forwarded-for", value.encode()) for value in forwarded])
    return ClientAddressResolver(trusted).rate_limit_key(None if address is None else (address, 1234), headers)


@pytest.mark.parametrize(
    ("address", "forwarded", "trusted", "found"),
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
def test_only_a_trusted_proxy_is_believed(
    address: str | None, forwarded: str, trusted: tuple[str, ...], found: str
) -> None:
    assert peer(address, forwarded, trusted=trusted) == found


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6"),
        (None, None),
        ("a path", None),
    ],
)
def test_the_whole_address_is_told_to_who_asks_for_it(address: str | None, found: str | None) -> None:
    assert ClientAddressResolver().resolve(None if address is None else (address, 1234), Headers([])) == found


def test_what_is_said_twice_is_said_by_nobody() -> None:
    assert peer("10.0.0.1", "192.0.2.1", "192.0.2.2", trusted=("10.0.0.0/8",)) == "10.0.0.1"
