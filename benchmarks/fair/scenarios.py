"""What is measured: who has how many jobs, and under which limits."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.identity.model import Limits
from ingot.jobs.model import Definition

TYPE: Final = "noop"
TENANTS: Final = 1000
SKEW: Final = 100  # The first tenant has so many times the jobs of each other.
KEYS: Final = 100


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of waiting jobs."""

    name: str
    title: str
    tenants: int = 1
    limits: Limits = Limits()
    definition: Definition | None = None


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One run, in a process of its own. `place` is a folder, or the address of a database."""

    engine: str
    scene: str
    place: str
    jobs: int
    claims: int
    claim_jobs: int


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found. `least_share` is the least number of starts that a tenant with work had in twice as many as
    there are tenants."""

    jobs_per_second: float
    least_share: int


class CallLatency(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call took in a store with very many jobs."""

    call: str
    median_ms: float
    worst_ms: float


SCENES: Final = (
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
    """How many jobs each tenant has."""
    if tenants == 1:
        return [jobs]
    part = max(1, jobs // (tenants - 1 + SKEW))
    return [part * SKEW, *[part] * (tenants - 1)]
