"""Streaming parser of multipart/form-data: some fields, then one file."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ingot.http.problems import UnsupportedMedia
from ingot.http.request import RequestBody
from ingot.kernel.errors import IngotError, InvalidInput

FORM: Final = "multipart/form-data"
FIELDS_MAX: Final = 32
# Boundary delimiters in a body. The parser is slow at them, and a real file does not contain its own boundary.
DELIMITERS_MAX: Final = 64
FIELD_BYTES_MAX: Final = 8 * 1024
PART_HEADERS_MAX: Final = 8
HEADER_BYTES_MAX: Final = 4 * 1024
OTHER_BYTES_MAX: Final = 512 * 1024  # Everything outside the file.
STEP_BYTES: Final = 256 * 1024  # Largest piece that is passed to the parser at once.
UNENCODED: Final = ("", "7bit", "8bit", "binary")
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # Errors in a form are reported to its sender.


class MalformedForm(IngotError):
    """The body is not a valid form."""

    code = "malformed_form"
    status = 400
    hint = "Send multipart/form-data as `curl -F` does: the fields, then one file. Nothing was stored."


class FormTooLarge(IngotError):
    """The fields of the form are too many or too large."""

    code = "form_too_large"
    status = 413
    hint = f"Send up to {FIELDS_MAX} fields of {FIELD_BYTES_MAX} bytes each, and one file."


class FormFile:
    """The file of a form, read as it arrives. `name` is the file name that the client sent."""

    length: None = None  # Forms do not state the size of a file.

    def __init__(self, form: Form, *, name: str | None, content_type: str | None) -> None:
        self.name = name
        self.content_type = content_type
        self._form = form

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the file as they arrive. Raises the errors of `RequestBody.chunks` and `Form.read`."""
        async for chunk in self._form._file_chunks():
            yield chunk


