"""The address of a client, with and without trusted proxies."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from ingot.http.request import Headers

FORWARDED_HEADER: Final = "x-forwarded-for"
IPV6_PREFIX_BITS: Final = 64  # One client usually owns all addresses of such a network.


class ClientAddressResolver:
    """Determines the address of a client. Uses X-Forwarded-For only as far as trusted proxies have written it."""

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._trusted_networks = [ip_network(network) for network in trusted]

    def rate_limit_key(self, client: tuple[str, int] | None, headers: Headers) -> str:
        """Return the address under which rate limits count a client: for IPv6, its network."""
        ip = self._resolve_ip(client, headers)
        if isinstance(ip, IPv6Address):
            return str(ip_network((ip, IPV6_PREFIX_BITS), strict=False))
        return "" if ip is None else str(ip)

    def resolve(self, client: tuple[str, int] | None, headers: Headers) -> str | None:
        """Return the full address of a client, or `None` if it is unknown."""
        ip = self._resolve_ip(client, headers)
        return None if ip is None else str(ip)

    def _resolve_ip(self, client: tuple[str, int] | None, headers: Headers) -> IPv4Address | IPv6Address | None:
        ip = None if client is None else _parse_ip(client[0])
        if ip is None:
            return None
        # Each proxy appends the address that it was called from, so the last entry is the nearest one.
        for forwarded in reversed(headers.get_list(FORWARDED_HEADER)):
            if not self._is_trusted(ip) or (previous_ip := _parse_ip(forwarded)) is None:
                break
            ip = previous_ip
        return ip

    def _is_trusted(self, ip: IPv4Address | IPv6Address) -> bool:
        return any(ip in network for network in self._trusted_networks)


def _parse_ip(text: str) -> IPv4Address | IPv6Address | None:
    try:
        ip = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else ip
