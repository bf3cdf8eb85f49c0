"""What handlers of documents take, and what they call what they make."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.worker.handlers.documents.options import (
    OcrOptions,
    PdfOptions,
    format_page_ranges,
    read_document_options,
    select_pages,
)
from ingot.worker.job import NoRetry


def test_no_payload_means_the_defaults() -> None:
    assert read_document_options(None, PdfOptions) == read_document_options({}, PdfOptions) == PdfOptions()
    assert read_document_options({"languages": ["deu", "eng"], "dpi": 200}, OcrOptions).languages == ("deu", "eng")


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
        read_document_options(payload, PdfOptions)


@pytest.mark.parametrize("dpi", [0, 71, 601, 10**9])
def test_a_picture_is_not_drawn_finer_than_may_be(dpi: int) -> None:
    with pytest.raises(NoRetry, match="dpi"):
        read_document_options({"dpi": dpi}, OcrOptions)


@pytest.mark.parametrize(
    ("selection", "pages"),
    [(None, [1, 2, 3, 4, 5]), ("2", [2]), ("2-3", [2, 3]), ("4-", [4, 5]), ("5, 1-2,2", [1, 2, 5])],
)
def test_pages_are_chosen_in_the_order_of_the_file(selection: str | None, pages: list[int]) -> None:
    assert select_pages(selection, 5) == pages


@pytest.mark.parametrize("selection", ["6", "1-6", "9-"])
def test_a_page_that_is_not_there_is_named(selection: str) -> None:
    with pytest.raises(NoRetry, match=r"no page [69]: the file has 5 pages"):
        select_pages(selection, 5)


@pytest.mark.parametrize("pages", [[], [3], [1, 2, 3], [1, 3, 4, 9]])
def test_pages_in_words_name_the_same_pages(pages: list[int]) -> None:
    assert select_pages(format_page_ranges(pages) or None, 9) == (pages or list(range(1, 10)))
