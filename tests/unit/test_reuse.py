"""Reuse keys: which orders request the same work."""

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
    computed = reuse_key(definition, new_job(new_id(), "noop", payload, **options))
    assert computed is not None
    return computed


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": 1, "b": {"c": 2, "d": [3]}}, b'{ "b": {"d":[3],"c":2}, "a":1 }'),
        ("text", b' "te\\u0078t" '),
        (None, b"null"),
        ([1, 2], (1, 2)),
    ],
)
def test_equal_payloads_have_the_same_reuse_key(first: object, second: object) -> None:
    assert key(first) == key(second)


def test_options_that_do_not_change_the_work_do_not_change_the_reuse_key() -> None:
    options: dict[str, Any] = {
        "priority": 1,
        "delay": 60,
        "tags": ["t"],
        "metadata": {"a": 1},
        "dedupe_key": "d",
        "idempotency_key": "i",
    }
    assert key([1], **options, batch="b", created_by="me", force=True) == key([1])


def test_different_work_has_a_different_reuse_key() -> None:
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


def test_an_upload_with_an_announced_blob_id_counts_as_that_input() -> None:
    definition, order = Definition(type="noop", reuse=True), new_job(new_id(), "noop", inputs={"b": B})
    begin = partial(BeginUpload, id=new_id(), tenant=order.tenant, owner="me", reserve=1, lifetime=1)

    def key_with(*uploads: BeginUpload) -> bytes | None:
        return reuse_key(definition, msgspec.structs.replace(order, uploads=uploads))

    assert key_with(begin(name="a", blob_id=A)) == key(inputs={"a": A, "b": B})
    assert key_with(begin(name="c", blob_id=A), begin(name="a", blob_id=A)) == key(inputs={"a": A, "b": B, "c": A})
    assert key_with(begin(name="a", blob_id=A), begin(name="c")) is None
    assert reuse_key(Definition(type="noop"), order) is None


def test_every_reuse_key_has_the_same_length() -> None:
    big = key({"text": "x" * 60_000}, inputs={f"{n}": f"{n:064x}" for n in range(100)})
    assert {len(big), len(key())} == {32}


def test_only_the_version_of_the_definition_is_part_of_the_reuse_key() -> None:
    order = new_job(new_id(), "noop", {"a": 1})
    definition = Definition(type="noop", reuse=True)
    same = msgspec.structs.replace(definition, priority=1, max_running=1, limit_key="{a}", retention_seconds=5.0)
    assert reuse_key(same, order) == reuse_key(definition, order)
