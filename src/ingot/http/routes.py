"""The route table: every route is declared once, with what it takes, what it answers and what it needs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import cache
from inspect import cleandoc
from typing import Any, Final, Literal, get_type_hints
from urllib.parse import unquote, unquote_to_bytes

import msgspec

from ingot.http.problems import MethodNotAllowed, NoSuchRoute
from ingot.http.request import RequestBody, StreamResponse
from ingot.identity.grants import ACTIONS
from ingot.kernel.content_types import BINARY_CONTENT_TYPE
from ingot.kernel.errors import InvalidInput
from ingot.wire.field_types import PREFIX as PREFIX  # noqa: PLC0414 - routes are declared with both

HTML: Final = "text/html"
PAGE_CONTENT_TYPES: Final = (HTML, "text/css")
BODY_BYTES_MAX: Final = 1024 * 1024
RESOURCE_SEGMENT: Final = PREFIX.count("/") + 1  # The segment behind the prefix.
_PARAMETER = re.compile(r"\{([a-z_]+)\*?\}")
_INVALID_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")

PathShape = tuple[int, str | None]  # How many segments a path has, and the one behind the prefix unless that is a name.
RateClass = Literal["read", "write", "wait"]
Handler = Callable[..., Awaitable[Any]]


class Open(msgspec.Struct, frozen=True):
    """Anybody may call it."""


class Granted(msgspec.Struct, frozen=True):
    """The caller needs a grant for this action, or for the other, on some resource. On which, the handler checks."""

    action: str
    or_action: str | None = None

    def __post_init__(self) -> None:
        assert self.action in ACTIONS, f"{self.action} is no action"
        assert self.or_action is None or self.or_action in ACTIONS, f"{self.or_action} is no action"

    @property
    def is_tenant_wide(self) -> bool:
        """Whether a grant for some resources is none: what it is about is the whole tenant, or the server."""
        return self.action.startswith(("admin.", "ops.")) and self.action != "admin.definitions"

    @property
    def description(self) -> str:
        """What it needs, for people."""
        return f"`{self.action}`" if self.or_action is None else f"`{self.action}` or `{self.or_action}`"

    def is_met(self, has: Callable[[str], bool]) -> bool:
        """Whether who has these actions may call it."""
        return has(self.action) or (self.or_action is not None and has(self.or_action))


class Authenticated(msgspec.Struct, frozen=True):
    """Anybody with a credential may call it, whatever it allows."""


class Signed(msgspec.Struct, frozen=True):
    """Anybody may call it with an address that we have signed. What the address says is the query of the route.

    The address is for one method, or for one `purpose`: then for every method of its path that has the same.
    """

    purpose: str | None = None


Needs = Open | Authenticated | Granted | Signed


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One route. The handler's annotations tell its types: `body`, `query`, and what it answers.

    The last segment of its path can be a name with a star, as in `{key*}`: it takes the rest of the path, slashes and
    all. A handler with a `body: Body` reads it by itself: `takes` is what it should be, of a form `form` names the
    fields, the file last, and `body_bytes_max` may be `None`, for as much as comes.

    `waits` is for handlers that wait for something to happen: they are canceled when the caller goes away. `media` is
    what the bytes of an answer are, where it is no JSON. `headers` are those that it takes and others do not. `example`
    is a body that can be sent. `by_address` bounds how often anybody may call it from one address, where it is open.
    """

    method: str
    path: str
    handler: Handler
    needs: Needs
    tag: str
    status: int = 200
    other_statuses: tuple[int, ...] = ()
    rate: RateClass = "read"
    waits: bool = False
    body_bytes_max: int | None = BODY_BYTES_MAX
    body_content_type: str = BINARY_CONTENT_TYPE
    form_fields: tuple[str, ...] = ()
    response_content_type: str | None = None
    headers: tuple[str, ...] = ()
    limit_by_address: bool = False
    example: object = None

    @property
    def title(self) -> str:
        """What it does, in a sentence: that of its handler."""
        return cleandoc(self.handler.__doc__ or "").split("\n", 1)[0]

    @property
    def is_page(self) -> bool:
        """Whether it is made for people in a browser."""
        return self.response_content_type in PAGE_CONTENT_TYPES

    @property
    def template(self) -> str:
        """Its path with nothing but names in it."""
        return self.path.replace("*}", "}")

    @property
    def path_parameters(self) -> list[str]:
        """The names that stand in its path."""
        return _PARAMETER.findall(self.path)

    @property
    def is_stream_only(self) -> bool:
        """Whether all that it answers is a stream."""
        return self.handler_types()["return"] is StreamResponse

    def handler_types(self) -> dict[str, Any]:
        """The annotations of its handler."""
        return _types_of(getattr(self.handler, "__func__", self.handler))


@cache
def _types_of(handler: Handler) -> dict[str, Any]:
    return get_type_hints(handler)


def routes_of(room: str, below: str = PREFIX, needs: Needs | None = None, **same: Any) -> Callable[..., Route]:
    """Return a function that declares routes of a room, with what is the same for all of them.

    Unless it is told otherwise, GET counts as `read`, and other methods count as `write`.
    """

    def route(method: str, path: str, handler: Handler, own_needs: Needs | None = None, **own: Any) -> Route:
        needed = own_needs or needs
        assert needed is not None, f"{method} {path} does not say what it needs"
        given = {"rate": "read" if method == "GET" else "write", **same, **own}
        return Route(method=method, path=below + path, handler=handler, needs=needed, tag=room, **given)

    return route


