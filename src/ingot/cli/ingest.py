"""`ingot ingest`: submit documents as jobs and fetch their outputs."""

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

STOPPED_MESSAGE: Final = "Interrupted. Submitted jobs continue. Run the same command again to resume."
SUBMITTED: Final = "submitted"
DONE: Final = "done"
ALREADY_DONE: Final = "already done"
IN_PROGRESS: Final = "in progress"
WOULD_INGEST: Final = "would be ingested"
OUTCOME_LABELS: Final = (SUBMITTED, DONE, ALREADY_DONE, IN_PROGRESS, WOULD_INGEST)
NO_DOCUMENTS_HINT: Final = (
    "In folders and patterns, only PDFs and images are ingested. Use --type for other files, and quote patterns."
)
FILES_PANEL: Final = "File selection"
EXAMPLES: Final = (
    "ingot ingest handbook.pdf --output markdown/",
    "ingot ingest docs --output markdown/ --tag docs",
    "ingot ingest 'archive/**/*.pdf' --exclude 'draft-*' --priority low --dry-run",
    """ingot ingest scans --type ocr --options '{"languages": ["deu"]}' --wait --json""",
    "ingot ingest docs --output markdown/ --force --replace",
)

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=examples_epilog(*EXAMPLES))
@server_command
def ingest(
    context: CommandContext,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="Files, folders or quoted patterns.", show_default=False),
    ],
    type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Job type. Default: pdf for PDFs, ocr for images.",
            autocompletion=job_types,
            rich_help_panel=FILES_PANEL,
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Only files that match, such as '*.pdf'. Can be repeated.",
            rich_help_panel=FILES_PANEL,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Skip files that match, such as 'draft-*'. Can be repeated.",
            rich_help_panel=FILES_PANEL,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only list the files that would be ingested.", rich_help_panel=FILES_PANEL),
    ] = False,
    options: Annotated[
        str | None, typer.Option(metavar="JSON", help="Options for the handler: the payload of each job.")
    ] = None,
    tag: TagsOption = None,
    priority: PriorityOption = None,
    batch: BatchOption = None,
    force: ForceOption = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all jobs are finished.")] = False,
    timeout: TimeoutOption = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder to fetch the outputs into. Implies --wait.", file_okay=False),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --output: overwrite files that exist already.")
    ] = False,
) -> None:
    """Submit a job for each document, and with --output fetch its outputs.

    In folders and patterns, the command selects PDFs and images. With --type it selects the files that the type
    supports, or all files if Ingot does not know the type. Hidden files and links to folders are skipped. A Git LFS
    pointer is replaced by the file that it stands for.

    `ingot ingest docs --output FOLDER` writes the outputs of docs/a/report.pdf to FOLDER/a/report/. To resume after
    Ctrl-C, run the same command again: outputs that exist already are not fetched again, and documents that the server
    has processed before are not processed again unless you use --force. If a document fails, the others continue; the
    exit code is that of the first failure.
    """
    if timeout is not None and not (wait or output):
        raise InvalidInput("--timeout requires --wait or --output", hint="Add one of them, or remove --timeout.")
    if replace and output is None:
        raise InvalidInput("--replace requires --output", hint="Add --output FOLDER, or remove --replace.")
    seconds = None if timeout is None else to_seconds(timeout)
    ingest_options = IngestOptions(
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
    document_filter = DocumentFilter(type=type, include=tuple(include or ()), exclude=tuple(exclude or ()))
    selection = find_documents(paths, document_filter, context.out.message)
    report = IngestReport(context, selection, ingest_options)
    if selection.documents and not dry_run:
        context.client.me()  # Fail fast on a wrong URL or token.
    try:
        if dry_run:
            _list_documents(context, selection.documents, report)
        else:
            _run(context, selection.documents, ingest_options, report)
    except KeyboardInterrupt:
        context.out.message(STOPPED_MESSAGE)
        raise
    finally:
        report.print_summary()
    report.raise_failures()


def _run(
    context: CommandContext, documents: list[DocumentFile], ingest_options: IngestOptions, report: IngestReport
) -> None:
    total_bytes = sum(document.size for document in documents)
    with step_bars() as add_bar:
        bars = IngestBars(
            add_bar("hashing", total_bytes, format_size),
            add_bar("sending", total_bytes, format_size),
            add_bar("converting" if ingest_options.wait else "submitting", len(documents), str),
        )
        pipeline = IngestPipeline(
            context.retrying_client,
            ingest_options,
            bars,
            report=report.add_outcome,
            print_message=context.out.message,
        )
        pipeline.run(documents)


def _list_documents(context: CommandContext, documents: list[DocumentFile], report: IngestReport) -> None:
    """Print the documents of a dry run."""
    for document in documents:
        path = printable_path(document.path)
        try:
            check_document(document)
        except IngotError as error:
            report.record_failure(path, error)
            continue
        report.count(WOULD_INGEST)
        value = {"path": path, "type": document.type, "size": document.size}
        context.out.item(value, f"{document.type:<5} {format_size(document.size):>10}  {path}\n")


class IngestReport:
    """The report of a run: it prints the outcome of each document, and a summary at the end."""

    def __init__(self, context: CommandContext, selection: DocumentSelection, options: IngestOptions) -> None:
        self._out = context.out
        self._selection = selection
        self._options = options
        self._counts: Counter[str] = Counter()
        self._errors: list[IngotError] = []

    def add_outcome(self, outcome: IngestOutcome, error: IngotError | None) -> None:
        """Count and print the outcome of a document."""
        if error is not None:
            self.record_failure(outcome.path, error)
        else:
            self.count(_outcome_label(outcome))
        if self._out.json:
            self._out.json_line(outcome)
        elif error is None:
            self._out.text(f"{_outcome_label(outcome):<12}  {outcome.job_id}  {outcome.path}\n")

    def count(self, label: str) -> None:
        """Count a document under this outcome."""
        self._counts[label] += 1

    def record_failure(self, path: str, error: IngotError) -> None:
        """Record why a document failed. Print it if there are several documents; a single error ends the command."""
        self._errors.append(error)
        if len(self._selection.documents) > 1:
            self._out.message(error.detail if path in error.detail else f"{path}: {error.detail}")

    def print_summary(self) -> None:
        """Print the numbers of documents by outcome, and of skipped files by reason."""
        if len(self._selection.documents) == len(self._errors) == 1:
            return  # The error that ends the command is enough.
        if skipped := [f"{count} {reason}" for reason, count in self._selection.skipped.items() if count]:
            self._out.message(f"Skipped: {', '.join(skipped)}.")
        counts = {**{label: self._counts[label] for label in OUTCOME_LABELS}, "failed": len(self._errors)}
        counts["not processed"] = len(self._selection.documents) - sum(counts.values())
        if parts := [f"{count} {label}" for label, count in counts.items() if count]:
            location = (
                f"; the outputs are in {self._options.output}" if self._counts[DONE] and self._options.output else ""
            )
            self._out.message(f"{', '.join(parts)}{location}.")

    def raise_failures(self) -> None:
        """Raise the errors of failed documents as one, or `InvalidInput` if no documents were found."""
        if not self._selection.documents:
            raise InvalidInput("no documents found", hint=NO_DOCUMENTS_HINT)
        if self._errors and len(self._selection.documents) == 1:
            raise self._errors[0]
        if self._errors:
            raise combine_errors(self._errors, len(self._selection.documents))


def _outcome_label(outcome: IngestOutcome) -> str:
    """Return the label for the outcome of a document that has not failed."""
    if outcome.reused:
        return ALREADY_DONE if outcome.status is JobStatus.SUCCEEDED else IN_PROGRESS
    return DONE if outcome.status is JobStatus.SUCCEEDED else SUBMITTED


class SomeFailed(IngotError):
    """Some documents failed."""

    code = "some_failed"
    hint = "Each failure is listed above. The other documents are not affected."


def combine_errors(failed: list[IngotError], count: int) -> SomeFailed:
    """Combine several errors into one that has the code, status and hint of the first."""
    first = failed[0]
    combined = SomeFailed(
        f"{len(failed)} of {count} documents failed; the first error: {first.detail}", hint=first.hint
    )
    combined.__dict__.update(code=first.code, status=first.status, scope=getattr(first, "scope", None))
    return combined
