"""The route table. Each route is declared once, with its handler, types, limits and required grant."""

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
RESOURCE_SEGMENT: Final = PREFIX.count("/") + 1  # Index of the first segment after the prefix, such as `jobs`.
ENCODED_NUL: Final = "%00"  # Databases cannot store NUL, so that no path and no query contains it.
_PARAMETER = re.compile(r"\{([a-z_]+)\*?\}")
_INVALID_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")

# The number of segments of a path, and its first segment after the prefix, or `None` if that is a parameter.
PathShape = tuple[int, str | None]
RateClass = Literal["read", "write", "wait"]
Handler = Callable[..., Awaitable[Any]]


class Open(msgspec.Struct, frozen=True):
    """The route needs no credential."""


class Granted(msgspec.Struct, frozen=True):
    """The caller needs a grant for one of these actions on some resource. The handler checks the exact resource."""

    action: str
    or_action: str | None = None

    def __post_init__(self) -> None:
        assert self.action in ACTIONS, f"{self.action} is not an action"
        assert self.or_action is None or self.or_action in ACTIONS, f"{self.or_action} is not an action"

    @property
    def is_tenant_wide(self) -> bool:
        """Whether the grant must cover all resources, because the route affects the whole tenant or server."""
        return self.action.startswith(("admin.", "ops.")) and self.action != "admin.definitions"

    @property
    def description(self) -> str:
        """The required actions, for documentation."""
        return f"`{self.action}`" if self.or_action is None else f"`{self.action}` or `{self.or_action}`"

    def is_met(self, has_grant: Callable[[str], bool]) -> bool:
        """Return whether a caller with these grants may use the route."""
        return has_grant(self.action) or (self.or_action is not None and has_grant(self.or_action))


class Authenticated(msgspec.Struct, frozen=True):
    """The route needs a credential, but no grant."""


class Signed(msgspec.Struct, frozen=True):
    """The route needs a signed URL and no other credential. The parameters of the URL become its query.

    A URL is signed for one method. With a `purpose` it is valid for all methods of its path with the same purpose.
    """

    purpose: str | None = None


Needs = Open | Authenticated | Granted | Signed


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One route. The annotations of its handler are its types: `body`, `query` and the response.

    The last segment of the path can be a parameter with a star, such as `{key*}`. It matches the rest of the path,
    including slashes.

    A handler with `body: RequestBody` reads the body itself. For such a route, `body_content_type` documents the body,
    `form_fields` lists the fields of a form with the file last, and `body_bytes_max` can be `None` for no limit.

    A handler with `waits` is canceled when the client disconnects. `headers` are request headers that only some routes
    support. `response_content_type` is the content type of a response other than JSON. `limit_by_address` limits the
    requests of each browser and client address to a page that needs no credential. `example` is a valid body.
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
        """The first line of the docstring of the handler."""
        return cleandoc(self.handler.__doc__ or "").split("\n", 1)[0]

    @property
    def is_page(self) -> bool:
        """Whether the route is for browsers, so that the API documentation leaves it out."""
        return self.response_content_type in PAGE_CONTENT_TYPES

    @property
    def template(self) -> str:
        """The path with plain parameter names, without stars."""
        return self.path.replace("*}", "}")

    @property
    def path_parameters(self) -> list[str]:
        """The names of the parameters in the path."""
        return _PARAMETER.findall(self.path)

    @property
    def is_stream_only(self) -> bool:
        """Whether every response is a stream."""
        return self.handler_types()["return"] is StreamResponse

    def handler_types(self) -> dict[str, Any]:
        """Return the annotations of the handler."""
        return _types_of(getattr(self.handler, "__func__", self.handler))


@cache
def _types_of(handler: Handler) -> dict[str, Any]:
    return get_type_hints(handler)


def route_factory(tag: str, prefix: str = PREFIX, needs: Needs | None = None, **shared: Any) -> Callable[..., Route]:
    """Return a function that declares routes with a common tag, path prefix and other fields of `Route`.

    By default, GET counts against the rate `read`, and other methods count against `write`.
    """

    def route(method: str, path: str, handler: Handler, own_needs: Needs | None = None, **own: Any) -> Route:
        route_needs = own_needs or needs
        assert route_needs is not None, f"{method} {path} has no `needs`"
        fields = {"rate": "read" if method == "GET" else "write", **shared, **own}
        return Route(method=method, path=prefix + path, handler=handler, needs=route_needs, tag=tag, **fields)

    return route


class InvalidRoute(Exception):
    """The declaration of a route is incomplete or wrong."""


class PathPattern(msgspec.Struct, frozen=True):
    """A path with parameters, which are `None` in `segments`."""

    segments: tuple[str | None, ...]
    names: tuple[str, ...]
    routes_by_method: dict[str, Route]

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        """Return the parameters of a path, or `None` if it does not match."""
        values = []
        for expected, segment in zip(self.segments, segments, strict=True):
            if expected is None and segment:
                values.append(segment)
            elif expected != segment:
                return None
        return dict(zip(self.names, values, strict=True))