class Form:
    """A form: its fields, and the file after them, which has not been read yet."""

    def __init__(self, boundary: bytes, file_field: str) -> None:
        self.fields: dict[str, str] = {}
        self.file: FormFile | None = None
        self._file_field = file_field
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
            max_header_count=PART_HEADERS_MAX,
            max_header_size=HEADER_BYTES_MAX,
        )
        self._pending_chunks: list[bytes] = []  # Parsed chunks of the file that are not consumed yet.
        self._body: AsyncIterator[bytes]
        self._other_bytes = self._delimiters = 0
        self._delimiter = b"\r\n--" + boundary
        self._headers: dict[bytes, bytes] = {}
        self._header_name = self._header_value = b""
        self._field_name = ""
        self._field_value = b""
        self._in_file = self._is_complete = False

    @classmethod
    async def read(cls, body: RequestBody, *, file: str) -> Form:
        """Read a form up to the beginning of the file in the field `file`, or up to its end. Fields must be unique.

        Raises `UnsupportedMedia`, `MalformedForm`, `FormTooLarge`, `InvalidInput`, and the errors of
        `RequestBody.chunks`.
        """
        content_type, options = parse_options_header((body.content_type or "")[:HEADER_BYTES_MAX])
        if content_type != FORM.encode():
            raise UnsupportedMedia(
                f"the content type is not {FORM}", hint=f"Send Content-Type: {FORM}, as `curl -F` does."
            )
        if not (boundary := options.get(b"boundary")):
            raise MalformedForm("the content type has no boundary")
        try:
            form = cls(boundary, file)
        except FormParserError:
            raise MalformedForm("the boundary in the content type is too long") from None
        form._body = body.chunks()
        while form.file is None and not form._is_complete:
            await form._read_more()
        return form

    async def _file_chunks(self) -> AsyncIterator[bytes]:
        while True:
            if self._pending_chunks:
                chunks, self._pending_chunks = self._pending_chunks, []
                yield chunks[0] if len(chunks) == 1 else b"".join(chunks)
            elif self._is_complete:
                break
            else:
                await self._read_more()
        # Data after the last boundary is discarded, but counts against the limit.
        while (trailing := await anext(self._body, None)) is not None:
            self._count_other_bytes(len(trailing))

    async def _read_more(self) -> None:
        """Parse the next chunk of the body. Bytes of the file are added to `_pending_chunks`."""
        data = await anext(self._body, None)
        if data is None:
            raise MalformedForm("the form ends before its last boundary")
        for start in range(0, len(data), STEP_BYTES):
            step = data[start : start + STEP_BYTES] if len(data) > STEP_BYTES else data
            self._delimiters += step.count(self._delimiter)
            if self._delimiters > DELIMITERS_MAX:
                raise FormTooLarge("the form has too many parts, or its file contains the boundary")
            file_bytes_before = sum(map(len, self._pending_chunks))
            try:
                self._parser.write(step)
            except FormParserError as error:
                raise MalformedForm(f"the form is malformed: {str(error)[:200]}") from None
            self._count_other_bytes(len(step) - (sum(map(len, self._pending_chunks)) - file_bytes_before))

    def _count_other_bytes(self, size: int) -> None:
        """Count bytes outside the file against their common limit. Raises `FormTooLarge`."""
        self._other_bytes += max(0, size)
        if self._other_bytes > OTHER_BYTES_MAX:
            raise FormTooLarge

    # -- callbacks of the parser ------------------------------------------------------------------------------

    def _on_part_begin(self) -> None:
        if self.file is not None:
            raise InvalidInput("the form has a field after the file", hint="Send the file last. Nothing was stored.")
        if len(self.fields) >= FIELDS_MAX:
            raise FormTooLarge(f"the form must have at most {FIELDS_MAX} fields")
        self._headers = {}
        self._header_name = self._header_value = self._field_value = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        if (name := self._header_name.lower()) in self._headers:
            raise MalformedForm("a part of the form has a duplicate header")
        self._headers[name] = self._header_value
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        disposition, options = parse_options_header(self._headers.get(b"content-disposition"))
        if disposition != b"form-data" or b"name" not in options:
            raise MalformedForm("a part of the form has no name")
        name = _decode_text(options[b"name"], "a field name")
        content_type = self._headers.get(b"content-type")
        if content_type is not None and content_type.lower().startswith(b"multipart/"):
            raise InvalidInput("a part of the form is itself multipart", hint="Send one file in a part of its own.")
        if self._headers.get(b"content-transfer-encoding", b"").decode("latin-1").lower() not in UNENCODED:
            raise InvalidInput(
                "a part of the form is encoded", hint="Send raw bytes, without Content-Transfer-Encoding."
            )
        if name == self._file_field:
            self._in_file = True
            file_name = options.get(b"filename")
            self.file = FormFile(
                self,
                name=_decode_text(file_name, "the file name") if file_name else None,
                content_type=None if content_type is None else content_type.decode("latin-1"),
            )
        elif b"filename" in options:
            raise InvalidInput(
                f"the field {name[:100]!r} must not be a file", hint=f"Send the file in the field {self._file_field!r}."
            )
        elif name in self.fields:
            raise InvalidInput(f"the form has the field {name[:100]!r} twice", hint="Send each field once.")
        self._field_name = name

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._pending_chunks.append(data if start == 0 and end == len(data) else data[start:end])
        elif len(self._field_value) + end - start > FIELD_BYTES_MAX:
            raise FormTooLarge(f"the field {self._field_name[:100]!r} must have at most {FIELD_BYTES_MAX} bytes")
        else:
            self._field_value += data[start:end]

    def _on_part_end(self) -> None:
        if not self._in_file:
            self.fields[self._field_name] = _decode_text(self._field_value, f"the field {self._field_name[:100]!r}")
        self._in_file = False

    def _on_end(self) -> None:
        self._is_complete = True


def _decode_text(value: bytes, subject: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{subject} is not valid UTF-8") from None
