"""Protection against cross-site requests: a session changes something only from our own pages."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from ingot.http.request import Headers
from ingot.identity.credentials import Forbidden
from ingot.settings import is_loopback

SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


class CrossSite(Forbidden):
    """The request was sent by a page of another site."""

    code = "cross_site"
    hint = "Use the pages of this server, or send a token in the Authorization header."


def require_same_origin(headers: Headers) -> None:
    """Raise `CrossSite` unless the browser states that the request comes from one of our pages.

    Browsers state that in Sec-Fetch-Site or Origin, and a request with neither is rejected. Headers that pages set
    themselves, such as HX-Request, prove nothing.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        raise CrossSite("the request has neither Sec-Fetch-Site nor Origin")
    if site == "same-origin":
        return
    if site not in (None, "none") or (origin is not None and not _is_same_host(origin, headers.get("host"))):
        raise CrossSite("the request was sent by a page of another site")


def require_page_request(headers: Headers) -> None:
    """Raise `CrossSite` for a request that a page of another site makes without showing our page instead of itself.

    Such a page can make a browser request images, frames and prefetches without end, but can show our page only once.
    """
    if headers.get("sec-fetch-site") in (None, "none", "same-origin"):
        return
    is_shown = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if not is_shown or headers.has("sec-purpose"):
        raise CrossSite("a page of another site requested this page without showing it")


def is_loopback_host(host: str | None) -> bool:
    """Return whether a host name or address, with or without a port, is a loopback one."""
    try:
        name = urlsplit(f"//{host or ''}").hostname or ""
    except ValueError:  # An incomplete address, such as `[::1`.
        return False
    return is_loopback(name) or name.endswith(".localhost")


def _is_same_host(origin: str, host: str | None) -> bool:
    try:
        return bool(host) and urlsplit(origin).netloc == host
    except ValueError:
        return False
