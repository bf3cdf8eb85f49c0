"""The gate: who calls, in which tenant, and whether they may, before anything else is looked at."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from ingot.blobs.errors import SignatureInvalid
from ingot.http.call import Call, Headers
from ingot.http.cookies import SESSION, cookie
from ingot.http.origin import SAFE, expect_own_page
from ingot.http.peers import Peers
from ingot.http.rates import Rate, Rates, TooManyFailures
from ingot.http.signing import Signer
from ingot.http.table import Class, Granted, Open, Route, Signed
from ingot.identity.access import KNOWN_SECONDS, Access
from ingot.identity.credentials import Caller, Forbidden, Unauthorized
from ingot.identity.model import TenantNotFound
from ingot.identity.roles import NO_TENANT, no_tenant
from ingot.identity.service import DEFAULT_SLUG, Tenants

CREDENTIALS: Final = ("Authorization", "X-Worker-ID", "X-Worker-Secret")
NOBODY: Final = Caller(id="", kind="token", tenant="", grants=())
BURST_SECONDS: Final = 2.0  # Who made no requests for so long may make theirs at once.
FAILURES: Final = Rate(10, 200)  # Credentials that do not hold, from one address, before the store is asked no more.
STRANGERS: Final = Rate(2, 60)  # What anybody may do from one address, where it costs us something.
ALL_STRANGERS: Final = Rate(200, 2000)  # The same from all addresses together: somebody may have very many.
TENANT_FACTOR: Final = 4  # All callers of a tenant together may make so many times the requests of one.


def classes_of(*, read: float, write: float, wait: float) -> dict[Class, Rate]:
    """What a caller may do in each class of routes, from so many requests in a second."""
    per_second: dict[Class, float] = {"read": read, "write": write, "wait": wait}
    return {name: Rate(rate, max(1.0, rate * BURST_SECONDS)) for name, rate in per_second.items()}


RATES: Final = classes_of(read=1000, write=2000, wait=1000)


class Gate:
    """Lets callers in."""

    def __init__(
        self,
        access: Access,
        tenants: Tenants,
        rates: Rates,
        *,
        classes: Mapping[Class, Rate] = RATES,
        peers: Peers | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._access = access
        self._tenants = tenants
        self._rates = rates
        self._classes = classes
        self._peers = peers or Peers()
        self._locate = self._peers.address
        self._signer = signer
        self._failures = Rates()  # Apart from those of callers, whom a flood of addresses must not push out.
        self._strangers = Rates()
        self._slugs: dict[str, tuple[str, float]] = {}  # The tenants that operators named, and until when that holds.
        tenants.on_removed(lambda _: self._slugs.clear())

    async def admit(
        self,
        route: Route,
        headers: Headers,
        path: dict[str, str],
        *,
        request_id: str,
        client: tuple[str, int] | None = None,
        target: tuple[str, str, bytes] = ("", "", b""),
    ) -> Call:
        """The call that a request makes. `target` is what it asks for: its method, path and query as they were sent.

        Raises `Unauthorized`, `Forbidden`, `SignatureInvalid` or `TooManyRequests`.
        """
        caller, tenant, signed = NOBODY, "", None
        if isinstance(route.needs, Signed):
            signed = self._signed((route.needs.purpose or target[0], *target[1:]), headers, client)
        elif not isinstance(route.needs, Open):
            caller = await self._counted(headers, client)
            if caller.session is not None and route.method not in SAFE:
                expect_own_page(headers)
            self._count(route, caller)
            _expect(route, caller)
            tenant = await self._tenant(headers, caller)
        elif route.by_address:
            self._strangers.take((self._peers.of(client, headers), "open"), STRANGERS)
            self._strangers.take(("", "all"), ALL_STRANGERS)
        return Call(
            caller=caller,
            tenant=tenant,
            headers=headers,
            path=path,
            request_id=request_id,
            client=client,
            signed=signed,
            locate=self._locate,
        )

    async def check(self, route: Route, call: Call) -> None:
        """Whether a call that goes on would still be let in, and its tenant is still there; counts nothing.

        Raises `Unauthorized`, `Forbidden` or `TenantNotFound`.
        """
        if not isinstance(route.needs, Open | Signed):
            caller = await self._caller(call.headers, tenant=call.tenant)
            _expect(route, caller)
            if caller.tenant is None:
                await self._named(call.tenant)

    def address_of(self, call: Call) -> str:
        """From where a call comes."""
        return self._peers.of(call.client, call.headers)

    def _signed(
        self, target: tuple[str, str, bytes], headers: Headers, client: tuple[str, int] | None
    ) -> dict[str, str]:
        """The parameters of a signed address, unless too many from there were none. One that does not hold counts."""
        if self._signer is None:
            raise SignatureInvalid
        name = self._peers.of(client, headers), "failures"
        self._failures.take(name, FAILURES, TooManyFailures)
        signed = self._signer.check(*target)
        self._failures.give_back(name)
        return signed

    async def _counted(self, headers: Headers, client: tuple[str, int] | None) -> Caller:
        """The caller, unless too many from there were none. What the store is asked for in vain stays counted."""
        asked: list[tuple[str, str]] = []

        def asking() -> None:
            name = self._peers.of(client, headers), "failures"
            self._failures.take(name, FAILURES, TooManyFailures)
            asked.append(name)

        try:
            return await self._caller(headers, asking)
        except Unauthorized:
            asked.clear()  # It stays counted.
            raise
        finally:
            for name in asked:
                self._failures.give_back(name)

    async def _caller(
        self, headers: Headers, asking: Callable[[], None] = lambda: None, *, tenant: str | None = None
    ) -> Caller:
        """Who sends these headers. A person is looked for in the tenant that they name, or in the one that is told."""
        worker_id, secret = headers.get("x-worker-id"), headers.get("x-worker-secret")
        if worker_id is not None and secret is not None:
            if headers.has("authorization"):
                raise Unauthorized("the request has two credentials, a token and a worker's", hint="Send one of them.")
            return await self._access.of_worker(worker_id, secret, asking)
        authorization = headers.get("authorization")
        if authorization is None:
            session = None if _sent(headers) else cookie(headers, SESSION)
            if session is None:
                raise _no_credential(headers)
            return await self._access.of_session(session, tenant or headers.get("ingot-tenant"), asking)
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthorized(
                "the header Authorization holds no bearer token",
                hint="When it is a token, write Bearer before it: `Authorization: Bearer ingot_…`.",
            )
        return await self._access.of_token(token.strip(), asking)

    def _count(self, route: Route, caller: Caller) -> None:
        rate = self._classes[route.rate]
        own = rate
        if caller.limits.rate is not None:
            own = Rate(caller.limits.rate, caller.limits.burst or max(1.0, caller.limits.rate))
        self._rates.take((caller.name, route.rate), own)
        if caller.tenant is not None:
            shared = Rate(rate.per_second * TENANT_FACTOR, rate.burst * TENANT_FACTOR)
            self._rates.take((caller.tenant, route.rate), shared)

    async def _tenant(self, headers: Headers, caller: Caller) -> str:
        """The tenant that the call is made in: the caller's own, or the one an operator names."""
        if caller.kind == "user" and caller.tenant is not None:
            return caller.tenant
        named = headers.get("ingot-tenant")
        if named is not None and caller.kind == "worker" and caller.tenant is None:
            raise Forbidden("a shared worker serves all tenants", hint="Leave out the header Ingot-Tenant.")
        if named is None and caller.tenant is not None:
            return caller.tenant
        try:
            tenant = await self._named(named or DEFAULT_SLUG)
        except TenantNotFound:
            if caller.tenant is None:
                raise
            tenant = ""
        if caller.tenant not in (None, tenant):
            raise Forbidden("the credential is for another tenant", hint="Leave out the header Ingot-Tenant.")
        return tenant

    async def _named(self, slug: str) -> str:
        known, until = self._slugs.get(slug, ("", 0.0))
        if until < time.monotonic():
            known = (await self._tenants.get(slug)).id
            self._slugs[slug] = known, time.monotonic() + KNOWN_SECONDS
        return known


def _sent(headers: Headers) -> list[str]:
    return [name for name in CREDENTIALS if headers.has(name.lower())]


def _no_credential(headers: Headers) -> Unauthorized:
    """Why nobody can be told from these headers."""
    sent = _sent(headers)
    for name in sent:
        if headers.get(name.lower()) is None:
            return Unauthorized(f"the header {name} was sent twice", hint="Send it once.")
    if sent:
        (missing,) = {"X-Worker-ID", "X-Worker-Secret"}.difference(sent)
        return Unauthorized(f"{sent[0]} was sent without {missing}", hint="A worker sends both of them.")
    return Unauthorized("the request has no credential")


def _expect(route: Route, caller: Caller) -> None:
    if not isinstance(route.needs, Granted) or route.needs.is_met(caller.may if route.needs.whole else caller.has):
        return
    if caller.kind == "user" and caller.tenant == NO_TENANT:
        raise no_tenant(caller)
    if caller.kind == "worker":
        raise Forbidden(
            f"the credential of a worker has no grant for {route.needs.action}",
            hint=f"Workers claim, renew and settle; for the rest use a token with a grant for {route.needs.action}.",
        )
    raise caller.lacks(route.needs.action)
