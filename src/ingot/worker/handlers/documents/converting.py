"""Converts a PDF to Markdown page by page, and resumes where an earlier attempt stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import blake3
import msgspec
import pypdfium2

from ingot.worker.handlers.documents import tesseract
from ingot.worker.handlers.documents.archive import write_archive
from ingot.worker.handlers.documents.batch_size import BATCH_PAGES, BatchSize
from ingot.worker.handlers.documents.checkpoints import (
    SAVE_SECONDS,
    CheckpointHeader,
    FinishedPage,
    PageCheckpoints,
    PagePicture,
)
from ingot.worker.handlers.documents.converters import load_converter
from ingot.worker.handlers.documents.document_markdown import compose_markdown, first_heading
from ingot.worker.handlers.documents.front_matter import front_matter, identify_source, short_title
from ingot.worker.handlers.documents.markdown import escape_markdown
from ingot.worker.handlers.documents.options import DPI_DEFAULT, PdfOptions, format_page_ranges, select_pages
from ingot.worker.handlers.documents.pdf_file import open_pdf, pdf_title, reject
from ingot.worker.handlers.documents.pictures import extract_pictures, render_page
from ingot.worker.handlers.documents.ports import ConversionProgress, Converter, NoProgress, PageText, Unreadable
from ingot.worker.handlers.inputs import output_stem
from ingot.worker.job import NoRetry

PICTURES_MAX: Final = 5_000  # Per document. More are omitted, and the result says how many.
PAGES_PERCENT: Final = 95.0  # Progress when all pages are converted; the rest is for writing the outputs.
FALLBACK_CONVERTERS: Final = {"inspector": "pdfium"}


class ConvertedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The output files of a conversion, which are in one folder, and facts about the document."""

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
    progress: ConversionProgress | None = None,
    save_seconds: float = SAVE_SECONDS,
) -> ConvertedDocument:
    """Convert a file and write the outputs to `folder`, by default a new temporary folder. Raises `NoRetry`.

    A checkpoint is saved through `progress` after `save_seconds` of work, and then at growing intervals.
    """
    resolved_options = options or PdfOptions()
    with open_pdf(path) as document:
        output_folder = folder or Path(mkdtemp())
        return _Conversion(
            path, document, resolved_options, name or path.name, output_folder, progress or NoProgress()
        ).run(save_seconds)


