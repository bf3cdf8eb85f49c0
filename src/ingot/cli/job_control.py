"""`ingot jobs retry` and `ingot jobs cancel`: by id, or all that fit a filter, with a look at them first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Annotated, Any, Final

import msgspec
import typer

from ingot.cli import job_filters
from ingot.cli.completion import priorities
from ingot.cli.confirm import confirm
from ingot.cli.context import CommandContext, server_command
from ingot.cli.output import Column
from ingot.cli.parsing import parse_future_time, without_none
from ingot.cli.progress import counter_bar
from ingot.client.job_request import parse_priority
from ingot.jobs.bulk_actions import BulkActionFailure
from ingot.jobs.errors import JobNotFound
from ingot.jobs.model import Job, JobStatus
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.ids import is_id

SHOWN_JOBS_MAX: Final = 5
JOBS_PER_STEP_MAX: Final = 1000
EXIT_SOME_REFUSED: Final = 4
DEFAULT_STATUSES: Final = {
    "cancel": (JobStatus.RUNNING, JobStatus.QUEUED, JobStatus.BLOCKED),
    "retry": (JobStatus.DEAD,),
}  # What each is done to, unless the filter names a status.
Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="The ids of jobs; or say below which.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="Every job of the tenant.", rich_help_panel=job_filters.FILTER_PANEL)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]


class JobControlSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to the jobs that fit a filter, or would be."""

    action: str
    dry_run: bool
    matched: int
    changed: int
    failed: list[BulkActionFailure]


