"""Definitions that have to be there, whatever an operator makes of them."""

from __future__ import annotations

import msgspec

from ingot.jobs.model import Definition


def ensured_definition(known: Definition | None, wanted: Definition) -> Definition:
    """The definition that is to be there: what is known, of the version of the wanted one at least, or else that one.

    So it keeps all that somebody set. A version that is lower is raised, because results of older code are not to be
    used again; a higher one stays.
    """
    if known is None or known.version >= wanted.version:
        return known or wanted
    return msgspec.structs.replace(known, version=wanted.version)
