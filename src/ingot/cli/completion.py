"""Values that the shell offers for completion."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from typing import Final

from ingot.client import Client
from ingot.client.job_request import PRIORITIES
from ingot.identity.credentials import TokenLimits
from ingot.identity.grants import ACTION_FAMILIES, ACTIONS
from ingot.identity.model import Limits
from ingot.kernel.errors import IngotError

COMPLETION_TIMEOUT_SECONDS: Final = 1.0
RECENT_JOBS_MAX: Final = 100


def priorities(incomplete: str) -> list[str]:
    """Complete the name of a priority."""
    return [name for name in PRIORITIES if name.startswith(incomplete)]


def actions(incomplete: str) -> list[str]:
    """Complete an action of a grant."""
    names = [*sorted(ACTIONS), *(f"{family}.*" for family in sorted(ACTION_FAMILIES)), "*"]
    return [name for name in names if name.startswith(incomplete)]


def tenant_limits(incomplete: str) -> list[str]:
    """Complete the name of a tenant limit, as `name=`."""
    return [f"{name}=" for name in Limits.__struct_fields__ if name.startswith(incomplete)]


def token_limits(incomplete: str) -> list[str]:
    """Complete the name of a token limit, as `name=`."""
    return [f"{name}=" for name in TokenLimits.__struct_fields__ if name.startswith(incomplete)]


def job_types(incomplete: str) -> list[str]:
    """Complete a job type from definitions and recent jobs, if the server responds within the timeout."""
    types: set[str] = set()

    def fetch_types() -> None:
        with suppress(IngotError), Client(patience=0) as client:
            types.update(definition.type for definition in client.definitions())
            types.update(job.type for job in client.jobs(limit=RECENT_JOBS_MAX))

    thread = Thread(target=fetch_types, daemon=True)
    thread.start()
    thread.join(COMPLETION_TIMEOUT_SECONDS)
    return sorted(type for type in tuple(types) if type.startswith(incomplete))
