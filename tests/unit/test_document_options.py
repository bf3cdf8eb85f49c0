"""Options of the document handlers, and page selections."""

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


def test_an_empty_payload_has_default_options() -> None:
    assert read_document_options(None, PdfOptions) == read_document_options({}, PdfOptions) == PdfOptions()
    assert read_document_options({"languages": ["deu", "eng"], "dpi": 200}, OcrOptions).languages == ("deu", "eng")


@pytest.mark.parametrize(
    ("payload", "option"),
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
def test_an_invalid_option_is_named(payload: Any, option: str) -> None:
    with pytest.raises(NoRetry, match=option):
        read_document_options(payload, PdfOptions)


@pytest.mark.parametrize("dpi", [0, 71, 601, 10**9])
def test_a_resolution_outside_its_limits_is_rejected(dpi: int) -> None:
    with pytest.raises(NoRetry, match="dpi"):
        read_document_options({"dpi": dpi}, OcrOptions)


@pytest.mark.parametrize(
    ("selection", "pages"),
    [(None, [1, 2, 3, 4, 5]), ("2", [2]), ("2-3", [2, 3]), ("4-", [4, 5]), ("5, 1-2,2", [1, 2, 5])],
)
def test_selected_pages_are_in_the_order_of_the_file(selection: str | None, pages: list[int]) -> None:
    assert select_pages(selection, 5) == pages


@pytest.mark.parametrize("selection", ["6", "1-6", "9-"])
def test_a_missing_page_is_named(selection: str) -> None:
    with pytest.raises(NoRetry, match=r"no page [69]: the file has 5 pages"):
        select_pages(selection, 5)


@pytest.mark.parametrize("pages", [[], [3], [1, 2, 3], [1, 3, 4, 9]])
def test_formatted_page_ranges_select_the_same_pages(pages: list[int]) -> None:
    assert select_pages(format_page_ranges(pages) or None, 9) == (pages or list(range(1, 10)))
