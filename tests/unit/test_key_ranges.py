"""Ranges of keys: they contain exactly the keys that grants cover."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingot.blobs.key_ranges import KeyRange, key_ranges
from ingot.identity.grants import Grant, allowed_prefixes, allows

names = st.text("a./-", max_size=4)
keys = st.lists(st.text("a./-0", min_size=1, max_size=5), max_size=30, unique=True)


def contains(key_range: KeyRange, key: str) -> bool:
    return key == key_range.start if key_range.is_one_key else key.startswith(key_range.start)


@given(st.lists(names.filter(lambda name: not name.endswith("/")), max_size=3), names, keys)
def test_ranges_contain_the_keys_that_grants_cover_once_and_in_order(
    resources: list[str], prefix: str, all_keys: list[str]
) -> None:
    grants = [Grant(action="blobs.read", resource=f"keys/{name}") for name in resources if name]
    ranges = key_ranges(prefix, allowed_prefixes("keys", grants, "blobs.read"))
    listed = [key for key_range in ranges for key in sorted(all_keys) if contains(key_range, key)]
    visible = [key for key in sorted(all_keys) if allows(grants, "blobs.read", f"keys/{key}")]
    assert listed == [key for key in visible if key.startswith(prefix)]


@given(names, keys)
def test_a_grant_for_all_keys_has_one_range(prefix: str, all_keys: list[str]) -> None:
    assert key_ranges(prefix, None) == [KeyRange(prefix)]
