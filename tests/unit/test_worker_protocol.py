"""Changes of the requests and responses of workers: those that the current version of the protocol allows."""

from __future__ import annotations

import json

import pytest

from tests.worker_protocol import RECORDED, current_shapes

HINT = (
    "Workers and servers of the previous release cannot handle this change. Make it optional, or raise PROTOCOL in "
    "wire/protocol.py and run `python -m tests.worker_protocol`."
)


@pytest.mark.parametrize("kind", ["requests", "responses"])
def test_the_protocol_keeps_every_field_until_its_version_is_raised(kind: str) -> None:
    recorded, current = json.loads(RECORDED.read_text(encoding="utf-8"))[kind], current_shapes()[kind]
    for name, fields in recorded.items():
        for field, type in fields.items():
            assert current[name].get(field) == type, f"{name}.{field}: {HINT}"


def test_requests_get_only_optional_fields_until_the_version_is_raised() -> None:
    recorded, current = json.loads(RECORDED.read_text(encoding="utf-8"))["requests"], current_shapes()["requests"]
    for name, fields in current.items():
        required = {field for field, type in fields.items() if type.endswith("(required)")}
        assert required <= recorded[name].keys(), f"{name}: {HINT}"
