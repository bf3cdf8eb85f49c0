"""Peers: from which address a request comes, whatever it says of itself."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from ingot.http.call import Headers

FORWARDED: Final = "x-forwarded-for"
HOUSE_BITS: Final = 64  # Who has one address of IPv6 has all of these.


class Peers:
    """Tells where requests come from. Only a proxy that is trusted is believed when it says on whose behalf it asks."""

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._trusted = [ip_network(one) for one in trusted]

    def of(self, client: tuple[str, int] | None, headers: Headers) -> str:
        """The name of who is at the other end: an address, or the beginning that addresses of one house share."""
        peer = self._find(client, headers)
        if isinstance(peer, IPv6Address):
            return str(ip_network((peer, HOUSE_BITS), strict=False))
        return "" if peer is None else str(peer)

    def address(self, client: tuple[str, int] | None, headers: Headers) -> str | None:
        """The whole address of who is at the other end, or `None` when there is none."""
        peer = self._find(client, headers)
        return None if peer is None else str(peer)

    def _find(self, client: tuple[str, int] | None, headers: Headers) -> IPv4Address | IPv6Address | None:
        peer = None if client is None else _address(client[0])
        if peer is None:
            return None
        for said in reversed((headers.get(FORWARDED) or "").split(",")):
            if not self._trusts(peer) or (before := _address(said.strip())) is None:
                break
            peer = before
        return peer

    def _trusts(self, peer: IPv4Address | IPv6Address) -> bool:
        return any(peer in network for network in self._trusted)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found