@server_command
def cancel(
    ask: CommandContext,
    ids: Ids = None,
    status: job_filters.StatusOption = None,
    type: job_filters.TypeOption = None,
    tag: job_filters.TagOption = None,
    source: job_filters.SourceOption = None,
    created_after: job_filters.CreatedAfterOption = None,
    created_before: job_filters.CreatedBeforeOption = None,
    every: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Cancel jobs: those that wait at once, those that run are asked to stop.

    With a filter it shows which they are and asks first.
    """
    fits = job_filters.build_filter(
        status=status, type=type, tag=tag, source=source, created_after=created_after, created_before=created_before
    )
    if _selects_by_id(ids, fits, every=every):
        _act_on_ids(ask, ids or [], ask.client.cancel, dry_run=dry_run)
    else:
        _act_on_matching(ask, "cancel", {"filter": fits, "all": every}, dry_run=dry_run, yes=yes)


@server_command
def retry(
    ask: CommandContext,
    ids: Ids = None,
    status: job_filters.StatusOption = None,
    type: job_filters.TypeOption = None,
    tag: job_filters.TagOption = None,
    source: job_filters.SourceOption = None,
    created_after: job_filters.CreatedAfterOption = None,
    created_before: job_filters.CreatedBeforeOption = None,
    every: All = False,
    reset_attempts: Annotated[bool, typer.Option("--reset-attempts", help="Forget how often it failed.")] = False,
    priority: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With another priority, by name or 1 to 5.", autocompletion=priorities),
    ] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, metavar="N", help="How often it may fail.")] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Not before this time, or 30s, 2h … later.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Run finished jobs again: with a filter the dead ones, unless it names a status.

    A job that failed as often as it may gets one more try, or all of them again with --reset-attempts.

    With a filter it shows which they are and asks first.
    """
    fits = job_filters.build_filter(
        status=status, type=type, tag=tag, source=source, created_after=created_after, created_before=created_before
    )
    how = without_none(
        reset_attempts=reset_attempts or None,
        priority=None if priority is None else parse_priority(priority),
        max_attempts=max_attempts,
        run_at=parse_future_time(run_at, "--run-at"),
    )
    if _selects_by_id(ids, fits, every=every):
        _act_on_ids(ask, ids or [], lambda id: ask.client.retry(id, **how), dry_run=dry_run)
    else:
        _act_on_matching(ask, "retry", {"filter": fits, "all": every, **how}, dry_run=dry_run, yes=yes)


def _selects_by_id(ids: Sequence[str] | None, fits: dict[str, Any], *, every: bool) -> bool:
    """Whether jobs are named. Raises `InvalidInput` when they are and there is a filter, or neither."""
    if ids and (fits or every):
        raise InvalidInput("there are ids, and a filter", hint="Leave one of them out; nothing was changed.")
    if not ids and not fits and not every:
        raise InvalidInput(
            "nothing says which jobs", hint="Name ids, or a filter such as --type; --all is every job of the tenant."
        )
    return bool(ids)


# -- one by one ---------------------------------------------------------------------------------------------


def _act_on_ids(ask: CommandContext, ids: Sequence[str], do: Callable[[str], Job], *, dry_run: bool) -> None:
    """Do it to each of them; one that cannot be changed does not keep the others from it. Raises the first error."""
    for id in ids:
        if not is_id(id):
            raise JobNotFound(
                f"{id[:64]!r} is not the id of a job", hint="Nothing was changed. Ids are written in full."
            )
    act = ask.client.read if dry_run else do
    done: list[Job] = []
    wrong: list[IngotError] = []
    for id in ids:
        try:
            done.append(act(id))
        except IngotError as error:
            wrong.append(error)
            if len(ids) > 1:
                ask.out.message(f"{id}: {error.detail}")
    if ask.out.json:
        ask.out.json_document(done)
    elif done:
        ask.out.table(
            (Column("ID", never_truncate=True), Column("TYPE"), Column("STATUS")), [_row(job) for job in done]
        )
    if wrong:
        raise wrong[0]


def _row(job: Job) -> tuple[str, str, str]:
    asked = job.status is JobStatus.RUNNING and job.cancel_requested
    return job.id, job.type, "running, asked to stop" if asked else job.status


# -- all that fit -------------------------------------------------------------------------------------------


def _act_on_matching(ask: CommandContext, action: str, said: dict[str, Any], *, dry_run: bool, yes: bool) -> None:
    """Show what fits, ask, and do it step by step."""
    if not yes or dry_run:
        found = _run_all_steps(ask, action, {**said, "dry_run": True}, None)
        if dry_run and ask.out.json:
            ask.out.json_document(found)
            return
        if found.changed:
            _show_sample(ask, action, said["filter"])
        ask.out.message(f"{_job_count_text(found.changed)} would be {_PAST_TENSE[action]}.")
        if dry_run or not found.changed:
            if ask.out.json:
                ask.out.json_document(msgspec.structs.replace(found, dry_run=dry_run))
            return
        confirm(f"{action.capitalize()} {_job_count_text(found.changed)}?")
        total: int | None = found.changed
    else:
        total = None
    done = _run_all_steps(ask, action, said, total)
    if ask.out.json:
        ask.out.json_document(done)
    else:
        ask.out.message(
            f"{_job_count_text(done.changed)} {'was' if done.changed == 1 else 'were'} {_PAST_TENSE[action]}."
        )
        for refusal in done.failed[:SHOWN_JOBS_MAX]:
            ask.out.message(f"{refusal.id}: {refusal.code}")
        if len(done.failed) > SHOWN_JOBS_MAX:
            ask.out.message(f"So it was with {len(done.failed)} jobs; --json names them all.")
    if done.failed:
        raise typer.Exit(EXIT_SOME_REFUSED)


_PAST_TENSE: Final = {"cancel": "canceled", "retry": "run again"}


def _run_all_steps(ask: CommandContext, action: str, said: dict[str, Any], total: int | None) -> JobControlSummary:
    """All steps of an action, one after the other."""
    matched = changed = 0
    failed: list[BulkActionFailure] = []
    cursor: str | None = None
    with counter_bar("looking" if said.get("dry_run") else action, total) as advance:
        while True:
            step = ask.client.act(action, **said, limit=JOBS_PER_STEP_MAX, **without_none(cursor=cursor))
            matched, changed, failed = matched + step.matched, changed + step.changed, [*failed, *step.failed]
            advance(step.changed)
            if (cursor := step.next_cursor) is None:
                return JobControlSummary(
                    action=action,
                    dry_run=said.get("dry_run", False),
                    matched=matched,
                    changed=changed,
                    failed=failed,
                )


def _show_sample(ask: CommandContext, action: str, fits: dict[str, Any]) -> None:
    statuses = (fits["status"],) if "status" in fits else DEFAULT_STATUSES[action]
    found = (
        job.data for status in statuses for job in ask.client.jobs(**{**fits, "status": status}, limit=SHOWN_JOBS_MAX)
    )
    some = list(islice(found, SHOWN_JOBS_MAX))
    if not ask.out.json:
        ask.out.table(
            (Column("ID", never_truncate=True), Column("TYPE"), Column("STATUS"), Column("CREATED")),
            [(job.id, job.type, job.status, job.created_at) for job in some],
        )


def _job_count_text(count: int) -> str:
    return f"{count} job" if count == 1 else f"{count} jobs"
