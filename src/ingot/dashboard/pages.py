"""How a page is made: a template, and headers that let nothing in that is not ours."""

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
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
}
SIGN_IN_PATH: Final = "/auth/login"
CAUSE_CHARS_MAX: Final = 300
log = structlog.get_logger("ingot.auth")


def render_page(template: str, *, status: int = 200, cookies: tuple[str, ...] = (), **values: Any) -> Response[bytes]:
    """A page made of a template with these values, all of which are taken for text."""
    text = _templates().get_template(f"{template}.html").render(values)
    return Response(text.encode(), status=status, headers=HEADERS, cookies=cookies)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - a server without people needs none

    return Environment(
        loader=PackageLoader("ingot.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def redirect(url: str, *, cookies: tuple[str, ...] = ()) -> Response[bytes]:
    """The answer that leads elsewhere."""
    return Response(b"", status=303, headers={**HEADERS, "location": url}, cookies=cookies)


def error_page(error: IngotError, path: str | None) -> Response[bytes]:
    """What people see of an error. Who is not signed in is led to where one signs in, and back to this path.

    Without a path it was a button: what it sent is not sent again by itself, and a form does not lead to the provider.
    """
    back = quote(safe_redirect_path(path or DEFAULT_PAGE), safe="/")
    if isinstance(error, SessionStale):
        if path is not None:
            return redirect(f"/auth/start?silent=true&next={back}")
        error = SessionStale("your session had to be renewed first", hint="Go back, and press the button again.")
    elif isinstance(error, Unauthorized):
        return redirect(f"{SIGN_IN_PATH}?next={back}")
    _log_refusal(error)
    return render_page("error", status=error.status, error=error, refused=isinstance(error, SignInRefused))


def _log_refusal(error: IngotError) -> None:
    """Tell whoever runs the server why somebody did not come in: they do not see the page."""
    if isinstance(error, ProviderUnavailable):
        cause = None if error.__cause__ is None else str(error.__cause__)[:CAUSE_CHARS_MAX]
        log.warning("sign_in_failed", code=error.code, detail=error.detail, cause=cause)
    elif isinstance(error, SignInRefused):
        log.info("sign_in_refused", code=error.code, detail=error.detail)
