"""Pictures and scans to text, by tesseract."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ingot.worker.handlers.documents import ahead as _ahead  # noqa: F401
from ingot.worker.handlers.documents import reading
from ingot.worker.handlers.documents.checkpoints import Header, Page, Pages
from ingot.worker.handlers.documents.composing import composed
from ingot.worker.handlers.documents.front_matter import Source, front_matter, source_of
from ingot.worker.handlers.documents.markdown import plain
from ingot.worker.handlers.documents.options import OcrOptions, options_of, selected, spans
from ingot.worker.handlers.documents.ports import Watch
from ingot.worker.handlers.documents.sheets import Sheets, sheets_of
from ingot.worker.handlers.inputs import MARKDOWN, TEXT, only_input, stem_of
from ingot.worker.job import WorkerJob

READER: Final = "tesseract"
LISTED_PAGES_MAX: Final = 2_000  # In a result; the Markdown names all.


def handle(job: WorkerJob) -> dict[str, Any]:
    """Read the only input of a job. Raises `NoRetry` for what cannot be read."""
    options = options_of(job.payload, OcrOptions)
    reading.check_languages(options.languages)
    name = only_input(job.inputs)
    path = job.download()
    source = source_of(path, name)
    with sheets_of(path, dpi=options.dpi) as sheets:
        numbers = selected(options.pages, sheets.count)
        pages, resumed_at = _read(sheets, numbers, options, source=source, watch=job)
        title = sheets.title or stem_of(source.name)
        count = sheets.count
    stem = stem_of(source.name)
    read = [page.number for page in pages if page.was_read]
    head = front_matter(source, title=title, pages=count, converter=READER, ocr_pages=spans(read))
    text = "\f".join(page.text for page in pages) + "\n"
    shown = [msgspec.structs.replace(page, text=plain(page.text)) for page in pages]
    job.upload(text.encode(), f"{stem}.txt", TEXT)
    job.upload((head + composed(shown)).encode(), f"{stem}.md", MARKDOWN)
    result: dict[str, Any] = {
        "title": title,
        "pages": count,
        "text": f"{stem}.txt",
        "markdown": f"{stem}.md",
        "characters": sum(len(page.text) for page in pages),
        "pages_not_read": [page.number for page in pages if page.unread][:LISTED_PAGES_MAX],
    }
    return result | ({} if resumed_at is None else {"resumed_at": resumed_at})


def _read(
    sheets: Sheets, numbers: list[int], options: OcrOptions, *, source: Source, watch: Watch
) -> tuple[list[Page], int | None]:
    """The pages, and the one that it went on at when an earlier attempt had read some."""
    header = Header(source=source.blake3, options=msgspec.json.encode(options).decode(), converter=READER)
    pages = Pages(watch, header)
    done = pages.load()
    for count, number in enumerate(numbers[done:], done + 1):
        watch.check()
        pages.add(_page(sheets, number, options))
        watch.progress(100 * count / len(numbers), f"page {count} of {len(numbers)}")
    return pages.done, numbers[min(done, len(numbers) - 1)] if done else None


def _page(sheets: Sheets, number: int, options: OcrOptions) -> Page:
    try:
        text = reading.read(sheets.sheet(number), options.languages, dpi=options.dpi)
    except reading.NotRead as error:
        return Page(number=number, text="", unread=f"{error}.")
    return Page(number=number, text=text.replace("\f", "").strip(), was_read=True)
