"""The handler `ocr`: extracts the text of images and scans with tesseract."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ingot.worker.handlers.documents import preload as _preload  # noqa: F401
from ingot.worker.handlers.documents import tesseract
from ingot.worker.handlers.documents.checkpoints import CheckpointHeader, FinishedPage, PageCheckpoints
from ingot.worker.handlers.documents.document_markdown import compose_markdown
from ingot.worker.handlers.documents.front_matter import SourceFile, front_matter, identify_source
from ingot.worker.handlers.documents.markdown import escape_markdown
from ingot.worker.handlers.documents.ocr_pages import OcrPages, open_ocr_pages
from ingot.worker.handlers.documents.options import OcrOptions, format_page_ranges, read_document_options, select_pages
from ingot.worker.handlers.documents.ports import ConversionProgress
from ingot.worker.handlers.inputs import MARKDOWN_CONTENT_TYPE, TEXT_CONTENT_TYPE, only_input, output_stem
from ingot.worker.job import WorkerJob

OCR_ENGINE: Final = "tesseract"
LISTED_PAGES_MAX: Final = 2_000  # In the result of the job. The Markdown lists all pages.


def handle(job: WorkerJob) -> dict[str, Any]:
    """Extract the text of the only input of a job. Raises `NoRetry` if it cannot be read."""
    options = read_document_options(job.payload, OcrOptions)
    tesseract.check_languages(options.languages)
    name = only_input(job.inputs)
    path = job.download()
    source = identify_source(path, name)
    with open_ocr_pages(path, dpi=options.dpi) as ocr_pages:
        numbers = select_pages(options.pages, ocr_pages.count)
        pages, resumed_at = _read_pages(ocr_pages, numbers, options, source=source, progress=job)
        title = ocr_pages.title or output_stem(source.name)
        count = ocr_pages.count
    stem = output_stem(source.name)
    read_page_numbers = [page.number for page in pages if page.was_read]
    header_text = front_matter(
        source, title=title, pages=count, converter=OCR_ENGINE, ocr_pages=format_page_ranges(read_page_numbers)
    )
    text = "\f".join(page.text for page in pages) + "\n"
    escaped_pages = [msgspec.structs.replace(page, text=escape_markdown(page.text)) for page in pages]
    job.upload(text.encode(), f"{stem}.txt", TEXT_CONTENT_TYPE)
    job.upload((header_text + compose_markdown(escaped_pages)).encode(), f"{stem}.md", MARKDOWN_CONTENT_TYPE)
    result: dict[str, Any] = {
        "title": title,
        "pages": count,
        "text": f"{stem}.txt",
        "markdown": f"{stem}.md",
        "characters": sum(len(page.text) for page in pages),
        "pages_not_read": [page.number for page in pages if page.unread][:LISTED_PAGES_MAX],
    }
    return result | ({} if resumed_at is None else {"resumed_at": resumed_at})


def _read_pages(
    ocr_pages: OcrPages, numbers: list[int], options: OcrOptions, *, source: SourceFile, progress: ConversionProgress
) -> tuple[list[FinishedPage], int | None]:
    """Read the pages. Return them, and the page at which this attempt resumed, if an earlier one had read some."""
    header = CheckpointHeader(source=source.blake3, options=msgspec.json.encode(options).decode(), converter=OCR_ENGINE)
    pages = PageCheckpoints(progress, header)
    done = pages.load()
    for count, number in enumerate(numbers[done:], done + 1):
        progress.check()
        pages.add(_read_page(ocr_pages, number, options))
        progress.progress(100 * count / len(numbers), f"page {count} of {len(numbers)}")
    return pages.pages, numbers[min(done, len(numbers) - 1)] if done else None


def _read_page(ocr_pages: OcrPages, number: int, options: OcrOptions) -> FinishedPage:
    try:
        text = tesseract.recognize_text(ocr_pages.page_image(number), options.languages, dpi=options.dpi)
    except tesseract.OcrFailed as error:
        return FinishedPage(number=number, text="", unread=f"{error}.")
    return FinishedPage(number=number, text=text.replace("\f", "").strip(), was_read=True)
