"""IDs: increasing UUIDs of version 7, and recognizing them."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from ingot.kernel.ids import is_id, new_id


def test_ids_are_uuids_of_version_7() -> None:
    id = uuid.UUID(new_id())
    assert (id.version, id.variant) == (7, uuid.RFC_4122)


def test_each_id_is_greater_than_the_previous_one() -> None:
    ids = [new_id() for _ in range(20_000)]
    assert all(before < after for before, after in pairwise(ids))


def test_ids_of_many_threads_are_unique_and_increase_in_each() -> None:
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(lambda _: [new_id() for _ in range(2_000)], range(8)))
    assert all(part == sorted(part) for part in parts)
    assert len({id for part in parts for id in part}) == 16_000


def test_a_new_id_is_an_id() -> None:
    assert is_id(new_id())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "01a1dec6-ff23-7081-8b16-ec5cd1fb907",
        "01a1dec6-ff23-7081-8b16-ec5cd1fb90767",
        "01A1DEC6-FF23-7081-8B16-EC5CD1FB9076",
        "{01a1dec6-ff23-7081-8b16-ec5cd1fb9076}",
        "01a1dec6ff2370818b16ec5cd1fb9076",
        "01a1dec6-ff23-7081-8b16-ec5cd1fb9076\n",
        "01a1dec6-ff23-7081-8b16-ec5cd1fb907\u0666",
        "\ud800",
    ],
)
def test_other_text_is_not_an_id(text: str) -> None:
    assert not is_id(text)
