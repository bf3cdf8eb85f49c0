"""Reuse keys: which orders ask for the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from ingot.blobs.ports import BeginUpload
from ingot.jobs import Definition
from ingot.jobs.job_options import new_job
from ingot.jobs.reuse import reuse_key
from ingot.kernel.ids import new_id

A, B = "a" * 64, "b" * 64


def key(payload: object = None, *, version: int = 1, **options: Any) -> bytes:
    definition = Definition(type="noop", reuse=True, version=version)
    made = reuse_key(definition, new_job(new_id(), "noop", payload, **options))
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": {"c": 2, "d": [3]}}, b'{ "b": {"d":[3],"c":2}, "a":1 }'),
        ("text", b' "te\\u0078t" '),
        (None, b"null"),
        ([1, 2], (1, 2)),
    ],
)
def test_payloads_that_mean_the_same_have_one_key(one: object, other: object) -> None:
    assert key(one) == key(other)


def test_whatever_else_is_said_of_the_job_does_not_matter() -> None:
    said: dict[str, Any] = {
        "priority": 1,
        "delay": 60,
        "tags": ["t"],
        "metadata": {"a": 1},
        "dedupe_key": "d",
        "idempotency_key": "i",
    }
    assert key([1], **said, batch="b", created_by="me", force=True) == key([1])


def test_what_would_do_something_else_has_another_key() -> None:
    keys = [
        key(),
        key(1),
        key("1"),
        key([1]),
        key([1, 2]),
        key([2, 1]),
        key({"a": None}),
        key({}),
        key(version=2),
        key(inputs={"a": A}),
        key(inputs={"b": A}),
        key(inputs={"a": B}),
        key(inputs={"a": A, "b": B}),
        key(inputs={"a": B, "b": A}),
        key(payload_blob=A),
        key(payload_blob=B),
        key(payload_blob=A, inputs={"a": A}),
        key(["a"]),
    ]
    assert len(set(keys)) == len(keys)


def test_an_upload_that_announces_its_blob_is_that_blob_as_an_input() -> None:
    definition, order = Definition(type="noop", reuse=True), new_job(new_id(), "noop", inputs={"b": B})
    begin = partial(BeginUpload, id=new_id(), tenant=order.tenant, owner="me", reserve=1, lifetime=1)

    def key_with(*uploads: BeginUpload) -> bytes | None:
        return reuse_key(definition, msgspec.structs.replace(order, uploads=uploads))

    assert key_with(begin(name="a", blob_id=A)) == key(inputs={"a": A, "b": B})
    assert key_with(begin(name="c", blob_id=A), begin(name="a", blob_id=A)) == key(inputs={"a": A, "b": B, "c": A})
    assert key_with(begin(name="a", blob_id=A), begin(name="c")) is None
    assert reuse_key(Definition(type="noop"), order) is None


def test_a_key_is_a_digest_of_one_length() -> None:
    big = key({"text": "x" * 60_000}, inputs={f"{n}": f"{n:064x}" for n in range(100)})
    assert {len(big), len(key())} == {32}


def test_the_version_of_the_definition_counts_and_nothing_else_of_it() -> None:
    order = new_job(new_id(), "noop", {"a": 1})
    definition = Definition(type="noop", reuse=True)
    same = msgspec.structs.replace(definition, priority=1, max_running=1, limit_key="{a}", retention_seconds=5.0)
    assert reuse_key(same, order) == reuse_key(definition, order)
