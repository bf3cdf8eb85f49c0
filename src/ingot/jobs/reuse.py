"""Which jobs ask for the same."""

from __future__ import annotations

import hashlib

import msgspec

from ingot.jobs.model import Definition, NewJob

_decode = msgspec.json.Decoder().decode


def reuse_key(definition: Definition, order: NewJob) -> bytes:
    """Equal for jobs of a type that would do the same: same version, payload and inputs."""
    asked = (definition.version, _decode(order.payload), order.inputs)
    return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).digest()
