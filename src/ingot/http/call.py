"""One call of a route: who asks, in which tenant, with what; and what a handler may answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from ingot.events.audit import Act
from ingot.identity.credentials import Caller, Forbidden
from ingot.identity.grants import ANY
from ingot.identity.people import ROLE_GRANTS, Role
from ingot.kernel.errors import InvalidInput

T = TypeVar("T")


class Headers:
    """The headers of a request. One that was sent twice is none: nobody can tell which was meant."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        sent = list(raw)
        self._values = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent}
        self._twice: frozenset[str] = frozenset()
        if len(self._values) < len(sent):
            times = Counter(name.decode("latin-1") for name, _ in sent)
            self._twice = frozenset(name for name, count in times.items() if count > 1)

    def get(self, name: str) -> str | None:
        """The value of a header, or `None`."""
        return None if self._twice and name in self._twice else self._values.get(name)

    def expect_once(self, names: Iterable[str]) -> None:
        """Raises `InvalidInput` when one of these was sent twice: nobody can tell which was meant."""
        for name in names if self._twice else ():
            if name in self._twice:
                raise InvalidInput(f"the header {name} was sent twice", hint="Send it once; nothing was changed.")

    def has(self, name: str) -> bool:
        """Whether it was sent, even twice."""
        return name in self._values


class Call(msgspec.Struct, kw_only=True):
    """What a handler gets to know of the request, beside its body and its query."""

    caller: Caller
    tenant: str  # The id of the tenant the call is made in; empty where a route is open to anybody.
    headers: Headers
    path: dict[str, str]
    request_id: str
    trace_id: str | None = None
    client: tuple[str, int] | None = None  # Who is at the other end of the connection.
    locate: Callable[[tuple[str, int] | None, Headers], str | None] | None = None  # From where the request comes.
    undo: Callable[[], Awaitable[None]] | None = None  # What to do when the answer cannot be sent.

    def act(self) -> Act:
        """Who does this, and from where, for the audit log. Each is an entry of its own."""
        address = None if self.locate is None else self.locate(self.client, self.headers)
        caller = self.caller
        return Act(who=caller.name, name=caller.label, address=address, request_id=self.request_id)

    @property
    def here(self) -> str:
        """Where the caller reached us, by its own word."""
        return f"http://{self.headers.get('host') or ''}"

    def key_of(self, key: str | None) -> str | None:
        """The key that the body of a request names, or the header that means the same. Raises `InvalidInput`."""
        header = self.headers.get("idempotency-key")
        if header is None or key == header:
            return key
        if key is not None:
            raise InvalidInput("the header Idempotency-Key and the body name different keys")
        return header

    def expect_operator(self, does: str) -> None:
        """Raises `Forbidden` unless the caller acts in every tenant."""
        if not self.caller.is_operator:
            raise Forbidden(f"only an operator {does}", hint="Ask an operator, or use the operator's token.")

    def expect_role(self, role: Role) -> None:
        """Raises `Forbidden` unless the caller may do all that a role may: nobody gives more than they have."""
        for grant in ROLE_GRANTS[role]:
            self.expect(grant.action, grant.resource)

    def expect(self, action: str, resource: str = ANY) -> None:
        """Raises `Forbidden` unless the caller may do this."""
        self.caller.expect(action, resource)


class Answer(msgspec.Struct, Generic[T], frozen=True):
    """What a handler answers when the status or the headers are not always the same."""

    content: T
    status: int | None = None
    headers: dict[str, str] = {}
    cookies: tuple[str, ...] = ()


class Stream(msgspec.Struct, frozen=True):
    """An answer of server-sent events, sent as they come. Each part holds whole events."""

    parts: AsyncGenerator[bytes, None]