class InvalidRoute(Exception):
    """A route does not say all that it must."""


class PathPattern(msgspec.Struct, frozen=True):
    """The segments of a path; where a name stands in it, `None`."""

    segments: tuple[str | None, ...]
    names: tuple[str, ...]
    routes_by_method: dict[str, Route]

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        """What stands in its places, or `None` when it is another path."""
        values = []
        for own, given in zip(self.segments, segments, strict=True):
            if own is None and given:
                values.append(given)
            elif own != given:
                return None
        return dict(zip(self.names, values, strict=True))


class RestPathPattern(msgspec.Struct, frozen=True):
    """A path whose last name takes the rest. `before` is what it begins with."""

    prefix: PathPattern
    name: str

    def match(self, path: str, segments: Sequence[str]) -> dict[str, str] | None:
        """What stands in its places, or `None` when it is another path. Raises `InvalidInput`."""
        count = len(self.prefix.segments)
        if len(segments) <= count or (found := self.prefix.match(segments[:count])) is None:
            return None
        return {**found, self.name: _decode_rest(path.split("/", count)[count], self.name)}


class RouteTable:
    """All routes, found by method and path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes: Sequence[Route] = list(routes)
        self._fixed_paths: dict[tuple[str, ...], dict[str, Route]] = {}
        self._patterns: dict[PathShape, list[PathPattern]] = {}
        self._rest_patterns: list[RestPathPattern] = []
        patterns: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            _check_route(route)
            known = () if route.path_parameters else tuple(route.path.split("/"))
            of_path = self._fixed_paths.setdefault(known, {}) if known else patterns.setdefault(route.path, {})
            if route.method in of_path:
                raise InvalidRoute(f"{route.method} {route.path} is declared twice")
            of_path[route.method] = route
        for path, methods in patterns.items():
            segments = tuple(None if _PARAMETER.fullmatch(part) else part for part in path.split("/"))
            names = tuple(_PARAMETER.findall(path))
            if path.endswith("*}"):
                self._rest_patterns.append(RestPathPattern(PathPattern(segments[:-1], names[:-1], methods), names[-1]))
            else:
                self._patterns.setdefault(_shape_of(segments), []).append(PathPattern(segments, names, methods))

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route for a request, and what stands in the places of its path.

        The path is as it was sent: a `%2F` in it belongs to a name and does not divide. HEAD is answered as GET is,
        without the body. Raises `NoSuchRoute`, `MethodNotAllowed`, or `InvalidInput` for the rest of a path that is
        no name.
        """
        segments = path.split("/")
        if "%" in path:
            segments = [unquote(segment) for segment in segments]
        methods = self._fixed_paths.get(tuple(segments))
        values: dict[str, str] = {}
        if methods is None:
            for pattern in self._candidates(segments):
                if (found := pattern.match(segments)) is not None:
                    methods, values = pattern.routes_by_method, found
                    break
            else:
                methods, values = self._find_rest(path, segments)
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            raise MethodNotAllowed(_allowed_methods(methods))
        return route, values

    def _candidates(self, segments: Sequence[str]) -> Iterator[PathPattern]:
        """Patterns that may fit; those with a name behind the prefix last."""
        shape = _shape_of(segments)
        yield from self._patterns.get(shape, ())
        yield from self._patterns.get((shape[0], None), ())

    def _find_rest(self, path: str, segments: Sequence[str]) -> tuple[dict[str, Route], dict[str, str]]:
        for pattern in self._rest_patterns:
            if (found := pattern.match(path, segments)) is not None:
                return pattern.prefix.routes_by_method, found
        raise NoSuchRoute(f"there is nothing at {path[:100]}")


def _shape_of(segments: Sequence[str | None]) -> PathShape:
    return len(segments), segments[RESOURCE_SEGMENT] if len(segments) > RESOURCE_SEGMENT else ""


def _decode_rest(sent: str, name: str) -> str:
    """The rest of a path as the name that it is. Raises `InvalidInput`."""
    try:
        rest = unquote_to_bytes(sent).decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"the {name} in the path is no UTF-8") from None
    if not rest or "\0" in rest or _INVALID_ESCAPE.search(sent):
        fault = "is empty" if not rest else "holds NUL" if "\0" in rest else "has a % that escapes nothing"
        raise InvalidInput(f"the {name} in the path {fault}", hint="Escape what is no part of a path, as in %20.")
    return rest


def _allowed_methods(methods: dict[str, Route]) -> list[str]:
    """The methods that a path takes: HEAD wherever it takes GET, but for streams."""
    got = methods.get("GET")
    return sorted([*methods, *(["HEAD"] if got is not None and not got.is_stream_only else [])])


def _check_route(route: Route) -> None:
    """What is not declared does not start."""
    if not route.title:
        raise InvalidRoute(f"{route.method} {route.path} has a handler without a docstring")
    if "return" not in route.handler_types():
        raise InvalidRoute(f"{route.method} {route.path} does not say what it answers")
    segments = route.path.split("/")
    if any("{" in part and not _PARAMETER.fullmatch(part) for part in segments):
        raise InvalidRoute(f"{route.method} {route.path} has a name that is not a whole segment")
    if any("*" in part for part in segments[:-1]):
        raise InvalidRoute(f"{route.method} {route.path} goes on behind the rest of the path")
    if route.body_bytes_max is None and route.handler_types().get("body") is not RequestBody:
        raise InvalidRoute(f"{route.method} {route.path} has no bound for its body")
