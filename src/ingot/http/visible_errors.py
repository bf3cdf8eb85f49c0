"""Errors as their callers may see them: limits of a tenant count objects that a caller may have no grant for."""

from __future__ import annotations

from ingot.blobs.errors import QuotaExceeded
from ingot.identity.credentials import Caller
from ingot.jobs.errors import JobLimitExceeded
from ingot.kernel.errors import IngotError


def visible_error(error: IngotError, caller: Caller) -> IngotError:
    """Return an error without the number of jobs or bytes of the tenant, unless the caller may read all of them."""
    match error:
        case QuotaExceeded(scope="tenant") if not caller.may("blobs.read"):
            return error.without_usage()
        case JobLimitExceeded() if not caller.may("jobs.read"):
            return JobLimitExceeded()
    return error
