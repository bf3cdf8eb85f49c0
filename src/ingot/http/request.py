"""One call of a route: who asks, in which tenant, with what; and what a handler may answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from ingot.events.audit import Act
from ingot.http.problems import BodyTooLarge, SlowSender, UnsupportedMedia
from ingot.identity.credentials import Caller, Forbidden
from ingot.identity.grants import ANY
from ingot.identity.people import ROLE_GRANTS, Role
from ingot.kernel.errors import InvalidInput

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

CHUNK_BYTES_MIN: Final = 1024 * 1024  # What comes fast is gathered to so much: a part of a blob needs no other copy.
GATHER_SECONDS: Final = 0.02  # What has come is not kept back for longer.
QUIET_SECONDS_MAX: Final = 30.0  # Who sends nothing of a body for so long is waited for no more,
PACE_BYTES_MIN: Final = 512  # nor for who sends less than this a second,
PACE_SECONDS: Final = 60.0  # on the average of so long. Only the time that we wait is counted.


class ClientDisconnected(Exception):
    """The caller went away before it was answered."""


class Headers:
    """The headers of a request. One that was sent twice is none: nobody can tell which was meant."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        sent = list(raw)
        self._values = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent}
        self._repeated: frozenset[str] = frozenset()
        if len(self._values) < len(sent):
            times = Counter(name.decode("latin-1") for name, _ in sent)
            self._repeated = frozenset(name for name, count in times.items() if count > 1)

    def get(self, name: str) -> str | None:
        """The value of a header, or `None`."""
        return None if self._repeated and name in self._repeated else self._values.get(name)

    def require_unique(self, names: Iterable[str]) -> None:
        """Raises `InvalidInput` when one of these was sent twice: nobody can tell which was meant."""
        for name in names if self._repeated else ():
            if name in self._repeated:
                raise InvalidInput(f"the header {name} was sent twice", hint="Send it once; nothing was changed.")

    def has(self, name: str) -> bool:
        """Whether it was sent, even twice."""
        return name in self._values


class Request(msgspec.Struct, kw_only=True):
    """What a handler gets to know of the request, beside its body and its query."""

    caller: Caller
    tenant: str  # The id of the tenant the call is made in; empty where a route is open to anybody.
    headers: Headers
    path_params: dict[str, str]
    request_id: str
    method: str = "GET"  # As it was sent: HEAD comes to the routes of GET.
    trace_id: str | None = None
    client: tuple[str, int] | None = None  # Who is at the other end of the connection.
    signed_params: dict[str, str] | None = None  # The parameters of the address, where it is signed.
    resolve_address: Callable[[tuple[str, int] | None, Headers], str | None] | None = (
        None  # From where the request comes.
    )
    undo: Callable[[], Awaitable[None]] | None = None  # What to do when the answer cannot be sent.

    def act(self) -> Act:
        """Who does this, and from where, for the audit log. Each is an entry of its own."""
        address = None if self.resolve_address is None else self.resolve_address(self.client, self.headers)
        caller = self.caller
        return Act(who=caller.principal, name=caller.label, address=address, request_id=self.request_id)

    @property
    def base_url(self) -> str:
        """Where the caller reached us, by its own word."""
        return f"http://{self.headers.get('host') or ''}"

    def resolve_idempotency_key(self, key: str | None) -> str | None:
        """The key that the body of a request names, or the header that means the same. Raises `InvalidInput`."""
        header = self.headers.get("idempotency-key")
        if header is None or key == header:
            return key
        if key is not None:
            raise InvalidInput("the header Idempotency-Key and the body name different keys")
        return header

    def require_operator(self, does: str) -> None:
        """Raises `Forbidden` unless the caller acts in every tenant."""
        if not self.caller.is_operator:
            raise Forbidden(f"only an operator {does}", hint="Ask an operator, or use the operator's token.")

    def require_role(self, role: Role) -> None:
        """Raises `Forbidden` unless the caller may do all that a role may: nobody gives more than they have."""
        for grant in ROLE_GRANTS[role]:
            self.require(grant.action, grant.resource)

    def require(self, action: str, resource: str = ANY) -> None:
        """Raises `Forbidden` unless the caller may do this."""
        self.caller.require(action, resource)


