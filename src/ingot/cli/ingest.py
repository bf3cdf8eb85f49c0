"""`ingot ingest`: documents of this machine, piped through a server."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Final

import typer

from ingot.cli.asking import Asking, asking
from ingot.cli.completion import job_types
from ingot.cli.documents import Document, Found, Wanted, find, look_at
from ingot.cli.ingesting import Course, Ingest, Outcome, Steps, shown_path
from ingot.cli.ordering import Batch, Force, Priority, Tag, Timeout
from ingot.cli.output import sized
from ingot.cli.progress import steps
from ingot.cli.teaching import examples
from ingot.cli.values import given, json_text
from ingot.client.orders import priority_of, seconds_of
from ingot.jobs.model import JobStatus
from ingot.kernel.errors import IngotError, InvalidInput

STOPPED: Final = "Stopped. What was submitted stays; the same command goes on from here."
SUBMITTED: Final = "submitted"
MADE: Final = "done"
DONE_BEFORE: Final = "already done"
UNDER_WAY: Final = "under way"
LISTED: Final = "would be ingested"
WORDS: Final = (SUBMITTED, MADE, DONE_BEFORE, UNDER_WAY, LISTED)
NONE_HINT: Final = "PDFs and pictures are taken of folders and patterns; --type takes other files. Patterns are quoted."
CHOICE: Final = "Which files"
EXAMPLES: Final = (
    "ingot ingest handbook.pdf --output markdown",
    "ingot ingest docs --output markdown --tag docs",
    "ingot ingest 'archive/**/*.pdf' --exclude 'draft-*' --priority low --dry-run",
    """ingot ingest scans --type ocr --options '{"languages": ["deu"]}' --wait --json""",
    "ingot ingest docs --output markdown --force --replace",
)

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=examples(*EXAMPLES))
@asking
def ingest(
    ask: Asking,
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
            rich_help_panel=CHOICE,
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="Only such files, as in '*.pdf'; more than once too.", rich_help_panel=CHOICE
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="No such files, as in 'draft-*'; more than once too.", rich_help_panel=CHOICE
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be ingested.", rich_help_panel=CHOICE)
    ] = False,
    options: Annotated[
        str | None, typer.Option(metavar="JSON", help="What the handler is told: the payload of each job.")
    ] = None,
    tag: Tag = None,
    priority: Priority = None,
    batch: Batch = None,
    force: Force = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all of them are done.")] = False,
    timeout: Timeout = None,
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
    seconds = None if timeout is None else seconds_of(timeout)
    course = Course(
        payload=None if options is None else json_text(options, "--options"),
        order=given(
            priority=None if priority is None else priority_of(priority),
            tags=tag or None,
            batch=batch,
            force=force or None,
        ),
        wait=wait or output is not None,
        output=output,
        replace=replace,
        until=None if seconds is None else time.monotonic() + seconds,
    )
    wanted = Wanted(type=type, include=tuple(include or ()), exclude=tuple(exclude or ()))
    found = find(paths, wanted, ask.out.say)
    told = Told(ask, found, course)
    if found.documents and not dry_run:
        ask.client.me()  # Who typed the address wrong is told soon.
    try:
        if dry_run:
            _list(ask, found.documents, told)
        else:
            _run(ask, found.documents, course, told)
    except KeyboardInterrupt:
        ask.out.say(STOPPED)
        raise
    finally:
        told.sum_up()
    told.expect_all()


def _run(ask: Asking, documents: list[Document], course: Course, told: Told) -> None:
    size = sum(document.size for document in documents)
    with steps() as step:
        bars = Steps(
            step("hashing", size, sized),
            step("sending", size, sized),
            step("converting" if course.wait else "submitted", len(documents), str),
        )
        Ingest(ask.patient, course, bars, tell=told.tell, say=ask.out.say).run(documents)


def _list(ask: Asking, documents: list[Document], told: Told) -> None:
    """Write which they are, of a run that is not made."""
    for document in documents:
        path = shown_path(document.path)
        try:
            look_at(document)
        except IngotError as error:
            told.fail(path, error)
            continue
        told.count(LISTED)
        value = {"path": path, "type": document.type, "size": document.size}
        ask.out.item(value, f"{document.type:<5} {sized(document.size):>10}  {path}\n")


class Told:
    """What is written of documents as they come to their end, and of all of them at the end."""

    def __init__(self, ask: Asking, found: Found, course: Course) -> None:
        self._out = ask.out
        self._found = found
        self._course = course
        self._counts: Counter[str] = Counter()
        self._failed: list[IngotError] = []

    def tell(self, outcome: Outcome, error: IngotError | None) -> None:
        """Write what became of one."""
        if error is not None:
            self.fail(outcome.path, error)
        else:
            self.count(_word(outcome))
        if self._out.json:
            self._out.line(outcome)
        elif error is None:
            self._out.text(f"{_word(outcome):<12}  {outcome.job_id}  {outcome.path}\n")

    def count(self, what: str) -> None:
        """Count one of which this became."""
        self._counts[what] += 1

    def fail(self, path: str, error: IngotError) -> None:
        """Say why one failed; of one that is alone it is said at the end."""
        self._failed.append(error)
        if len(self._found.documents) > 1:
            self._out.say(error.detail if path in error.detail else f"{path}: {error.detail}")

    def sum_up(self) -> None:
        """Say how many there were, and how many were passed over."""
        if len(self._found.documents) == len(self._failed) == 1:
            return  # The error says it all.
        if skipped := [f"{count} {why}" for why, count in self._found.skipped.items() if count]:
            self._out.say(f"Skipped: {', '.join(skipped)}.")
        counts = {**{word: self._counts[word] for word in WORDS}, "failed": len(self._failed)}
        counts["left"] = len(self._found.documents) - sum(counts.values())
        if parts := [f"{count} {word}" for word, count in counts.items() if count]:
            where = f"; what was made is in {self._course.output}" if self._counts[MADE] and self._course.output else ""
            self._out.say(f"{', '.join(parts)}{where}.")

    def expect_all(self) -> None:
        """Raises the error of a document that failed, or `InvalidInput` when there was none to begin with."""
        if not self._found.documents:
            raise InvalidInput("there are no documents", hint=NONE_HINT)
        if self._failed and len(self._found.documents) == 1:
            raise self._failed[0]
        if self._failed:
            raise some_failed(self._failed, len(self._found.documents))


def _word(outcome: Outcome) -> str:
    """What became of one that went well, in a word."""
    if outcome.reused:
        return DONE_BEFORE if outcome.status is JobStatus.SUCCEEDED else UNDER_WAY
    return MADE if outcome.status is JobStatus.SUCCEEDED else SUBMITTED


class SomeFailed(IngotError):
    """Some documents failed. It ends as the first of them does."""

    code = "some_failed"
    hint = "Each is told of above; the others are done."


def some_failed(failed: list[IngotError], count: int) -> SomeFailed:
    """One error for several: it ends as the first of them does."""
    first = failed[0]
    made = SomeFailed(f"{len(failed)} of {count} documents failed, the first because {first.detail}", hint=first.hint)
    made.__dict__.update(code=first.code, status=first.status, scope=getattr(first, "scope", None))
    return made
