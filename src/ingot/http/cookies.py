"""Cookies: what a browser keeps for us. None is seen by scripts, or sent by what another site embeds."""

from __future__ import annotations

from typing import Final

from ingot.http.request import Headers

SESSION_COOKIE: Final = (
    "__Host-ingot_session"  # A browser takes such a name only over https, or from the machine itself.
)
LOGIN_COOKIE: Final = "__Host-ingot_login"
COOKIE_ATTRIBUTES: Final = "Path=/; Secure; HttpOnly; SameSite=Lax"


def read_cookie(headers: Headers, name: str) -> str | None:
    """The value of a cookie, or `None`; also when there are two of that name, as nobody can tell which is ours."""
    sent = headers.get("cookie")
    if sent is None:
        return None
    found = [
        value.strip() for key, _, value in (part.partition("=") for part in sent.split(";")) if key.strip() == name
    ]
    return found[0] if len(found) == 1 else None


def set_cookie(name: str, value: str, seconds: float | None = None) -> str:
    """The header that makes a browser keep a cookie, for some time or until it is closed."""
    age = "" if seconds is None else f"; Max-Age={seconds:.0f}"
    return f"{name}={value}; {COOKIE_ATTRIBUTES}{age}"


def delete_cookie(name: str) -> str:
    """The header that makes a browser forget a cookie."""
    return set_cookie(name, "", 0)
