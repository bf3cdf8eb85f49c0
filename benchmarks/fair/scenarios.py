"""The measured scenarios: tenants, their numbers of jobs, and limits."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.identity.model import Limits
from ingot.jobs.model import Definition

TYPE: Final = "noop"
TENANTS: Final = 1000
SKEW: Final = 100  # Jobs of the first tenant relative to each of the others.
KEYS: Final = 100


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of waiting jobs."""

    name: str
    title: str
    tenants: int = 1
    limits: Limits = Limits()
    definition: Definition | None = None


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request for one run, which is a new process. `address` is a folder, or the URL of a database."""

    engine: str
    scenario: str
    address: str
    jobs: int
    claims: int
    claim_jobs: int


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run.

    `least_share` is the lowest number of starts of a tenant with work, in windows of two starts per tenant.
    """

    jobs_per_second: float
    least_share: int


class CallLatency(msgspec.Struct, frozen=True, kw_only=True):
    """The duration of a call in a store with very many jobs."""

    call: str
    median_ms: float
    worst_ms: float


SCENARIOS: Final = (
    Scenario(name="one", title="one tenant, no limits"),
    Scenario(name="many", title=f"{TENANTS:,} tenants, one with {SKEW} × the jobs of the others", tenants=TENANTS),
    Scenario(name="tenant", title="a limit on the tenant", limits=Limits(max_running_jobs=100_000)),
    Scenario(name="type", title="a limit on the type", definition=Definition(type=TYPE, max_running=100_000)),
    Scenario(
        name="key",
        title=f"a limit on each of {KEYS} keys",
        definition=Definition(type=TYPE, limit_key="{key}", max_running_per_key=1000),
    ),
)


def shares(tenants: int, jobs: int) -> list[int]:
    """Return the number of jobs of each tenant."""
    if tenants == 1:
        return [jobs]
    part = max(1, jobs // (tenants - 1 + SKEW))
    return [part * SKEW, *[part] * (tenants - 1)]
