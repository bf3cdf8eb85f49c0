"""Forms: what curl sends is read as it comes, and what is no form is refused before it costs anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingot.http.forms import FIELD_BYTES_MAX, FIELDS_MAX, Form, FormTooLarge, MalformedForm
from ingot.http.problems import UnsupportedMedia
from ingot.http.request import Headers, RequestBody
from ingot.kernel.errors import IngotError, InvalidInput
from tests.http.byte_routes import MIB, Depot
from tests.http.curl import curl
from tests.http.serving import Served, serving

FORM = "multipart/form-data; boundary=b"
END = b"--b--\r\n"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", more=Depot().routes()) as served:
        yield served


def part(name: str, value: bytes = b"", more: str = "", **headers: str) -> bytes:
    lines = [f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n']
    lines += [f"{header.replace('_', '-')}: {text}\r\n" for header, text in headers.items()]
    return "".join(lines).encode() + b"\r\n" + value + b"\r\n"


def body_of(content: bytes, kind: str | None = FORM, *, step: int = 1 << 20) -> RequestBody:
    """A body that comes in steps."""
    pieces = [content[start : start + step] for start in range(0, len(content), step)] or [b""]

    async def receive() -> dict[str, Any]:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    headers = [] if kind is None else [(b"content-type", kind.encode("latin-1"))]
    return RequestBody(Headers(headers), receive, bytes_max=None)


async def read(content: bytes, kind: str | None = FORM, *, step: int = 1 << 20) -> tuple[dict[str, str], bytes | None]:
    """The fields of a form, and its file."""
    form = await Form.read(body_of(content, kind, step=step), file="blob")
    if form.file is None:
        return form.fields, None
    return form.fields, b"".join([piece async for piece in form.file.chunks()])


# -- what scripts send ----------------------------------------------------------------------------------------


@pytest.mark.curl
async def test_curl_sends_a_file_with_its_key(site: Served, tmp_path: Path) -> None:
    file = tmp_path / 'f\u00fcr "alle".bin'
    file.write_bytes(b"\r\n--b\r\n" * 1000)
    said = await curl(
        "-F",
        "key=a/b\u00fc",
        "-F",
        f'blob=@"{str(file).replace(chr(34), chr(92) + chr(34))}";type=image/png',
        f"{site.url}/depot/form",
    )
    taken = httpx.Response(200, text=said).json()
    assert taken["fields"] == taken["known"] == {"key": "a/b\u00fc"}
    assert (taken["size"], taken["content_type"]) == (7000, "image/png")
    assert taken["name"].startswith("f\u00fcr ")


async def test_httpx_sends_a_file_with_its_key(site: Served) -> None:
    answer = await site.client.post("/depot/form", data={"key": "k"}, files={"blob": ("n.txt", b"x" * (3 * MIB))})
    taken = answer.json()
    assert (taken["known"], taken["name"], taken["size"]) == ({"key": "k"}, "n.txt", 3 * MIB)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize(
    "value", [b"", b"x", b"\r", b"\r\n--bx", b"\r\n--", b"--b--", b"\r\n\r\n--bb\r\n--bc", bytes(range(256))]
)
async def test_a_file_is_whole_however_it_comes(step: int, value: bytes) -> None:
    whole = part("key", b"k") + part("blob", value, '; filename="f"') + END
    assert await read(whole, step=step) == ({"key": "k"}, value)


async def test_a_form_without_a_file_is_its_fields() -> None:
    assert await read(part("a", b"1") + part("b", b"") + END) == ({"a": "1", "b": ""}, None)
    assert await read(END) == ({}, None)


async def test_a_boundary_may_stand_in_quotes() -> None:
    assert await read(part("a", b"1") + END, 'Multipart/Form-Data; charset=utf-8; boundary="b"') == ({"a": "1"}, None)


# -- what is no form ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "kind", "error"),
    [
        (END, None, UnsupportedMedia),
        (END, "application/json", UnsupportedMedia),
        (END, "multipart/mixed; boundary=b", UnsupportedMedia),
        (END, "multipart/form-data", MalformedForm),
        (END, "multipart/form-data; boundary=", MalformedForm),
        (END, f"multipart/form-data; boundary={'b' * 3000}", MalformedForm),
        (END, "multipart/form-data; boundary=c", MalformedForm),
        (END, "multipart/form-data" + ';"' * 30_000, MalformedForm),
        (b"", FORM, MalformedForm),
        (b"x" * 1000, FORM, MalformedForm),
        (b"--b", FORM, MalformedForm),
        (part("a", b"1"), FORM, MalformedForm),
        (part("a", b"1") + b"--b", FORM, MalformedForm),
        (part("blob", b"1", '; filename="f"'), FORM, MalformedForm),
        (b"--b\r\n\r\nx\r\n" + END, FORM, MalformedForm),
        (b"--b\r\nContent-Disposition: attachment\r\n\r\nx\r\n" + END, FORM, MalformedForm),
        (b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END, FORM, MalformedForm),
        (b"--b\r\nno header\r\n\r\nx\r\n" + END, FORM, MalformedForm),
        (b"--b\r\n" + b"a: b\r\n" * 2 + b"\r\nx\r\n" + END, FORM, MalformedForm),
        (b"--b\r\nx: " + b"a" * 100_000, FORM, MalformedForm),
        (b"--b\r\n" + b"a" * 100_000, FORM, MalformedForm),
        (b"--b\r\n" + b"".join(b"x%d: a\r\n" % n for n in range(1000)), FORM, MalformedForm),
        (part("a", b"\xff") + END, FORM, InvalidInput),
        (part("a") + part("a") + END, FORM, InvalidInput),
        (part("a", b"x", '; filename="f"') + END, FORM, InvalidInput),
        (part("blob", b"x", '; filename="f"') + part("a") + END, FORM, InvalidInput),
        (part("blob", b"x", '; filename="f"') * 2 + END, FORM, InvalidInput),
        (part("blob", b"x", Content_Type="multipart/mixed; boundary=c") + END, FORM, InvalidInput),
        (part("blob", b"x", Content_Transfer_Encoding="base64") + END, FORM, InvalidInput),
        (part("a", b"x" * (FIELD_BYTES_MAX + 1)) + END, FORM, FormTooLarge),
        (b"".join(part(str(n)) for n in range(FIELDS_MAX + 1)) + END, FORM, FormTooLarge),
        (b"\r\n" * 1_000_000, FORM, FormTooLarge),
        (part("blob", b"\r\n--bx" * 1_000_000) + END, FORM, FormTooLarge),
        (part("blob", b"x") + END + b"x" * 1_000_000, FORM, FormTooLarge),
    ],
)
@pytest.mark.parametrize("step", [1 << 20, 100])
async def test_what_is_no_form_is_told_so(content: bytes, kind: str | None, error: type[IngotError], step: int) -> None:
    with pytest.raises(error) as refused:
        await read(content, kind, step=step)
    assert type(refused.value) is error


async def test_as_many_fields_as_there_may_be_are_taken() -> None:
    whole = b"".join(part(str(n), b"x" * FIELD_BYTES_MAX) for n in range(FIELDS_MAX)) + END
    fields, _ = await read(whole)
    assert len(fields) == FIELDS_MAX


@pytest.mark.curl
async def test_a_million_parts_are_not_read(site: Served, tmp_path: Path) -> None:
    file = tmp_path / "parts"
    file.write_bytes(b"".join(part(str(number)) for number in range(1_000_000)))
    words = ["-H", f"content-type: {FORM}", "--data-binary", f"@{file}", "-w", " %{http_code} %{size_upload}"]
    for expect in ("Expect:", "Expect: 100-continue"):
        said = await curl(*words, "-H", expect, f"{site.url}/depot/form")
        answer, status, sent = said.rsplit(" ", 2)
        assert (status, '"code":"form_too_large"' in answer) == ("413", True)
        assert int(sent) < 32 * MIB


async def test_what_is_wrong_with_a_form_is_a_problem(site: Served) -> None:
    for kind, content, status in (
        ("text/plain", b"x", 415),
        (FORM, b"x", 400),
        (FORM, part("a") * 2, 422),
        (FORM, part("a", b"x" * 10_000), 413),
    ):
        answer = await site.client.post("/depot/form", content=content, headers={"content-type": kind})
        assert answer.status_code == status, answer.text
