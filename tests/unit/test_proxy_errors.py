"""Error pages of a proxy in front of the server, and pages of other programs: the client says what they are."""

from __future__ import annotations

import msgspec
import pytest

from ingot.cli import EXIT_CODES_BY_ERROR, EXIT_CODES_BY_STATUS
from ingot.client.errors import error_from_response, invalid_response_error

PAGE = b"<html>\r\n<head><title>%s</title></head>\r\n<body><center><h1>%s</h1></center></body></html>\r\n"


@pytest.mark.parametrize(
    ("status", "title", "code", "exit_code"),
    [
        (413, "413 Request Entity Too Large", "proxy_limit", 5),
        (502, "502 Bad Gateway", "server_unreachable", 6),
        (503, "503 Service Temporarily Unavailable", "server_unreachable", 6),
        (504, "504 Gateway Time-out", "server_unreachable", 6),
        (404, "404 Not Found", "not_ingot", 10),
    ],
)
def test_an_error_page_is_named_by_its_title(status: int, title: str, code: str, exit_code: int) -> None:
    error = error_from_response(status, PAGE % (title.encode(), title.encode()))
    assert (error.code, error.status) == (code, 502 if status == 404 else 413 if status == 413 else 503)
    assert repr(title) in error.detail
    assert "<" not in error.detail
    assert (EXIT_CODES_BY_ERROR.get(error.code) or EXIT_CODES_BY_STATUS.get(error.status, 1)) == exit_code


def test_a_page_instead_of_a_result_is_named_by_its_title() -> None:
    error = invalid_response_error(b"<!DOCTYPE html>\n<html><title>\nSign in</title>", msgspec.DecodeError())
    assert (error.code, error.detail) == ("not_ingot", "the response is not from Ingot: 'Sign in'")


def test_other_text_is_quoted_from_its_beginning() -> None:
    assert "'no upstream'" in error_from_response(502, b"no upstream").detail
