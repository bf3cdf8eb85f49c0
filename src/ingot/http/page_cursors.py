"""Cursors in requests and responses: encrypted, and valid only for the caller and the list that they were returned for.

A cursor of a service contains a position in plain text, which may be the name of an object that the caller may not see.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from ingot.http.request import Request
from ingot.http.routes import Route
from ingot.kernel.cursor_cipher import CursorCipher
from ingot.kernel.pages import InvalidCursor


def takes_cursor(route: Route) -> bool:
    """Return whether the query or the body of a route has a cursor. Its response then has the next one."""
    types = route.handler_types()
    declared = [types.get(name) for name in ("query", "body")]
    return any(hasattr(each, "cursor") for one in declared for each in (get_args(one) or (one,)))


def open_cursor(cursors: CursorCipher, route: Route, request: Request, arguments: dict[str, Any]) -> None:
    """Replace the cursor in the arguments of a handler with that of the service. Raises `InvalidCursor`."""
    for name in ("query", "body"):
        cursor = getattr(arguments.get(name), "cursor", None)
        if cursor is not None:
            position = cursors.open(cursor, bound_to=_binding(route, request))
            try:
                text = position.decode()
            except UnicodeDecodeError:
                raise InvalidCursor from None
            arguments[name] = msgspec.structs.replace(arguments[name], cursor=text)


def seal_cursor(cursors: CursorCipher, route: Route, request: Request, page: Any) -> Any:
    """Return a page with an encrypted cursor."""
    if page.next_cursor is None:
        return page
    sealed = cursors.seal(page.next_cursor.encode(), bound_to=_binding(route, request))
    return msgspec.structs.replace(page, next_cursor=sealed)


def _binding(route: Route, request: Request) -> tuple[str, ...]:
    """Return what a cursor is valid for. The cursor of the service is also bound to the filters of the list."""
    return "cursor", request.tenant, request.caller.principal, route.path
