"""Where a request comes from, as browsers tell: what a page of another site sends is not what its reader means."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from ingot.http.request import Headers
from ingot.identity.credentials import Forbidden
from ingot.settings import is_loopback as is_this_machine

SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


class CrossSite(Forbidden):
    """The request comes from a page of another site."""

    code = "cross_site"
    hint = "With a session only our own pages change something; programs send a token in Authorization."


def require_same_origin(headers: Headers) -> None:
    """Raises `CrossSite` unless the browser says that the request comes from a page of ours.

    A browser that says nothing is not believed: a header such as HX-Request is no proof, as any page can set it.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        raise CrossSite("the request does not say from which site it comes")
    if site == "same-origin":
        return
    if site not in (None, "none") or (origin is not None and not _is_same_host(origin, headers.get("host"))):
        raise CrossSite("the request comes from a page of another site")


def is_loopback_host(host: str | None) -> bool:
    """Whether a name or address, with or without a port, is that of the machine itself."""
    try:
        name = urlsplit(f"//{host or ''}").hostname or ""
    except ValueError:  # An address that is only begun, as `[::1`.
        return False
    return is_this_machine(name) or name.endswith(".localhost")


def _is_same_host(origin: str, host: str | None) -> bool:
    try:
        return bool(host) and urlsplit(origin).netloc == host
    except ValueError:
        return False
