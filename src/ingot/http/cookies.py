"""Cookies of signed-in browsers. Scripts cannot read them, and browsers send none with forms of other sites."""

from __future__ import annotations

from typing import Final

from ingot.http.request import Headers

# Browsers accept the prefix `__Host-` only over HTTPS or from the local machine.
SESSION_COOKIE: Final = "__Host-ingot_session"
LOGIN_COOKIE: Final = "__Host-ingot_login"
BROWSER_COOKIE: Final = "__Host-ingot_browser"  # Marks a browser in which somebody signed in before.
BROWSER_SECONDS: Final = 400 * 86_400.0  # The maximum that browsers allow.
COOKIE_ATTRIBUTES: Final = "Path=/; Secure; HttpOnly; SameSite=Lax"


def read_cookie(headers: Headers, name: str) -> str | None:
    """Return the value of a cookie. `None` if it is missing, or ambiguous because it was sent twice."""
    cookies = headers.get("cookie")
    if cookies is None:
        return None
    values = [
        value.strip() for key, _, value in (part.partition("=") for part in cookies.split(";")) if key.strip() == name
    ]
    return values[0] if len(values) == 1 else None


def set_cookie(name: str, value: str, seconds: float | None = None) -> str:
    """Return the Set-Cookie value that sets a cookie, for this time or until the browser is closed."""
    age = "" if seconds is None else f"; Max-Age={seconds:.0f}"
    return f"{name}={value}; {COOKIE_ATTRIBUTES}{age}"


def delete_cookie(name: str) -> str:
    """Return the Set-Cookie value that deletes a cookie."""
    return set_cookie(name, "", 0)
