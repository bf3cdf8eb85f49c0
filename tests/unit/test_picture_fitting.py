"""Fitting pictures into boxes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ingot.worker.handlers.pictures.fitting import Fit, Size, fit_picture

SIDES = some.integers(1, 20_000)
WIDE = Size(400, 200)


@pytest.mark.parametrize(
    ("fit", "box", "enlarge", "size"),
    [
        ("inside", (100, 100), False, (100, 50)),
        ("inside", (100, None), False, (100, 50)),
        ("inside", (None, 100), False, (200, 100)),
        ("inside", (None, None), False, (400, 200)),
        ("inside", (800, 800), False, (400, 200)),
        ("inside", (800, 800), True, (800, 400)),
        ("cover", (100, 100), False, (100, 100)),
        ("cover", (300, 300), False, (300, 200)),
        ("cover", (300, 300), True, (300, 300)),
        ("exact", (100, 100), False, (100, 100)),
        ("exact", (500, 100), False, (400, 100)),
        ("exact", (500, 100), True, (500, 100)),
    ],
)
def test_a_box_determines_the_size(
    fit: Fit, box: tuple[int | None, int | None], enlarge: bool, size: tuple[int, int]
) -> None:
    assert fit_picture(WIDE, *box, fit=fit, enlarge=enlarge).size == size


def test_cover_uses_the_middle_of_the_source() -> None:
    assert fit_picture(WIDE, 100, 100, fit="cover", enlarge=False).source_box == (100, 0, 300, 200)


def test_inside_and_exact_use_the_whole_source() -> None:
    for fit in ("inside", "exact"):
        assert fit_picture(WIDE, 100, 100, fit=fit, enlarge=False).source_box == (0, 0, 400, 200)


@given(SIDES, SIDES, SIDES, SIDES, some.sampled_from(["inside", "cover", "exact"]), some.booleans())
def test_a_fitted_picture_never_exceeds_its_box(
    width: int, height: int, box_width: int, box_height: int, fit: Fit, enlarge: bool
) -> None:
    source = Size(width, height)
    (left, top, right, bottom), size = fit_picture(source, box_width, box_height, fit=fit, enlarge=enlarge)
    assert 1 <= size.width <= box_width
    assert 1 <= size.height <= box_height
    assert enlarge or (size.width <= width and size.height <= height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
