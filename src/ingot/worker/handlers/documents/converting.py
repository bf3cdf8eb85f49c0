"""A PDF to Markdown: page by page, from where an earlier attempt stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import blake3
import msgspec
import pypdfium2

from ingot.worker.handlers.documents import reading
from ingot.worker.handlers.documents.archive import pack
from ingot.worker.handlers.documents.checkpoints import SAVE_SECONDS, Figure, Header, Page, Pages
from ingot.worker.handlers.documents.composing import composed, first_heading
from ingot.worker.handlers.documents.converters import converter_named
from ingot.worker.handlers.documents.front_matter import front_matter, short_title, source_of
from ingot.worker.handlers.documents.markdown import plain
from ingot.worker.handlers.documents.opening import opened, refuse, title_of
from ingot.worker.handlers.documents.options import DPI, PdfOptions, selected, spans
from ingot.worker.handlers.documents.pace import BATCH_PAGES, Pace
from ingot.worker.handlers.documents.pictures import drawn, pictures_in
from ingot.worker.handlers.documents.ports import Converter, Nobody, PageText, Unreadable, Watch
from ingot.worker.handlers.inputs import stem_of
from ingot.worker.job import NoRetry

PICTURES_MAX: Final = 5_000  # Of a document; the others are left out, and the result says so.
PAGES_PERCENT: Final = 95.0  # When all pages are done; then they are put together.
FALLBACK: Final = {"inspector": "pdfium"}


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a document: files in one folder, and what is to be known of them."""

    markdown: Path
    archive: Path
    pictures: list[Path]
    title: str
    pages: int
    converter: str
    version: str
    ocr_pages: list[int]
    pages_needing_ocr: list[int]
    pictures_left_out: int
    resumed_at: int | None


def convert(
    path: Path,
    options: PdfOptions | None = None,
    *,
    name: str | None = None,
    folder: Path | None = None,
    watch: Watch | None = None,
    save_seconds: float = SAVE_SECONDS,
) -> Converted:
    """Convert a file. What comes of it is in the folder, a new one unless told. Raises `NoRetry`.

    The watch keeps what is done after so many seconds of work, and seldomer later on.
    """
    known = options or PdfOptions()
    with opened(path) as document:
        place = folder or Path(mkdtemp())
        return _Conversion(path, document, known, name or path.name, place, watch or Nobody()).run(save_seconds)


