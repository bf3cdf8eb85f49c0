"""Options of the built-in handlers, and names of their outputs."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.worker import NoRetry
from ingot.worker.handlers.inputs import output_stem
from ingot.worker.handlers.options import read_options
from ingot.worker.handlers.pictures.options import ImageOptions


def test_an_empty_payload_has_default_options() -> None:
    assert read_options(None, ImageOptions) == read_options({}, ImageOptions) == ImageOptions()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"widht": 1}, "unknown option 'widht'; .* width, height, fit"),
        ({"width": "1"}, "option width .* expected `int"),
        ({"width": 0}, "option width .* >= 1"),
        ({"height": 70_000}, "option height .* <= 65500"),
        ({"fit": "squeeze"}, "option fit .* 'squeeze'"),
        ({"fit": "cover", "width": 3}, "fit cover needs both width and height"),
        ({"format": "eps"}, "option format .* 'eps'"),
        ({"quality": 101}, "option quality .* <= 100"),
        ({"background": "of no colour"}, "background is not a colour"),
        ([1], "options are invalid: expected `object`"),
        ("png", "options are invalid: expected `object`"),
    ],
)
def test_an_invalid_option_is_named(payload: Any, message: str) -> None:
    with pytest.raises(NoRetry, match=message):
        read_options(payload, ImageOptions)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("handbook.pdf", "handbook"),
        ("no suffix", "no suffix"),
        ("two.dots.PDF", "two.dots"),
        (".pdf", "pdf"),
        ("...", "document"),
        ("a\u202eb\n.pdf", "a-b-"),
        ("..\\..\\up.pdf", "up"),
        ("ä" * 300 + ".pdf", "ä" * 60),
    ],
)
def test_outputs_are_named_after_their_source(name: str, stem: str) -> None:
    assert output_stem(name) == stem
