"""Definitions that must exist, for example those of built-in handlers, and that operators may change."""

from __future__ import annotations

import msgspec

from ingot.jobs.model import Definition


def ensured_definition(existing: Definition | None, required: Definition) -> Definition:
    """Return the existing definition with at least the required version, or the required one if there is none.

    All other fields of an existing definition are kept, because an operator may have set them. A lower version is
    raised, so that results of older code are not reused.
    """
    if existing is None or existing.version >= required.version:
        return existing or required
    return msgspec.structs.replace(existing, version=required.version)