class _Conversion:
    """The conversion of one file."""

    def __init__(
        self,
        path: Path,
        document: pypdfium2.PdfDocument,
        options: PdfOptions,
        name: str,
        folder: Path,
        progress: ConversionProgress,
    ) -> None:
        self._path, self._document, self._options, self._progress = path, document, options, progress
        self._folder, self._stem = folder, output_stem(name)
        self._page_numbers = select_pages(options.pages, len(document))
        self._source = identify_source(path, name)
        self._trial_pages: list[PageText] = []  # The first pages, converted to test whether the converter works.
        self._converter_name, self._converter = self._select_converter()
        self._uses_ocr = options.ocr != "never" and self._is_ocr_available()
        self._picture_names: dict[bytes, str] = {}  # By digest, so that a logo on every page is stored once.

    def _select_converter(self) -> tuple[str, Converter]:
        """Return the requested converter, or its fallback if it cannot read the file."""
        name = self._options.converter
        while True:
            converter = load_converter(name)
            try:
                self._trial_pages = converter.pages(self._path, self._page_numbers[:BATCH_PAGES])
            except Unreadable as error:
                if name not in FALLBACK_CONVERTERS:
                    reject(error, self._path)
                name = FALLBACK_CONVERTERS[name]
            else:
                return name, converter

    def _is_ocr_available(self) -> bool:
        if self._options.ocr == "always":
            tesseract.require_program()
        return tesseract.find_program() is not None

    def run(self, save_seconds: float) -> ConvertedDocument:
        """Convert the document."""
        pages = PageCheckpoints(self._progress, self._header(), save_seconds)
        done = pages.load()
        for page in pages.pages:
            self._write_pictures(page.figures)
        for number, text in self._read_pages(done):
            self._progress.check()
            pages.add(self._convert_page(number, text))
            count = len(pages.pages)
            percent = PAGES_PERCENT * count / len(self._page_numbers)
            self._progress.progress(percent, f"page {count} of {len(self._page_numbers)}")
        resumed_at = self._page_numbers[min(done, len(self._page_numbers) - 1)] if done else None
        return self._write_document(pages.pages, resumed_at)

    def _header(self) -> CheckpointHeader:
        return CheckpointHeader(
            source=self._source.blake3,
            options=msgspec.json.encode([self._options, self._uses_ocr, self._stem]).decode(),
            converter=f"{self._converter_name} {self._converter.version}",
        )

    def _read_pages(self, done: int) -> Iterator[tuple[int, PageText]]:
        """Yield the number and text of each page after the first `done` pages, converted in batches."""
        trial_count = len(self._trial_pages)
        yield from list(zip(self._page_numbers, self._trial_pages, strict=False))[done:]
        remaining, batch_size = self._page_numbers[max(done, trial_count) :], BatchSize()
        while remaining:
            batch, remaining = remaining[: batch_size.pages], remaining[batch_size.pages :]
            started_at = time.monotonic()
            try:
                texts = self._converter.pages(self._path, batch)
            except Unreadable as error:
                raise NoRetry(f"pages {batch[0]} to {batch[-1]} cannot be read: {error}") from error
            batch_size.record(len(batch), time.monotonic() - started_at)
            yield from zip(batch, texts, strict=True)

    def _convert_page(self, number: int, text: PageText) -> FinishedPage:
        needs_ocr = self._options.ocr == "always" or text.is_picture
        if not needs_ocr and not self._options.images:
            return FinishedPage(number=number, text=text.markdown, sizes=text.sizes)
        try:
            page = self._document[number - 1]
        except pypdfium2.PdfiumError:  # The converter can read this page but pdfium cannot.
            unread = "the page cannot be rendered." if needs_ocr else ""
            return FinishedPage(number=number, text=text.markdown, sizes=text.sizes, unread=unread)
        try:
            return self._enrich_page(number, text, page, needs_ocr=needs_ocr)
        finally:
            page.close()

    def _enrich_page(self, number: int, text: PageText, page: Any, *, needs_ocr: bool) -> FinishedPage:
        """Add OCR text and pictures to a page."""
        markdown, unread, sizes = text.markdown, "", text.sizes
        if needs_ocr and not self._is_blank(page):
            markdown, unread = self._ocr_page(page, number, text.markdown)
            sizes = () if not unread else sizes
        was_read = needs_ocr and not unread and markdown != text.markdown
        figures = list(self._extract_pictures(page, number, skip_full_page=was_read)) if self._options.images else []
        return FinishedPage(
            number=number,
            text=markdown,
            sizes=sizes,
            was_read=was_read,
            unread=unread,
            figures=tuple(figure for figure in figures if figure is not None),
            left_out=figures.count(None),
        )

    @staticmethod
    def _is_blank(page: Any) -> bool:
        """Whether the page is empty, so that it needs no OCR."""
        return next(iter(page.get_objects(max_depth=1)), None) is None

    def _ocr_page(self, page: Any, number: int, fallback: str) -> tuple[str, str]:
        """Return the OCR text of a page and an empty string, or `fallback` and the reason why there is no OCR."""
        if not self._uses_ocr:
            if self._options.ocr == "never":
                return fallback, "OCR is turned off by the option ocr."
            return fallback, f"{tesseract.PROGRAM} is not installed on the worker."
        tesseract.check_languages(self._options.languages)  # Only now, because it takes time and few documents need it.
        try:
            return escape_markdown(
                tesseract.recognize_text(
                    render_page(page, number, dpi=DPI_DEFAULT), self._options.languages, dpi=DPI_DEFAULT
                )
            ), ""
        except tesseract.OcrFailed as error:
            return fallback, f"{error}."

    def _extract_pictures(self, page: Any, number: int, *, skip_full_page: bool) -> Iterator[PagePicture | None]:
        """Yield the pictures of a page, and `None` for each that is omitted because of `PICTURES_MAX`."""
        for count, picture in enumerate(extract_pictures(page, number, skip_full_page=skip_full_page), 1):
            digest = blake3.blake3(picture.data).digest()
            if name := self._picture_names.get(digest):
                yield PagePicture(name=name, above=picture.above)
            elif len(self._picture_names) >= PICTURES_MAX:
                yield None
            else:
                name = f"{self._stem}-p{number:03d}-{count}.{picture.suffix}"
                figure = PagePicture(name=name, above=picture.above, data=picture.data)
                self._write_pictures([figure])
                yield figure

    def _write_pictures(self, figures: Sequence[PagePicture]) -> None:
        for figure in figures:
            if figure.data is not None:
                (self._folder / figure.name).write_bytes(figure.data)
                self._picture_names[blake3.blake3(figure.data).digest()] = figure.name

    def _write_document(self, pages: list[FinishedPage], resumed_at: int | None) -> ConvertedDocument:
        ocr_pages = [page.number for page in pages if page.was_read]
        title = pdf_title(self._document) or short_title(first_heading(pages)) or self._stem
        head = front_matter(
            self._source,
            title=title,
            pages=len(self._document),
            converter=f"{self._converter_name} {self._converter.version}",
            ocr_pages=format_page_ranges(ocr_pages),
            converted_pages="" if self._options.pages is None else format_page_ranges(self._page_numbers),
        )
        markdown = self._folder / f"{self._stem}.md"
        markdown.write_text(head + compose_markdown(pages), encoding="utf-8", errors="replace")
        pictures = [self._folder / name for name in self._picture_names.values()]
        return ConvertedDocument(
            markdown=markdown,
            archive=write_archive([markdown, *pictures], self._folder / f"{self._stem}.zip"),
            pictures=pictures,
            title=title,
            pages=len(self._document),
            converter=self._converter_name,
            version=self._converter.version,
            ocr_pages=ocr_pages,
            pages_needing_ocr=[page.number for page in pages if page.unread],
            pictures_left_out=sum(page.left_out for page in pages),
            resumed_at=resumed_at,
        )