def is_body_complete(receive: Receive) -> bool:
    """Whether all of a body has come, as it mostly has: it needs no clock then, which would cost more than it."""
    return not getattr(getattr(receive, "__self__", None), "more_body", True)


class RequestBody:
    """The body of a request, read as it comes: what nobody has asked for yet stays with its sender.

    `length` is its size, when the sender has told it. Raises `InvalidInput` for a part of something, which would be
    taken for the whole, and `UnsupportedMedia` for an encoded one, which others would get without a word about it.
    """

    def __init__(self, headers: Headers, receive: Receive, *, bytes_max: int | None) -> None:
        if headers.has("content-range"):
            raise InvalidInput("Content-Range is not known here", hint="Send all bytes; an upload goes on by PATCH.")
        if headers.has("content-encoding") and headers.get("content-encoding") != "identity":
            raise UnsupportedMedia("the body is encoded", hint="Send the bytes as they are, without Content-Encoding.")
        length = headers.get("content-length")
        self.length = None if length is None else int(length)
        self.content_type = headers.get("content-type")
        self._receive = receive
        self._bytes_max = bytes_max
        self._received_bytes = 0
        self._has_more = True
        self._window_seconds = 0.0
        self._window_bytes = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes in their order, gathered to 1 MiB or more when they come fast.

        Raises `Gone` when the sender has left before the end, `SlowSender` when nothing comes for 30 seconds or too
        little in a minute, and `BodyTooLarge` above what the route takes.
        """
        if self._bytes_max is not None and self.length is not None and self.length > self._bytes_max:
            raise BodyTooLarge(f"the body has {self.length} bytes; this route takes {self._bytes_max}")
        while self._has_more:
            part = await self._gather()
            if part:
                yield part

    async def _gather(self) -> bytes:
        """What has come when there is enough of it, or when no more comes for a moment."""
        if is_body_complete(self._receive):
            return await self._receive_next()
        now = asyncio.get_running_loop().time
        began = now()
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout_at(began + QUIET_SECONDS_MAX) as patience:
                while self._has_more and size < CHUNK_BYTES_MIN:
                    piece = await self._receive_next()
                    if piece and not size:
                        patience.reschedule(now() + GATHER_SECONDS)
                    pieces.append(piece)
                    size += len(piece)
        except TimeoutError:
            if not size:
                raise SlowSender(f"nothing of the body came for {QUIET_SECONDS_MAX:g} seconds") from None
        self._require_minimum_rate(now() - began, size)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _require_minimum_rate(self, seconds: float, size: int) -> None:
        """So much has come after so long. Raises `SlowSender` when it is too little for a minute, with more to come."""
        self._window_seconds += seconds
        self._window_bytes += size
        if self._has_more and self._window_seconds >= PACE_SECONDS:
            if self._window_bytes < PACE_BYTES_MIN * self._window_seconds:
                raise SlowSender(f"{self._window_bytes} bytes of the body came in {self._window_seconds:.0f} seconds")
            self._window_seconds, self._window_bytes = 0.0, 0

    async def _receive_next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece: bytes = message.get("body", b"")
        self._received_bytes += len(piece)
        if self._bytes_max is not None and self._received_bytes > self._bytes_max:
            raise BodyTooLarge(f"the body has more than {self._bytes_max} bytes")
        self._has_more = message.get("more_body", False)
        return piece


class Response(msgspec.Struct, Generic[T], frozen=True):
    """What a handler answers when the status or the headers are not always the same."""

    content: T
    status: int | None = None
    headers: dict[str, str] = {}
    cookies: tuple[str, ...] = ()


class StreamResponse(msgspec.Struct, frozen=True):
    """An answer of server-sent events, sent as they come. Each part holds whole events."""

    chunks: AsyncGenerator[bytes, None]


class BytesResponse(msgspec.Struct, frozen=True):
    """An answer of so many bytes that are not in memory. HEAD is answered without looking at `parts`.

    `parts` are closed when the caller goes away. When they raise, or do not come to `length`, the connection is cut: no
    caller takes what it has for the whole.
    """

    length: int
    chunks: AsyncIterator[bytes | memoryview]
    headers: dict[str, str] = {}
    status: int | None = None
