"""Rendering of pages from templates, with headers that block foreign content."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import structlog

from ingot.http.request import Response
from ingot.identity.credentials import SessionStale, Unauthorized
from ingot.identity.people import SignInRefused
from ingot.identity.sessions import DEFAULT_PAGE, safe_redirect_path
from ingot.kernel.errors import IngotError
from ingot.outbound.errors import ProviderUnavailable

if TYPE_CHECKING:
    from jinja2 import Environment

STYLE: Final = files("ingot.dashboard").joinpath("static/ingot.css").read_bytes()
HEADERS: Final = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
SIGN_IN_PATH: Final = "/auth/login"
CAUSE_CHARS_MAX: Final = 300
log = structlog.get_logger("ingot.auth")


def render_page(template: str, *, status: int = 200, cookies: tuple[str, ...] = (), **values: Any) -> Response[bytes]:
    """Render a template with these values, which are escaped."""
    text = _templates().get_template(f"{template}.html").render(values)
    return Response(text.encode(), status=status, headers=HEADERS, cookies=cookies)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - only servers with pages need it

    return Environment(
        loader=PackageLoader("ingot.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def redirect(url: str, *, cookies: tuple[str, ...] = (), clears_browser: bool = False) -> Response[bytes]:
    """Return a redirect to this URL. With `clears_browser`, the browser deletes what it stored of this server."""
    headers = {**HEADERS, "location": url}
    if clears_browser:  # Not the cookies: browsers would also delete those of other hosts of the domain.
        headers["clear-site-data"] = '"cache", "storage"'
    return Response(b"", status=303, headers=headers, cookies=cookies)


def error_page(error: IngotError, path: str | None) -> Response[bytes]:
    """Return the page for an error, or a redirect to the sign-in page if the person is not signed in.

    `path` is the page to return to after the sign-in. It is `None` if the request came from a form, which is not sent
    again automatically and from which the content security policy allows no redirect to the provider.
    """
    next_page = quote(safe_redirect_path(path or DEFAULT_PAGE), safe="/")
    if isinstance(error, SessionStale):
        if path is not None:
            return redirect(f"/auth/start?silent=true&next={next_page}")
        error = SessionStale("your session must be renewed first", hint="Go back and press the button again.")
    elif isinstance(error, Unauthorized):
        return redirect(f"{SIGN_IN_PATH}?next={next_page}")
    _log_refusal(error)
    return render_page("error", status=error.status, error=error, is_sign_in_refused=isinstance(error, SignInRefused))


def _log_refusal(error: IngotError) -> None:
    """Log why a sign-in failed, because the operator of the server does not see the page."""
    if isinstance(error, ProviderUnavailable):
        cause = None if error.__cause__ is None else str(error.__cause__)[:CAUSE_CHARS_MAX]
        log.warning("sign_in_failed", code=error.code, detail=error.detail, cause=cause)
    elif isinstance(error, SignInRefused):
        log.info("sign_in_refused", code=error.code, detail=error.detail)
