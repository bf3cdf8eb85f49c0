"""Forms: multipart/form-data that is read as it comes, some fields and then a file."""

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
DELIMITERS_MAX: Final = (
    64  # Between parts, and what looks so; no honest file holds any, and the parser is slow at them.
)
FIELD_BYTES_MAX: Final = 8 * 1024
HEADERS_MAX: Final = 8  # Of one part,
HEADER_BYTES_MAX: Final = 4 * 1024  # each.
OTHER_BYTES_MAX: Final = 512 * 1024  # All that is not in the file.
STEP_BYTES: Final = 256 * 1024  # So much is looked at in one go.
UNENCODED: Final = ("", "7bit", "8bit", "binary")
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # What is wrong with a form its sender is told.


class MalformedForm(IngotError):
    """The body is no form."""

    code = "malformed_form"
    status = 400
    hint = "Nothing was kept. Send multipart/form-data as `curl -F` does: the fields, then one file."


class FormTooLarge(IngotError):
    """There is more in the form beside its file than a form holds."""

    code = "form_too_large"
    status = 413
    hint = f"Send up to {FIELDS_MAX} fields of {FIELD_BYTES_MAX} bytes each, and one file."


class FormFile:
    """The file of a form, which is read as it comes. `name` is the one that its sender knows it by."""

    length: None = None  # A form does not tell.

    def __init__(self, form: Form, *, name: str | None, content_type: str | None) -> None:
        self.name = name
        self.content_type = content_type
        self._form = form

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes of the file, as they come. Raises what `RequestBody.chunks` does, and what `Form.read` does."""
        async for part in self._form._file_chunks():
            yield part


class Form:
    """A form: its fields, and the file that stands behind them, whose bytes are not read yet."""

    def __init__(self, boundary: bytes, file: str) -> None:
        self.fields: dict[str, str] = {}
        self.file: FormFile | None = None
        self._file_field = file
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
            max_header_count=HEADERS_MAX,
            max_header_size=HEADER_BYTES_MAX,
        )
        self._pending_chunks: list[bytes] = []  # Of the file, not handed out yet.
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
        """The fields of a form, up to the file in its field `file`, or its end. Each stands once, before the file.

        Raises `UnsupportedMedia`, `MalformedForm`, `FormTooLarge`, `InvalidInput`, and what `RequestBody.chunks` does.
        """
        kind, options = parse_options_header((body.content_type or "")[:HEADER_BYTES_MAX])
        if kind != FORM.encode():
            raise UnsupportedMedia(f"the body is no {FORM}", hint=f"Send Content-Type: {FORM}, as `curl -F` does.")
        if not (boundary := options.get(b"boundary")):
            raise MalformedForm("the content type names no boundary")
        try:
            form = cls(boundary, file)
        except FormParserError:
            raise MalformedForm("the content type names a boundary that is too long") from None
        form._body = body.chunks()
        while form.file is None and not form._is_complete:
            await form._read_more()
        return form

    async def _file_chunks(self) -> AsyncIterator[bytes]:
        while True:
            if self._pending_chunks:
                pieces, self._pending_chunks = self._pending_chunks, []
                yield pieces[0] if len(pieces) == 1 else b"".join(pieces)
            elif self._is_complete:
                break
            else:
                await self._read_more()
        while (rest := await anext(self._body, None)) is not None:  # Nothing may hide behind the end.
            self._count_other_bytes(len(rest))

    async def _read_more(self) -> None:
        """Read some more. What is of the file comes to `_pieces`."""
        data = await anext(self._body, None)
        if data is None:
            raise MalformedForm("the form ends before its last boundary")
        for start in range(0, len(data), STEP_BYTES):
            step = data[start : start + STEP_BYTES] if len(data) > STEP_BYTES else data
            self._delimiters += step.count(self._delimiter)
            if self._delimiters > DELIMITERS_MAX:
                raise FormTooLarge("the form has too many parts, or its boundary stands in its file")
            before = sum(map(len, self._pending_chunks))
            try:
                self._parser.write(step)
            except FormParserError as error:
                raise MalformedForm(f"the form cannot be read: {str(error)[:200]}") from None
            self._count_other_bytes(len(step) - (sum(map(len, self._pending_chunks)) - before))

    def _count_other_bytes(self, size: int) -> None:
        """What is not of the file is bounded as a whole, whatever it is."""
        self._other_bytes += max(0, size)
        if self._other_bytes > OTHER_BYTES_MAX:
            raise FormTooLarge

    # -- what the parser finds --------------------------------------------------------------------------------

    def _on_part_begin(self) -> None:
        if self.file is not None:
            raise InvalidInput("something stands behind the file", hint="Send the file last; nothing was kept.")
        if len(self.fields) >= FIELDS_MAX:
            raise FormTooLarge(f"the form has more than {FIELDS_MAX} fields")
        self._headers = {}
        self._header_name = self._header_value = self._field_value = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        if (name := self._header_name.lower()) in self._headers:
            raise MalformedForm("a part of the form has a header twice")
        self._headers[name] = self._header_value
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        if kind != b"form-data" or b"name" not in options:
            raise MalformedForm("a part of the form has no name")
        name = _decode_text(options[b"name"], "the name of a field")
        content_type = self._headers.get(b"content-type")
        if content_type is not None and content_type.lower().startswith(b"multipart/"):
            raise InvalidInput("a part of the form holds parts itself", hint="Send one file, as a part of its own.")
        if self._headers.get(b"content-transfer-encoding", b"").decode("latin-1").lower() not in UNENCODED:
            raise InvalidInput("a part of the form is encoded", hint="Send the bytes as they are.")
        if name == self._file_field:
            self._in_file = True
            told = options.get(b"filename")
            self.file = FormFile(
                self,
                name=_decode_text(told, "the name of the file") if told else None,
                content_type=None if content_type is None else content_type.decode("latin-1"),
            )
        elif b"filename" in options:
            raise InvalidInput(f"there is a file in the field {name[:100]!r}", hint=f"It goes in {self._file_field!r}.")
        elif name in self.fields:
            raise InvalidInput(f"the field {name[:100]!r} stands twice in the form")
        self._field_name = name

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._pending_chunks.append(data if start == 0 and end == len(data) else data[start:end])
        elif len(self._field_value) + end - start > FIELD_BYTES_MAX:
            raise FormTooLarge(f"the field {self._field_name[:100]!r} has more than {FIELD_BYTES_MAX} bytes")
        else:
            self._field_value += data[start:end]

    def _on_part_end(self) -> None:
        if not self._in_file:
            self.fields[self._field_name] = _decode_text(self._field_value, f"the field {self._field_name[:100]!r}")
        self._in_file = False

    def _on_end(self) -> None:
        self._is_complete = True


def _decode_text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{what} is no UTF-8") from None
