"""Ranges and conditions of RFC 9110, and safe values of Content-Disposition and Content-Type."""

from __future__ import annotations

import re
from contextlib import suppress
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.http.authentication import ANONYMOUS
from ingot.http.ranges import (
    PreconditionFailed,
    RangeNotSatisfiable,
    SelectedRange,
    content_disposition,
    safe_content_type,
    select_range,
)
from ingot.http.request import Headers, Request
from ingot.kernel.errors import InvalidInput

ETAG = '"abc"'
HUGE = "9" * 5000


def select(size: int = 1000, *, method: str = "GET", **headers: str) -> SelectedRange:
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    call = Request(caller=ANONYMOUS, tenant="", headers=Headers(raw), path_params={}, request_id="", method=method)
    return select_range(call, size=size, etag=ETAG)


@pytest.mark.parametrize(
    ("sent", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-", 0, 1000),
        ("bytes=5-9", 5, 10),
        ("BYTES=5-9", 5, 10),
        ("bytes= 5-9 ", 5, 10),
        ("bytes=999-999", 999, 1000),
        ("bytes=990-5000", 990, 1000),
        ("bytes=-1", 999, 1000),
        ("bytes=-1000", 0, 1000),
        ("bytes=-5000", 0, 1000),
        (f"bytes=-{HUGE}", 0, 1000),
        (f"bytes=7-{HUGE}", 7, 1000),
        (f"bytes={'0' * 5000}7-8", 7, 9),
    ],
)
def test_a_single_range_selects_a_part(sent: str, start: int, end: int) -> None:
    selected = select(range=sent)
    assert (selected.status, selected.start, selected.end, selected.length) == (206, start, end, end - start)
    assert selected.headers["content-range"] == f"bytes {start}-{end - 1}/1000"


@pytest.mark.parametrize(
    "sent",
    [
        "bytes=0-1,5-6",
        "bytes=" + ",".join(f"{n}-{n}" for n in range(5000)),
        "bytes=0-,0-,0-",
        "bytes=9-5",
        "bytes=--5",
        "bytes=-",
        "bytes=5",
        "bytes=a-b",
        "bytes=1-2-3",
        "bytes=+1-2",
        "bytes=1e3-",
        "bytes=\u00b2-\u00b3",
        "lines=1-2",
        "bytes 1-2",
        "",
    ],
)
def test_an_invalid_or_multiple_range_selects_the_whole(sent: str) -> None:
    selected = select(range=sent)
    assert (selected.status, selected.start, selected.end) == (200, 0, 1000)
    assert "content-range" not in selected.headers


@pytest.mark.parametrize(
    "sent", ["bytes=1000-", "bytes=1000-2000", "bytes=-0", f"bytes={HUGE}-", f"bytes={HUGE}-{HUGE}"]
)
def test_a_range_beyond_the_end_is_not_satisfiable(sent: str) -> None:
    with pytest.raises(RangeNotSatisfiable) as caught:
        select(range=sent)
    assert caught.value.headers == {"content-range": "bytes */1000"}


@pytest.mark.parametrize("sent", ["bytes=0-", "bytes=-1", "bytes=0-0"])
def test_every_range_of_an_empty_file_is_not_satisfiable(sent: str) -> None:
    with pytest.raises(RangeNotSatisfiable):
        select(0, range=sent)
    assert select(0).length == 0


@given(size=st.integers(0, 50), first=st.integers(0, 60), last=st.integers(0, 60))
def test_a_range_selects_the_same_bytes_as_a_slice(size: int, first: int, last: int) -> None:
    content = bytes(range(size))
    try:
        selected = select(size, range=f"bytes={first}-{last}")
    except RangeNotSatisfiable:
        assert content[first : last + 1] == b""
        return
    if last < first:
        assert (selected.status, selected.start, selected.end) == (200, 0, size)
    else:
        assert content[selected.start : selected.end] == content[first : last + 1] != b""


