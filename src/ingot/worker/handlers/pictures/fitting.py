"""Computes how an image fits a requested size."""

from __future__ import annotations

from typing import Literal, NamedTuple

Fit = Literal["inside", "cover", "exact"]


class Size(NamedTuple):
    """The size of an image in pixels."""

    width: int
    height: int

    @property
    def rotated(self) -> Size:
        """The size after a rotation by 90 degrees."""
        return Size(self.height, self.width)


class Placement(NamedTuple):
    """The part of the source image that is used, and the output size to which it is scaled."""

    source_box: tuple[float, float, float, float]  # Left, top, right, bottom.
    size: Size


def fit_picture(source: Size, width: int | None, height: int | None, *, fit: Fit, enlarge: bool) -> Placement:
    """Compute the placement for a requested width, height or both.

    `inside` keeps the whole image and its proportions, `cover` fills the requested size and crops the image evenly on
    both sides, `exact` stretches it. Images are enlarged only with `enlarge`.
    """
    whole = (0.0, 0.0, float(source.width), float(source.height))
    if fit == "exact" and width is not None and height is not None:
        return Placement(
            whole, Size(*(_bounded_side(*pair, enlarge) for pair in zip((width, height), source, strict=True)))
        )
    scales = [
        requested / original
        for requested, original in zip((width, height), source, strict=True)
        if requested is not None
    ]
    scale = (max if fit == "cover" else min)(scales, default=1.0)
    scale = scale if enlarge else min(scale, 1.0)
    size = Size(*(max(1, round(side * scale)) for side in source))
    if fit != "cover" or width is None or height is None:
        return Placement(whole, size)
    box = Size(min(width, size.width), min(height, size.height))
    return Placement(_centered_box(source, box.width / scale, box.height / scale), box)


def _bounded_side(requested: int, original: int, enlarge: bool) -> int:
    return requested if enlarge else min(requested, original)


def _centered_box(source: Size, width: float, height: float) -> tuple[float, float, float, float]:
    width, height = min(width, source.width), min(height, source.height)
    left, top = (source.width - width) / 2, (source.height - height) / 2
    return left, top, left + width, top + height
