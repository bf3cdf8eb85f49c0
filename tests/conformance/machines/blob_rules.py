"""What can happen to blobs, in any order: references, quota, uploads, damage and collection are what the model says."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ingot.blobs.model import INLINE_BYTES_MAX
from tests.conformance.machines.blob_model import Coming, Owner, id_of
from tests.conformance.machines.checked_blobs import GRACE_SECONDS, CheckedBlobs

WHERE = ("sqlite-local", "sqlite-s3", "postgres-local", "postgres-s3")
STEPS = 50

KEYS = ("a", "a/b", "ö")
# Few, so that tenants often bring the same.
BYTES = [b"", b"small", b"other", bytes(INLINE_BYTES_MAX), bytes(INLINE_BYTES_MAX + 1), bytes(30_000), b"x" * 45_000]
UPLOADS_MAX = 6
DAY = 86_400

data = st.sampled_from(BYTES)
whose = st.integers(0, 1)
keys = st.sampled_from(KEYS)
conditions = st.sampled_from(["none", "none", "any", "current", "current", "other"])
seldom = st.sampled_from([False, False, False, False, True])
picks = st.integers(0, 30)


class Blobs(RuleBasedStateMachine):
    """Blobs of two tenants, which bring the same bytes, through everything that can happen to them."""

    engine: ClassVar[str]
    objects: ClassVar[str]
    world: CheckedBlobs

    @initialize()
    def open(self) -> None:
        self.world = CheckedBlobs(self.engine, self.objects)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                if not self.world.failed:
                    self.world.run(self.world.wait_for_the_end())
                    self.world.run(self.world.check())
                    self.world.run(self.world.check_news())
            finally:
                self.world.close()

    @invariant()
    def the_room_equals_its_model(self) -> None:
        self.world.run(self.world.check())

    def tenant(self, whose: int) -> str:
        return self.world.model.tenants[whose]

    def owner(self, whose: int) -> Owner:
        return self.world.owners[whose]

    def if_match(self, tenant: str, key: str, condition: str) -> str | None:
        known = self.world.model.keys.get((tenant, key))
        if condition == "none" or (condition == "current" and known is None):
            return None
        if condition == "current" and known is not None:
            return id_of(known.data)
        return "*" if condition == "any" else id_of(b"what nobody has")

    def upload(self, pick: int) -> Coming:
        found = list(self.world.model.uploads.values())
        return found[-1 - pick % len(found)]

    def tenant_for(self, upload: Coming, stranger: bool) -> str:
        others = [tenant for tenant in self.world.model.tenants if tenant != upload.tenant]
        return others[0] if stranger else upload.tenant

    def has_uploads(self) -> bool:
        return bool(self.world.model.uploads)

    def has_room(self) -> bool:
        return len(self.world.model.uploads) < UPLOADS_MAX

    def has_blobs(self) -> bool:
        return bool(self.world.model.blobs)

    def is_broken(self) -> bool:
        return any(blob.broken for blob in self.world.model.blobs.values())

    # -- bytes come in --------------------------------------------------------------------------------------

    @rule(of=whose, by=whose, key=keys, data=data, condition=conditions, told=st.booleans())
    def put(self, of: int, by: int, key: str, data: bytes, condition: str, told: bool) -> None:
        tenant = self.tenant(of)
        if_match = self.if_match(tenant, key, condition)
        self.world.run(self.world.put(tenant, self.owner(by), key, data, if_match=if_match, told=told))

    @rule(of=whose, by=whose, key=keys, data=data, told=st.booleans(), how=st.sampled_from(["wrong", "breaks"]))
    def put_in_vain(self, of: int, by: int, key: str, data: bytes, told: bool, how: str) -> None:
        put = self.world.put(self.tenant(of), self.owner(by), key, data, if_match="*", told=told, **{how: True})
        self.world.run(put)

    @precondition(has_room)
    @rule(
        of=whose,
        by=whose,
        key=st.none() | keys,
        data=data,
        condition=conditions,
        announces=st.sampled_from(["nothing", "right", "right", "wrong"]),
        other=data,
    )
    def begin(
        self, of: int, by: int, key: str | None, data: bytes, condition: str, announces: str, other: bytes
    ) -> None:
        tenant = self.tenant(of)
        if_match = None if key is None else self.if_match(tenant, key, condition)
        announced = {"nothing": None, "right": id_of(data), "wrong": id_of(other)}[announces]
        begin = self.world.begin(tenant, self.owner(by), data, announced=announced, key=key, if_match=if_match)
        self.world.run(begin)

    @precondition(has_uploads)
    @rule(
        pick=picks,
        count=st.sampled_from([0, 1, 10_000, 100_000, 100_000]),
        breaks=seldom,
        shift=st.sampled_from([0, 0, 0, 1]),
        stranger=seldom,
    )
    def send(self, pick: int, count: int, breaks: bool, shift: int, stranger: bool) -> None:
        upload = self.upload(pick)
        tenant = self.tenant_for(upload, stranger)
        self.world.run(self.world.send(upload, count, tenant=tenant, breaks=breaks, shift=shift))

    @precondition(has_uploads)
    @rule(pick=picks, stranger=seldom)
    def look(self, pick: int, stranger: bool) -> None:
        upload = self.upload(pick)
        self.world.run(self.world.look(upload, self.tenant_for(upload, stranger)))

    @precondition(has_uploads)
    @rule(pick=picks, stranger=seldom, late=st.none() | data)
    def complete(self, pick: int, stranger: bool, late: bytes | None) -> None:
        upload = self.upload(pick)
        announced = None if late is None else id_of(late)
        self.world.run(self.world.complete(upload, self.tenant_for(upload, stranger), announced=announced))

    @precondition(has_uploads)
    @rule(pick=picks)
    def send_and_complete(self, pick: int) -> None:
        upload = self.upload(pick)
        self.world.run(self.world.send(upload, len(upload.data), tenant=upload.tenant))
        self.world.run(self.world.complete(upload, upload.tenant))

    @precondition(has_room)
    @rule(of=whose, key=keys, data=data, first=data)
    def complete_too_late(self, of: int, key: str, data: bytes, first: bytes) -> None:
        """Others are faster with the key."""
        tenant, owner, before = self.tenant(of), self.owner(0), set(self.world.model.uploads)
        self.world.run(self.world.begin(tenant, owner, data, key=key, if_match=self.if_match(tenant, key, "current")))
        for id in self.world.model.uploads.keys() - before:
            upload = self.world.model.uploads[id]
            self.world.run(self.world.send(upload, len(data), tenant=tenant))
            self.world.run(self.world.put(tenant, owner, key, first, if_match="*"))
            self.world.run(self.world.complete(upload, tenant))

    @precondition(has_uploads)
    @rule(pick=picks, stranger=seldom)
    def give_up(self, pick: int, stranger: bool) -> None:
        upload = self.upload(pick)
        self.world.run(self.world.give_up(upload, self.tenant_for(upload, stranger)))

    @rule()
    def send_late(self) -> None:
        self.world.run(self.world.send_late())

    # -- and go ---------------------------------------------------------------------------------------------

    @rule(of=whose, key=keys, condition=conditions)
    def delete(self, of: int, key: str, condition: str) -> None:
        tenant = self.tenant(of)
        self.world.run(self.world.delete(tenant, key, self.if_match(tenant, key, condition)))

    @rule(of=whose, by=st.none() | whose)
    def purge(self, of: int, by: int | None) -> None:
        self.world.run(self.world.purge(self.tenant(of), None if by is None else self.owner(by).name))

    @rule(of=whose, quota=st.sampled_from([None, None, 30_000, 90_000]))
    def limit(self, of: int, quota: int | None) -> None:
        self.world.run(self.world.limit(self.tenant(of), quota))

    @rule(seconds=st.sampled_from([1, GRACE_SECONDS // 2, GRACE_SECONDS, DAY // 2, DAY]))
    def pass_time(self, seconds: int) -> None:
        self.world.pass_time(seconds)

    @rule()
    def collect(self) -> None:
        self.world.run(self.world.collect())

    @rule()
    def preview(self) -> None:
        self.world.run(self.world.preview())

    @rule(finished=st.booleans())
    def leave_behind(self, finished: bool) -> None:
        self.world.run(self.world.leave_behind(finished=finished))

    @rule()
    def take_stock(self) -> None:
        self.world.run(self.world.take_stock())

    @rule()
    def wait_for_the_end(self) -> None:
        self.world.run(self.world.wait_for_the_end())

    # -- damage ---------------------------------------------------------------------------------------------

    @precondition(has_blobs)
    @rule(pick=picks, how=st.sampled_from(["gone", "flip", "short"]))
    def hurt(self, pick: int, how: str) -> None:
        known = list(self.world.model.blobs)
        self.world.run(self.world.hurt(known[-1 - pick % len(known)], how))

    @precondition(has_blobs)
    @rule(pick=picks)
    def read(self, pick: int) -> None:
        known = list(self.world.model.blobs)
        self.world.run(self.world.read(*known[-1 - pick % len(known)]))

    @precondition(is_broken)
    @rule()
    def scrub(self) -> None:
        self.world.run(self.world.look_at_all())

    @precondition(is_broken)
    @rule(pick=picks, by=whose, key=keys)
    def bring_again(self, pick: int, by: int, key: str) -> None:
        broken = [(tenant, blob.data) for (tenant, _), blob in self.world.model.blobs.items() if blob.broken]
        tenant, data = broken[pick % len(broken)]
        self.world.run(self.world.put(tenant, self.owner(by), key, data, if_match="*"))


def live(where: str, *, examples: int, chance: int | None = None) -> None:
    """Run so many lives on an engine and a store; the same ones again with the same `chance`."""
    engine, objects = where.split("-")
    machine = type("Blobs", (Blobs,), {"engine": engine, "objects": objects})
    if chance is not None:
        machine = seed(chance)(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            report_multiple_bugs=False,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