class RestPathPattern(msgspec.Struct, frozen=True):
    """A path whose last parameter matches the rest of the path after `prefix`."""

    prefix: PathPattern
    name: str

    def match(self, path: str, segments: Sequence[str]) -> dict[str, str] | None:
        """Return the parameters of a path, or `None` if it does not match. Raises `InvalidInput`."""
        count = len(self.prefix.segments)
        if len(segments) <= count or (params := self.prefix.match(segments[:count])) is None:
            return None
        return {**params, self.name: _decode_rest(path.split("/", count)[count], self.name)}


class RouteTable:
    """All routes of a server, by method and path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes: Sequence[Route] = list(routes)
        self._fixed_paths: dict[tuple[str, ...], dict[str, Route]] = {}
        self._patterns: dict[PathShape, list[PathPattern]] = {}
        self._rest_patterns: list[RestPathPattern] = []
        patterns: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            _check_route(route)
            fixed = () if route.path_parameters else tuple(route.path.split("/"))
            methods = self._fixed_paths.setdefault(fixed, {}) if fixed else patterns.setdefault(route.path, {})
            if route.method in methods:
                raise InvalidRoute(f"{route.method} {route.path} is declared twice")
            methods[route.method] = route
        for path, methods in patterns.items():
            segments = tuple(None if _PARAMETER.fullmatch(part) else part for part in path.split("/"))
            names = tuple(_PARAMETER.findall(path))
            if path.endswith("*}"):
                self._rest_patterns.append(RestPathPattern(PathPattern(segments[:-1], names[:-1], methods), names[-1]))
            else:
                self._patterns.setdefault(_shape_of(segments), []).append(PathPattern(segments, names, methods))

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return the route of a request and the parameters in its path.

        The path must be as it was sent, because `%2F` belongs to a parameter and does not separate segments. HEAD is
        handled by the GET route. Raises `NoSuchRoute`, `MethodNotAllowed`, or `InvalidInput` for NUL and for an invalid
        rest of a path.
        """
        segments = path.split("/")
        if "%" in path:
            if ENCODED_NUL in path:
                raise InvalidInput("the path contains NUL", hint="Remove %00. No name contains NUL.")
            segments = [unquote(segment) for segment in segments]
        methods = self._fixed_paths.get(tuple(segments))
        values: dict[str, str] = {}
        if methods is None:
            for pattern in self._candidates(segments):
                if (params := pattern.match(segments)) is not None:
                    methods, values = pattern.routes_by_method, params
                    break
            else:
                methods, values = self._find_rest(path, segments)
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            raise MethodNotAllowed(_allowed_methods(methods))
        return route, values

    def _candidates(self, segments: Sequence[str]) -> Iterator[PathPattern]:
        """Yield patterns that may match. Those with a parameter directly after the prefix come last."""
        shape = _shape_of(segments)
        yield from self._patterns.get(shape, ())
        yield from self._patterns.get((shape[0], None), ())

    def _find_rest(self, path: str, segments: Sequence[str]) -> tuple[dict[str, Route], dict[str, str]]:
        for pattern in self._rest_patterns:
            if (params := pattern.match(path, segments)) is not None:
                return pattern.prefix.routes_by_method, params
        raise NoSuchRoute(f"no route has the path {path[:100]}")


def _shape_of(segments: Sequence[str | None]) -> PathShape:
    return len(segments), segments[RESOURCE_SEGMENT] if len(segments) > RESOURCE_SEGMENT else ""


def _decode_rest(encoded: str, name: str) -> str:
    """Decode the rest of a path. Raises `InvalidInput`."""
    try:
        rest = unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"the {name} in the path is not valid UTF-8") from None
    if not rest or _INVALID_ESCAPE.search(encoded):
        fault = "contains % without two hex digits" if rest else "is empty"
        raise InvalidInput(f"the {name} in the path {fault}", hint="Percent-encode special characters, as in %20.")
    return rest


def _allowed_methods(methods: dict[str, Route]) -> list[str]:
    """Return the methods that a path supports. GET implies HEAD, except for streams."""
    get_route = methods.get("GET")
    return sorted([*methods, *(["HEAD"] if get_route is not None and not get_route.is_stream_only else [])])


def _check_route(route: Route) -> None:
    """Check the declaration of a route. Raises `InvalidRoute`."""
    if not route.title:
        raise InvalidRoute(f"{route.method} {route.path} has a handler without a docstring")
    if "return" not in route.handler_types():
        raise InvalidRoute(f"{route.method} {route.path} has a handler without a return annotation")
    segments = route.path.split("/")
    if any("{" in part and not _PARAMETER.fullmatch(part) for part in segments):
        raise InvalidRoute(f"{route.method} {route.path} has a parameter that is not a whole segment")
    if any("*" in part for part in segments[:-1]):
        raise InvalidRoute(f"{route.method} {route.path} has segments after the rest of the path")
    if route.body_bytes_max is None and route.handler_types().get("body") is not RequestBody:
        raise InvalidRoute(f"{route.method} {route.path} has no limit for the size of its body")
