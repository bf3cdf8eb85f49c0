"""How a picture gets into a box: pure arithmetic on sizes."""

from __future__ import annotations

from typing import Literal, NamedTuple

Fit = Literal["inside", "cover", "exact"]


class Size(NamedTuple):
    """Of a picture, in pixels."""

    width: int
    height: int

    @property
    def rotated(self) -> Size:
        """The same, lying on its side."""
        return Size(self.height, self.width)


class Placement(NamedTuple):
    """The part of a picture that is taken, and the size that it gets."""

    source_box: tuple[float, float, float, float]  # Left, top, right, bottom.
    size: Size


def fit_picture(source: Size, width: int | None, height: int | None, *, fit: Fit, enlarge: bool) -> Placement:
    """Where a picture goes that is to have this width, this height, or both.

    `inside` keeps all of it and its shape, `cover` fills the box and cuts off what is too much at both sides, `exact`
    stretches it. Nothing becomes larger than it was, unless told.
    """
    whole = (0.0, 0.0, float(source.width), float(source.height))
    if fit == "exact" and width is not None and height is not None:
        return Placement(
            whole, Size(*(_bounded_side(*pair, enlarge) for pair in zip((width, height), source, strict=True)))
        )
    scales = [wanted / had for wanted, had in zip((width, height), source, strict=True) if wanted is not None]
    scale = (max if fit == "cover" else min)(scales, default=1.0)
    scale = scale if enlarge else min(scale, 1.0)
    size = Size(*(max(1, round(side * scale)) for side in source))
    if fit != "cover" or width is None or height is None:
        return Placement(whole, size)
    box = Size(min(width, size.width), min(height, size.height))
    return Placement(_centered_box(source, box.width / scale, box.height / scale), box)


def _bounded_side(wanted: int, had: int, enlarge: bool) -> int:
    return wanted if enlarge else min(wanted, had)


def _centered_box(source: Size, width: float, height: float) -> tuple[float, float, float, float]:
    width, height = min(width, source.width), min(height, source.height)
    left, top = (source.width - width) / 2, (source.height - height) / 2
    return left, top, left + width, top + height
