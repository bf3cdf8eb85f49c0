"""What handlers of documents take, and what they call what they make."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.worker.handlers.documents.options import OcrOptions, PdfOptions, options_of, selected, spans
from ingot.worker.job import NoRetry


def test_no_payload_means_the_defaults() -> None:
    assert options_of(None, PdfOptions) == options_of({}, PdfOptions) == PdfOptions()
    assert options_of({"languages": ["deu", "eng"], "dpi": 200}, OcrOptions).languages == ("deu", "eng")


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"colour": True}, "colour"),
        ({"ocr": "sometimes"}, "ocr"),
        ({"images": "yes"}, "images"),
        ({"languages": "eng"}, "languages"),
        ({"languages": []}, "languages"),
        ({"languages": ["../../etc/passwd"]}, "languages"),
        ({"languages": ["-l"]}, "languages"),
        ({"languages": ["eng"] * 9}, "languages"),
        ({"pages": "three"}, "pages"),
        ({"pages": "0"}, "pages"),
        ({"pages": "5-3"}, "pages"),
        ({"pages": ""}, "pages"),
        ({"pages": "1," * 600}, "pages"),
        (["pdf"], "options"),
        ("pdf", "options"),
    ],
)
def test_a_wrong_option_is_named(payload: Any, named: str) -> None:
    with pytest.raises(NoRetry, match=named):
        options_of(payload, PdfOptions)


@pytest.mark.parametrize("dpi", [0, 71, 601, 10**9])
def test_a_picture_is_not_drawn_finer_than_may_be(dpi: int) -> None:
    with pytest.raises(NoRetry, match="dpi"):
        options_of({"dpi": dpi}, OcrOptions)


@pytest.mark.parametrize(
    ("selection", "pages"),
    [(None, [1, 2, 3, 4, 5]), ("2", [2]), ("2-3", [2, 3]), ("4-", [4, 5]), ("5, 1-2,2", [1, 2, 5])],
)
def test_pages_are_chosen_in_the_order_of_the_file(selection: str | None, pages: list[int]) -> None:
    assert selected(selection, 5) == pages


@pytest.mark.parametrize("selection", ["6", "1-6", "9-"])
def test_a_page_that_is_not_there_is_named(selection: str) -> None:
    with pytest.raises(NoRetry, match="there is no page"):
        selected(selection, 5)


@pytest.mark.parametrize("pages", [[], [3], [1, 2, 3], [1, 3, 4, 9]])
def test_pages_in_words_name_the_same_pages(pages: list[int]) -> None:
    assert selected(spans(pages) or None, 9) == (pages or list(range(1, 10)))
