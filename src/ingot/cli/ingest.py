"""`ingot ingest`: documents of this machine, piped through a server."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Final

import typer

from ingot.cli.completion import job_types
from ingot.cli.context import CommandContext, server_command
from ingot.cli.document_files import DocumentFile, DocumentFilter, DocumentSelection, check_document, find_documents
from ingot.cli.help_text import examples_epilog
from ingot.cli.ingest_pipeline import IngestBars, IngestOptions, IngestOutcome, IngestPipeline, printable_path
from ingot.cli.job_options import BatchOption, ForceOption, PriorityOption, TagsOption, TimeoutOption
from ingot.cli.output import format_size
from ingot.cli.parsing import parse_json, without_none
from ingot.cli.progress import step_bars
from ingot.client.job_request import parse_priority, to_seconds
from ingot.jobs.model import JobStatus
from ingot.kernel.errors import IngotError, InvalidInput

STOPPED_MESSAGE: Final = "Stopped. What was submitted stays; the same command goes on from here."
SUBMITTED: Final = "submitted"
DONE: Final = "done"
ALREADY_DONE: Final = "already done"
IN_PROGRESS: Final = "under way"
WOULD_INGEST: Final = "would be ingested"
OUTCOME_LABELS: Final = (SUBMITTED, DONE, ALREADY_DONE, IN_PROGRESS, WOULD_INGEST)
NO_DOCUMENTS_HINT: Final = (
    "PDFs and pictures are taken of folders and patterns; --type takes other files. Patterns are quoted."
)
FILES_PANEL: Final = "Which files"
EXAMPLES: Final = (
    "ingot ingest handbook.pdf --output markdown",
    "ingot ingest docs --output markdown --tag docs",
    "ingot ingest 'archive/**/*.pdf' --exclude 'draft-*' --priority low --dry-run",
    """ingot ingest scans --type ocr --options '{"languages": ["deu"]}' --wait --json""",
    "ingot ingest docs --output markdown --force --replace",
)

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=examples_epilog(*EXAMPLES))
@server_command
def ingest(
    ask: CommandContext,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="Files, folders, and patterns in quotes.", show_default=False),
    ],
    type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="The type of the jobs; unless told pdf for PDFs and ocr for pictures.",
            autocompletion=job_types,
            rich_help_panel=FILES_PANEL,
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="Only such files, as in '*.pdf'; more than once too.", rich_help_panel=FILES_PANEL
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="No such files, as in 'draft-*'; more than once too.", rich_help_panel=FILES_PANEL
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be ingested.", rich_help_panel=FILES_PANEL)
    ] = False,
    options: Annotated[
        str | None, typer.Option(metavar="JSON", help="What the handler is told: the payload of each job.")
    ] = None,
    tag: TagsOption = None,
    priority: PriorityOption = None,
    batch: BatchOption = None,
    force: ForceOption = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all of them are done.")] = False,
    timeout: TimeoutOption = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Wait, and fetch what was made into this folder.", file_okay=False),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="With --output: write over files that are there.")] = False,
) -> None:
    """Pipe documents through Ingot: a job for each, and with --output what it has made.

    Of folders and patterns it takes PDFs and pictures; with --type what is of use for that type, or every file when
    Ingot does not know it. What is hidden, and links to folders, are left out. A Git LFS pointer stands for its file.

    With --output, what comes of docs/a/report.pdf is in FOLDER/a/report/ when docs was named. What is there already is
    not fetched again, and what the server has done before is not done again unless --force is said: so the same command
    goes on after Ctrl-C. One that fails does not keep the others; the exit code is that of the first that did.
    """
    if timeout is not None and not (wait or output):
        raise InvalidInput("--timeout is given without --wait", hint="It says how long to wait.")
    if replace and output is None:
        raise InvalidInput("--replace is given without --output", hint="It says that files there are written over.")
    seconds = None if timeout is None else to_seconds(timeout)
    course = IngestOptions(
        payload=None if options is None else parse_json(options, "--options"),
        job_options=without_none(
            priority=None if priority is None else parse_priority(priority),
            tags=tag or None,
            batch=batch,
            force=force or None,
        ),
        wait=wait or output is not None,
        output=output,
        replace=replace,
        deadline=None if seconds is None else time.monotonic() + seconds,
    )
    wanted = DocumentFilter(type=type, include=tuple(include or ()), exclude=tuple(exclude or ()))
    found = find_documents(paths, wanted, ask.out.message)
    told = IngestReport(ask, found, course)
    if found.documents and not dry_run:
        ask.client.me()  # Who typed the address wrong is told soon.
    try:
        if dry_run:
            _list_documents(ask, found.documents, told)
        else:
            _run(ask, found.documents, course, told)
    except KeyboardInterrupt:
        ask.out.message(STOPPED_MESSAGE)
        raise
    finally:
        told.print_summary()
    told.raise_failures()


def _run(ask: CommandContext, documents: list[DocumentFile], course: IngestOptions, told: IngestReport) -> None:
    size = sum(document.size for document in documents)
    with step_bars() as step:
        bars = IngestBars(
            step("hashing", size, format_size),
            step("sending", size, format_size),
            step("converting" if course.wait else "submitted", len(documents), str),
        )
        IngestPipeline(ask.retrying_client, course, bars, report=told.report, print_message=ask.out.message).run(
            documents
        )


def _list_documents(ask: CommandContext, documents: list[DocumentFile], told: IngestReport) -> None:
    """Write which they are, of a run that is not made."""
    for document in documents:
        path = printable_path(document.path)
        try:
            check_document(document)
        except IngotError as error:
            told.record_failure(path, error)
            continue
        told.count(WOULD_INGEST)
        value = {"path": path, "type": document.type, "size": document.size}
        ask.out.item(value, f"{document.type:<5} {format_size(document.size):>10}  {path}\n")


class IngestReport:
    """What is written of documents as they come to their end, and of all of them at the end."""

    def __init__(self, ask: CommandContext, found: DocumentSelection, course: IngestOptions) -> None:
        self._out = ask.out
        self._selection = found
        self._options = course
        self._counts: Counter[str] = Counter()
        self._errors: list[IngotError] = []

    def report(self, outcome: IngestOutcome, error: IngotError | None) -> None:
        """Write what became of one."""
        if error is not None:
            self.record_failure(outcome.path, error)
        else:
            self.count(_outcome_label(outcome))
        if self._out.json:
            self._out.json_line(outcome)
        elif error is None:
            self._out.text(f"{_outcome_label(outcome):<12}  {outcome.job_id}  {outcome.path}\n")

    def count(self, what: str) -> None:
        """Count one of which this became."""
        self._counts[what] += 1

    def record_failure(self, path: str, error: IngotError) -> None:
        """Say why one failed; of one that is alone it is said at the end."""
        self._errors.append(error)
        if len(self._selection.documents) > 1:
            self._out.message(error.detail if path in error.detail else f"{path}: {error.detail}")

    def print_summary(self) -> None:
        """Say how many there were, and how many were passed over."""
        if len(self._selection.documents) == len(self._errors) == 1:
            return  # The error says it all.
        if skipped := [f"{count} {why}" for why, count in self._selection.skipped.items() if count]:
            self._out.message(f"Skipped: {', '.join(skipped)}.")
        counts = {**{word: self._counts[word] for word in OUTCOME_LABELS}, "failed": len(self._errors)}
        counts["left"] = len(self._selection.documents) - sum(counts.values())
        if parts := [f"{count} {word}" for word, count in counts.items() if count]:
            where = (
                f"; what was made is in {self._options.output}" if self._counts[DONE] and self._options.output else ""
            )
            self._out.message(f"{', '.join(parts)}{where}.")

    def raise_failures(self) -> None:
        """Raises the error of a document that failed, or `InvalidInput` when there was none to begin with."""
        if not self._selection.documents:
            raise InvalidInput("there are no documents", hint=NO_DOCUMENTS_HINT)
        if self._errors and len(self._selection.documents) == 1:
            raise self._errors[0]
        if self._errors:
            raise combine_errors(self._errors, len(self._selection.documents))


def _outcome_label(outcome: IngestOutcome) -> str:
    """What became of one that went well, in a word."""
    if outcome.reused:
        return ALREADY_DONE if outcome.status is JobStatus.SUCCEEDED else IN_PROGRESS
    return DONE if outcome.status is JobStatus.SUCCEEDED else SUBMITTED


class SomeFailed(IngotError):
    """Some documents failed. It ends as the first of them does."""

    code = "some_failed"
    hint = "Each is told of above; the others are done."


def combine_errors(failed: list[IngotError], count: int) -> SomeFailed:
    """One error for several: it ends as the first of them does."""
    first = failed[0]
    made = SomeFailed(f"{len(failed)} of {count} documents failed, the first because {first.detail}", hint=first.hint)
    made.__dict__.update(code=first.code, status=first.status, scope=getattr(first, "scope", None))
    return made