def test_malicious_range_headers_are_processed_fast() -> None:
    for sent in ("bytes=" + "0-," * 20_000, "bytes=" + "9" * 60_000 + "-", "bytes=" + "1-2" * 20_000):
        with suppress(RangeNotSatisfiable):
            select(range=sent)
    for tags in ('"a",' * 15_000, '"' * 60_000, "W/" * 30_000, '"' + "a" * 60_000, ('W/"x' * 15_000)):
        assert select(if_none_match=tags).status == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ('"abc"', 304),
        ('W/"abc"', 304),
        ('"x", W/"abc" , "y"', 304),
        ("*", 304),
        ('"x"', 200),
        ("abc", 200),
        ('"abcd"', 200),
    ],
)
def test_a_matching_if_none_match_is_304(sent: str, status: int) -> None:
    assert select(if_none_match=sent).status == status
    assert select(if_none_match=sent, method="HEAD").status == status
    assert select(if_none_match=sent, range="bytes=0-1").status == (304 if status == 304 else 206)


@pytest.mark.parametrize(
    ("sent", "matches"),
    [('"abc"', True), ('"x","abc"', True), ("*", True), ('W/"abc"', False), ('"x"', False), ("abc", False)],
)
def test_an_if_match_that_does_not_match_raises_precondition_failed(sent: str, matches: bool) -> None:
    if matches:
        assert select(if_match=sent).status == 200
    else:
        with pytest.raises(PreconditionFailed):
            select(if_match=sent, range="bytes=0-1")


@pytest.mark.parametrize(
    ("sent", "status"),
    [('"abc"', 206), ('W/"abc"', 200), ('"x"', 200), ("Sun, 06 Nov 1994 08:49:37 GMT", 200), ("*", 200)],
)
def test_an_if_range_that_does_not_match_selects_the_whole(sent: str, status: int) -> None:
    assert select(range="bytes=0-1", if_range=sent).status == status


def test_head_ignores_ranges() -> None:
    assert select(range="bytes=0-1", method="HEAD").status == 200
    assert select(range="bytes=5000-", method="HEAD").status == 200


def test_a_repeated_condition_is_rejected() -> None:
    headers = Headers([(b"if-match", b'"abc"'), (b"if-match", b'"x"')])
    call = Request(caller=ANONYMOUS, tenant="", headers=headers, path_params={}, request_id="")
    with pytest.raises(InvalidInput):
        select_range(call, size=1, etag=ETAG)


# -- names and types ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (None, "attachment"),
        ("", "attachment"),
        ("a b.txt", 'attachment; filename="a b.txt"'),
        ("100%.txt", "attachment; filename=\"100_.txt\"; filename*=UTF-8''100%25.txt"),
        ("\u20ac.txt", "attachment; filename=\"_.txt\"; filename*=UTF-8''%E2%82%AC.txt"),
        ('a";\r\nx: y', "attachment; filename=\"a_;__x: y\"; filename*=UTF-8''a%22%3B%0D%0Ax%3A%20y"),
        ("../../etc/passwd", "attachment; filename=\".._.._etc_passwd\"; filename*=UTF-8''..%2F..%2Fetc%2Fpasswd"),
    ],
)
def test_content_disposition_contains_the_name_safely(name: str | None, value: str) -> None:
    assert content_disposition(name) == value


@given(name=st.text())
def test_every_name_gives_a_valid_header(name: str) -> None:
    value = content_disposition(name)
    assert re.fullmatch(r"[ -~]*", value)
    assert value.count('"') in (0, 2)
    if (match := re.search(r"filename\*=UTF-8''(.*)", value)) is not None:
        assert unquote(match[1]) == name[:255].encode(errors="replace").decode()


@pytest.mark.parametrize(
    "content_type",
    [
        "image/png",
        "text/plain; charset=utf-8",
        'text/csv; header="present, or not"',
        "application/pdf",
        "application/json",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "application/postscript",
    ],
)
def test_a_content_type_that_browsers_do_not_execute_is_kept(content_type: str) -> None:
    assert safe_content_type(content_type) == content_type


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "html",
        "text/html",
        "TEXT/HTML; charset=utf-8",
        "application/xhtml+xml",
        "image/svg+xml",
        "application/xml",
        "text/xml",
        "text/css",
        "text/javascript",
        "text/javascript1.5",
        "application/x-javascript",
        "text/jscript",
        "application/wasm",
        "multipart/x-mixed-replace; boundary=x",
        "message/rfc822",
        "image/png\r\nx: y",
        "image/png; a=\u20ac",
        "image/png, text/html",
        "image/" + "p" * 300,
    ],
)
def test_a_content_type_that_browsers_could_execute_becomes_binary(content_type: str | None) -> None:
    assert safe_content_type(content_type) == "application/octet-stream"
