"""Every kind of act, once: what is there before it, how it is done, and what is to be on record then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from ingot.events.audit import Act
from ingot.identity.authenticator import Authenticator
from ingot.identity.credential_service import Credentials
from ingot.identity.grants import Grant
from ingot.jobs import Definition
from tests.factories import Bench

ACT = Act(who="token:018f", name="Ada's laptop", address="192.0.2.7", request_id="r-1")
TYPE = "pdf/pages"


class Done(msgspec.Struct):
    """What is to be on record: whose it is, what it is about, and how that was before and is after."""

    tenant: str | None
    target: str
    before: object = None
    after: object = None


Doing = Callable[[], Awaitable[Done]]
Step = Callable[[Bench], Awaitable[Doing]]


def credentials_of(bench: Bench) -> Credentials:
    """The credentials of a bench."""
    return Credentials(bench.store, Authenticator(bench.store, bench.clock), bench.clock)


async def create_tenant(bench: Bench) -> Doing:
    async def do() -> Done:
        made = await bench.tenants.create("acme", weight=3, time_zone="Asia/Tokyo", act=ACT)
        return Done(made.id, "tenant/acme", after=made)

    return do


async def change_tenant(bench: Bench) -> Doing:
    old = await bench.tenants.create("acme", weight=3)

    async def do() -> Done:
        changed = await bench.tenants.change("acme", slug="globex", act=ACT)
        return Done(old.id, "tenant/acme", old, changed)

    return do


async def create_token(bench: Bench) -> Doing:
    async def do() -> Done:
        grants = [Grant(action="jobs.read", resource="jobs/pdf")]
        made = await credentials_of(bench).create_token(bench.tenant, description="the shop", grants=grants, act=ACT)
        return Done(bench.tenant, f"token/{made.token.id}", after=made.token)

    return do


async def create_operator_token(bench: Bench) -> Doing:
    async def do() -> Done:
        grants = [Grant(action="*")]
        made = await credentials_of(bench).create_token(None, description="an operator", grants=grants, act=ACT)
        return Done(None, f"token/{made.token.id}", after=made.token)

    return do


async def revoke_token(bench: Bench) -> Doing:
    grants = [Grant(action="jobs.*")]
    made = (await credentials_of(bench).create_token(bench.tenant, description="the shop", grants=grants)).token
    bench.clock.advance(seconds=1.5)

    async def do() -> Done:
        ended = await credentials_of(bench).revoke_token(None, made.id, act=ACT)
        return Done(bench.tenant, f"token/{made.id}", made, ended)

    return do


async def create_worker(bench: Bench) -> Doing:
    async def do() -> Done:
        made = await credentials_of(bench).create_worker_credential(bench.tenant, "press", types=["pdf"], act=ACT)
        return Done(bench.tenant, "worker_credential/press", after=made.credential)

    return do


async def regenerate_worker(bench: Bench) -> Doing:
    made = await credentials_of(bench).create_worker_credential(None, "press")

    async def do() -> Done:
        changed = await credentials_of(bench).regenerate_worker_credential(None, "press", act=ACT)
        return Done(None, "worker_credential/press", made.credential, changed.credential)

    return do


async def disable_worker(bench: Bench) -> Doing:
    made = await credentials_of(bench).create_worker_credential(bench.tenant, "press")

    async def do() -> Done:
        changed = await credentials_of(bench).enable_worker_credential(bench.tenant, "press", enabled=False, act=ACT)
        return Done(bench.tenant, "worker_credential/press", made.credential, changed)

    return do


async def enable_worker(bench: Bench) -> Doing:
    await credentials_of(bench).create_worker_credential(bench.tenant, "press")
    disabled = await credentials_of(bench).enable_worker_credential(bench.tenant, "press", enabled=False)

    async def do() -> Done:
        changed = await credentials_of(bench).enable_worker_credential(bench.tenant, "press", enabled=True, act=ACT)
        return Done(bench.tenant, "worker_credential/press", disabled, changed)

    return do


async def define(bench: Bench) -> Doing:
    old = await bench.jobs.define(Definition(type=TYPE, tenant=bench.tenant))

    async def do() -> Done:
        new = await bench.jobs.define(Definition(type=TYPE, tenant=bench.tenant, max_attempts=7), act=ACT)
        return Done(bench.tenant, f"definition/{TYPE}", old, new)

    return do


async def ensure_definition(bench: Bench) -> Doing:
    async def do() -> Done:
        new = await bench.jobs.ensure_definition(Definition(type=TYPE, reuse=True), act=ACT)
        return Done(None, f"definition/{TYPE}", after=new)

    return do


async def raise_definition(bench: Bench) -> Doing:
    old = await bench.jobs.define(Definition(type=TYPE, max_running=2))

    async def do() -> Done:
        new = await bench.jobs.ensure_definition(Definition(type=TYPE, version=2), act=ACT)
        return Done(None, f"definition/{TYPE}", old, new)

    return do


async def define_for_all(bench: Bench) -> Doing:
    async def do() -> Done:
        new = await bench.jobs.define(Definition(type=TYPE, max_running=2), act=ACT)
        return Done(None, f"definition/{TYPE}", after=new)

    return do


async def pause(bench: Bench) -> Doing:
    async def do() -> Done:
        await bench.jobs.pause(bench.tenant, TYPE, by="token:018f", act=ACT)
        return Done(bench.tenant, f"type/{TYPE}", after={"by": "token:018f"})

    return do


async def resume(bench: Bench) -> Doing:
    await bench.jobs.pause(bench.tenant, TYPE)

    async def do() -> Done:
        await bench.jobs.resume(bench.tenant, TYPE, act=ACT)
        return Done(bench.tenant, f"type/{TYPE}", before={"by": None})

    return do


async def drain(bench: Bench) -> Doing:
    worker = await bench.workers.register(
        bench.tenant,
        "press/1",
        ["pdf"],
        hostname="host-1",
        version="7",
        metadata={"rack": [1, None]},
        by="worker:press",
    )

    async def do() -> Done:
        return Done(bench.tenant, "worker/press/1", worker, await bench.workers.drain(bench.tenant, "press/1", act=ACT))

    return do


async def remove(bench: Bench) -> Doing:
    await credentials_of(bench).create_worker_credential(None, "press")
    await bench.workers.register(None, "press/1", ["pdf"])
    await credentials_of(bench).enable_worker_credential(None, "press", enabled=False)
    worker = await bench.workers.get(None, "press/1")

    async def do() -> Done:
        await bench.workers.remove(None, "press/1", act=ACT)
        return Done(None, "worker/press/1", before=worker)

    return do


STEPS: list[tuple[str, Step]] = [
    ("tenant.created", create_tenant),
    ("tenant.changed", change_tenant),
    ("token.created", create_token),
    ("token.created", create_operator_token),
    ("token.revoked", revoke_token),
    ("worker_credential.created", create_worker),
    ("worker_credential.regenerated", regenerate_worker),
    ("worker_credential.disabled", disable_worker),
    ("worker_credential.enabled", enable_worker),
    ("definition.put", define),
    ("definition.put", define_for_all),
    ("definition.put", ensure_definition),
    ("definition.put", raise_definition),
    ("type.paused", pause),
    ("type.resumed", resume),
    ("worker.drained", drain),
    ("worker.removed", remove),
]