class _Conversion:
    """The conversion of one file."""

    def __init__(
        self,
        path: Path,
        document: pypdfium2.PdfDocument,
        options: PdfOptions,
        name: str,
        folder: Path,
        watch: Watch,
    ) -> None:
        self._path, self._document, self._options, self._watch = path, document, options, watch
        self._folder, self._stem = folder, stem_of(name)
        self._numbers = selected(options.pages, len(document))
        self._source = source_of(path, name)
        self._begun: list[PageText] = []  # The first pages, by which the converter was tried.
        self._name, self._converter = self._chosen()
        self._reads = options.ocr != "never" and self._can_read()
        self._names: dict[bytes, str] = {}  # Of pictures, by their digest: a sign on every page is one file.

    def _chosen(self) -> tuple[str, Converter]:
        """The converter that was asked for, or the one in its place when that cannot read the file."""
        name = self._options.converter
        while True:
            converter = converter_named(name)
            try:
                self._begun = converter.pages(self._path, self._numbers[:BATCH_PAGES])
            except Unreadable as error:
                if name not in FALLBACK:
                    refuse(error, self._path)
                name = FALLBACK[name]
            else:
                return name, converter

    def _can_read(self) -> bool:
        if self._options.ocr == "always":
            reading.expect_program()
        return reading.program() is not None

    def run(self, save_seconds: float) -> Converted:
        """Convert it."""
        pages = Pages(self._watch, self._header(), save_seconds)
        done = pages.load()
        for page in pages.done:
            self._keep(page.figures)
        for number, text in self._texts(done):
            self._watch.check()
            pages.add(self._page(number, text))
            count = len(pages.done)
            percent = PAGES_PERCENT * count / len(self._numbers)
            self._watch.progress(percent, f"page {count} of {len(self._numbers)}")
        resumed_at = self._numbers[min(done, len(self._numbers) - 1)] if done else None
        return self._made(pages.done, resumed_at)

    def _header(self) -> Header:
        return Header(
            source=self._source.blake3,
            options=msgspec.json.encode([self._options, self._reads, self._stem]).decode(),
            converter=f"{self._name} {self._converter.version}",
        )

    def _texts(self, done: int) -> Iterator[tuple[int, PageText]]:
        """The pages behind those that are done as the converter reads them, a batch at a time."""
        begun = len(self._begun)
        yield from list(zip(self._numbers, self._begun, strict=False))[done:]
        left, pace = self._numbers[max(done, begun) :], Pace()
        while left:
            batch, left = left[: pace.pages], left[pace.pages :]
            began = time.monotonic()
            try:
                texts = self._converter.pages(self._path, batch)
            except Unreadable as error:
                raise NoRetry(f"pages {batch[0]} to {batch[-1]} cannot be read: {error}") from error
            pace.note(len(batch), time.monotonic() - began)
            yield from zip(batch, texts, strict=True)

    def _page(self, number: int, text: PageText) -> Page:
        wanted = self._options.ocr == "always" or text.is_picture
        if not wanted and not self._options.images:
            return Page(number=number, text=text.markdown, sizes=text.sizes)
        try:
            page = self._document[number - 1]
        except pypdfium2.PdfiumError:  # The converter knows a page that pdfium does not.
            unread = "it cannot be drawn." if wanted else ""
            return Page(number=number, text=text.markdown, sizes=text.sizes, unread=unread)
        try:
            return self._seen(number, text, page, wanted=wanted)
        finally:
            page.close()

    def _seen(self, number: int, text: PageText, page: Any, *, wanted: bool) -> Page:
        """A page with what only its picture shows."""
        found, unread, sizes = text.markdown, "", text.sizes
        if wanted and not self._is_blank(page):
            found, unread = self._read(page, number, text.markdown)
            sizes = () if not unread else sizes
        was_read = wanted and not unread and found != text.markdown
        figures = list(self._figures(page, number, without_the_page=was_read)) if self._options.images else []
        return Page(
            number=number,
            text=found,
            sizes=sizes,
            was_read=was_read,
            unread=unread,
            figures=tuple(figure for figure in figures if figure is not None),
            left_out=figures.count(None),
        )

    @staticmethod
    def _is_blank(page: Any) -> bool:
        """Whether there is nothing on a page, so that there is nothing to read."""
        return next(iter(page.get_objects(max_depth=1)), None) is None

    def _read(self, page: Any, number: int, otherwise: str) -> tuple[str, str]:
        """The text of a page by OCR; or what is known of it otherwise, and why it was not read."""
        if not self._reads:
            why = "OCR was not asked for" if self._options.ocr == "never" else f"there is no {reading.PROGRAM} here"
            return otherwise, f"{why}."
        reading.check_languages(self._options.languages)  # Asked for by a page that needs it: it takes a while.
        try:
            return plain(reading.read(drawn(page, number, dpi=DPI), self._options.languages, dpi=DPI)), ""
        except reading.NotRead as error:
            return otherwise, f"{error}."

    def _figures(self, page: Any, number: int, *, without_the_page: bool) -> Iterator[Figure | None]:
        """The pictures of a page; `None` for each that is left out."""
        for count, picture in enumerate(pictures_in(page, number, without_the_page=without_the_page), 1):
            digest = blake3.blake3(picture.data).digest()
            if name := self._names.get(digest):
                yield Figure(name=name, above=picture.above)
            elif len(self._names) >= PICTURES_MAX:
                yield None
            else:
                name = f"{self._stem}-p{number:03d}-{count}.{picture.suffix}"
                figure = Figure(name=name, above=picture.above, data=picture.data)
                self._keep([figure])
                yield figure

    def _keep(self, figures: Sequence[Figure]) -> None:
        for figure in figures:
            if figure.data is not None:
                (self._folder / figure.name).write_bytes(figure.data)
                self._names[blake3.blake3(figure.data).digest()] = figure.name

    def _made(self, pages: list[Page], resumed_at: int | None) -> Converted:
        ocr_pages = [page.number for page in pages if page.was_read]
        title = title_of(self._document) or short_title(first_heading(pages)) or self._stem
        head = front_matter(
            self._source,
            title=title,
            pages=len(self._document),
            converter=f"{self._name} {self._converter.version}",
            ocr_pages=spans(ocr_pages),
            converted_pages="" if self._options.pages is None else spans(self._numbers),
        )
        markdown = self._folder / f"{self._stem}.md"
        markdown.write_text(head + composed(pages), encoding="utf-8", errors="replace")
        pictures = [self._folder / name for name in self._names.values()]
        return Converted(
            markdown=markdown,
            archive=pack([markdown, *pictures], self._folder / f"{self._stem}.zip"),
            pictures=pictures,
            title=title,
            pages=len(self._document),
            converter=self._name,
            version=self._converter.version,
            ocr_pages=ocr_pages,
            pages_needing_ocr=[page.number for page in pages if page.unread],
            pictures_left_out=sum(page.left_out for page in pages),
            resumed_at=resumed_at,
        )
