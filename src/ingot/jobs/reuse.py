"""Which jobs ask for the same."""

from __future__ import annotations

import hashlib

import msgspec

from ingot.jobs.model import Definition, NewJob

_decode = msgspec.json.Decoder().decode


def reuse_key(definition: Definition, order: NewJob) -> bytes:
    """Equal for jobs of a type that would do the same: same version, payload and inputs.

    Inputs are pairs in the order of their names. A payload that is a blob comes behind them.
    """
    blob = () if order.payload_blob is None else (order.payload_blob,)
    asked = (definition.version, _decode(order.payload), sorted(order.inputs.items()), *blob)
    return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).digest()
