"""The key by which equivalent jobs are found."""

from __future__ import annotations

import hashlib

import msgspec

from ingot.jobs.model import Definition, NewJob

_decode = msgspec.json.Decoder().decode


def reuse_key(definition: Definition, job: NewJob) -> bytes | None:
    """Return a digest of the definition's version, the payload and the inputs of a job.

    Equivalent jobs of a type have equal keys. The key is `None` if the definition does not set `reuse`, or if the
    content of an input is unknown. An input that is not uploaded yet counts with the blob ID that its upload announces,
    because an upload of other bytes fails and cancels the job.
    """
    if not definition.reuse:
        return None
    inputs = dict(job.inputs)
    for upload in job.uploads:
        if upload.blob_id is None:
            return None
        inputs[upload.name or ""] = upload.blob_id
    payload_blob = () if job.payload_blob is None else (job.payload_blob,)
    # PostgreSQL computes the same digest for jobs of applications, so the order of these values must not change.
    key_values = (definition.version, _decode(job.payload), sorted(inputs.items()), *payload_blob)
    return hashlib.sha256(msgspec.json.encode(key_values, order="sorted")).digest()
