"""Services of the rooms whose store must not be called, because they reject bad input before it gets there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import msgspec
import pytest

from ingot.events import Events
from ingot.events.audit_service import Audit
from ingot.identity import Tenants
from ingot.identity.authenticator import Authenticator
from ingot.identity.credential_service import Credentials
from ingot.identity.members import Members
from ingot.identity.users import Users
from ingot.jobs import Claim, Jobs, JobStatus
from ingot.jobs.bulk_actions import Actions
from ingot.jobs.model import Job, Source
from ingot.jobs.workers import Workers
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import IngotError
from ingot.kernel.ids import new_id

LEASE_SECONDS: Final = 180.0
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


class ForbiddenStore:
    """A store that records every call and raises `AssertionError`.

    Services register for notifications when they are created. That reads and writes nothing, so it is allowed.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_ready(self, notify: Callable[..., object]) -> None:
        """Accept a listener for ready jobs."""

    def on_upcoming_jobs(self, wake: Callable[..., object]) -> None:
        """Accept a listener that is woken before jobs are created."""

    def on_leases_lost(self, report: Callable[..., object]) -> None:
        """Accept a listener for lost leases."""

    def on_schema_mismatch(self, callback: Callable[[], None]) -> None:
        """Accept a listener for the end of service."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        def call(*_: object, **__: object) -> NoReturn:
            self.calls.append(name)
            raise AssertionError(f"{name}() of the store was called")

        return call


class Services:
    """Services on a forbidden store, with a tenant and a claim that a store could have returned."""

    def __init__(self) -> None:
        self.store = ForbiddenStore()
        store: Any = self.store
        clock = ManualClock()
        authenticator = Authenticator(store, clock)
        self.tenant = new_id()
        self.claim = make_claim(self.tenant)
        self.jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        self.workers = Workers(store, self.jobs, lease_seconds=LEASE_SECONDS)
        self.actions = Actions(self.jobs)
        self.tenants = Tenants(store)
        self.events = Events(store)
        self.audit = Audit(store)
        self.credentials = Credentials(store, authenticator, clock)
        self.members = Members(store, authenticator)
        self.users = Users(store, authenticator)

    @contextmanager
    def refuse(self, kind: type[IngotError]) -> Iterator[pytest.ExceptionInfo[IngotError]]:
        """Expect exactly this error, with a detail and a hint, and no call of the store."""
        with pytest.raises(kind) as caught:
            yield caught
        assert (kind, kind.code) == (type(caught.value), caught.value.code)
        assert caught.value.detail.strip()
        assert caught.value.hint.strip()
        assert self.store.calls == []


def make_claim(tenant: str) -> Claim:
    """A claim of a running job that is in no store."""
    job = Job(
        id=new_id(), tenant=tenant, type="noop", status=JobStatus.RUNNING, priority=3, payload=msgspec.Raw(b"null"),
        run_at=NOW, attempts=1, failures=0, crashes=0, max_attempts=5, fence=1, source=Source.MANUAL, depth=0,
        created_at=NOW, worker_id="worker", started_at=NOW, lease_expires_at=NOW,
    )  # fmt: skip
    return Claim(job=job, fence=job.fence, lease_expires_at=NOW, timeout_seconds=60.0)
