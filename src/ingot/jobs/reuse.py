"""Which jobs ask for the same."""

from __future__ import annotations

import hashlib

import msgspec

from ingot.jobs.model import Definition, NewJob

_decode = msgspec.json.Decoder().decode


def reuse_key(definition: Definition, order: NewJob) -> bytes | None:
    """Equal for jobs of a type that would do the same: same version, payload and inputs.

    `None` when the definition knows no reuse, or nobody knows what an input will be. One that is still to come is the
    blob that is announced: an upload that brings other bytes fails, and its job with it. Inputs are pairs in the order
    of their names. A payload that is a blob comes behind them.
    """
    if not definition.reuse:
        return None
    inputs = dict(order.inputs)
    for upload in order.uploads:
        if upload.blob_id is None:
            return None
        inputs[upload.name or ""] = upload.blob_id
    blob = () if order.payload_blob is None else (order.payload_blob,)
    asked = (definition.version, _decode(order.payload), sorted(inputs.items()), *blob)
    return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).digest()
