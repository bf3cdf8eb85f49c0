"""Peers: from which address a request comes, whatever it says of itself."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from ingot.http.request import Headers

FORWARDED_HEADER: Final = "x-forwarded-for"
IPV6_PREFIX_BITS: Final = 64  # Who has one address of IPv6 has all of these.


class ClientAddressResolver:
    """Tells where requests come from. Only a proxy that is trusted is believed when it says on whose behalf it asks."""

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._trusted_networks = [ip_network(one) for one in trusted]

    def rate_limit_key(self, client: tuple[str, int] | None, headers: Headers) -> str:
        """The name of who is at the other end: an address, or the beginning that addresses of one house share."""
        peer = self._resolve_ip(client, headers)
        if isinstance(peer, IPv6Address):
            return str(ip_network((peer, IPV6_PREFIX_BITS), strict=False))
        return "" if peer is None else str(peer)

    def resolve(self, client: tuple[str, int] | None, headers: Headers) -> str | None:
        """The whole address of who is at the other end, or `None` when there is none."""
        peer = self._resolve_ip(client, headers)
        return None if peer is None else str(peer)

    def _resolve_ip(self, client: tuple[str, int] | None, headers: Headers) -> IPv4Address | IPv6Address | None:
        peer = None if client is None else _parse_ip(client[0])
        if peer is None:
            return None
        for said in reversed((headers.get(FORWARDED_HEADER) or "").split(",")):
            if not self._is_trusted(peer) or (before := _parse_ip(said.strip())) is None:
                break
            peer = before
        return peer

    def _is_trusted(self, peer: IPv4Address | IPv6Address) -> bool:
        return any(peer in network for network in self._trusted_networks)


def _parse_ip(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found
