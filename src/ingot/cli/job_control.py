"""`ingot jobs retry` and `ingot jobs cancel`, by ID or by filter."""

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
# Statuses that an action applies to if the filter does not name one.
DEFAULT_STATUSES: Final = {
    "cancel": (JobStatus.RUNNING, JobStatus.QUEUED, JobStatus.BLOCKED),
    "retry": (JobStatus.DEAD,),
}
Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Job IDs. Use either IDs or a filter.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="All jobs of the tenant.", rich_help_panel=job_filters.FILTER_PANEL)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the jobs, and change nothing.")]


class JobControlSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an action on all jobs that match a filter."""

    action: str
    dry_run: bool
    matched: int
    changed: int
    failed: list[BulkActionFailure]


@server_command
def cancel(
    context: CommandContext,
    ids: Ids = None,
    status: job_filters.StatusOption = None,
    type: job_filters.TypeOption = None,
    tag: job_filters.TagOption = None,
    source: job_filters.SourceOption = None,
    created_after: job_filters.CreatedAfterOption = None,
    created_before: job_filters.CreatedBeforeOption = None,
    all_jobs: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Cancel jobs, by ID or by filter.

    Waiting jobs are canceled at once. Running jobs are asked to stop.

    With a filter, the number of matching jobs and some of them are shown before you are asked for confirmation.
    """
    job_filter = job_filters.build_filter(
        status=status, type=type, tag=tag, source=source, created_after=created_after, created_before=created_before
    )
    if _selects_by_id(ids, job_filter, all_jobs=all_jobs):
        _act_on_ids(context, ids or [], context.client.cancel, dry_run=dry_run)
    else:
        _act_on_matching(context, "cancel", {"filter": job_filter, "all": all_jobs}, dry_run=dry_run, yes=yes)


@server_command
def retry(
    context: CommandContext,
    ids: Ids = None,
    status: job_filters.StatusOption = None,
    type: job_filters.TypeOption = None,
    tag: job_filters.TagOption = None,
    source: job_filters.SourceOption = None,
    created_after: job_filters.CreatedAfterOption = None,
    created_before: job_filters.CreatedBeforeOption = None,
    all_jobs: All = False,
    reset_attempts: Annotated[
        bool, typer.Option("--reset-attempts", help="Reset the numbers of failures and crashes to 0.")
    ] = False,
    priority: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="New priority: critical, high, normal, low or background, or 1 to 5.",
            autocompletion=priorities,
        ),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="New maximum number of failed attempts.")
    ] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Earliest start time, or a delay such as 30s or 2h.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Run finished jobs again, by ID or by filter.

    A filter without a status selects dead jobs. A job whose attempts are used up gets one more attempt, or all of them
    again with --reset-attempts.

    With a filter, the number of matching jobs and some of them are shown before you are asked for confirmation.
    """
    job_filter = job_filters.build_filter(
        status=status, type=type, tag=tag, source=source, created_after=created_after, created_before=created_before
    )
    changes = without_none(
        reset_attempts=reset_attempts or None,
        priority=None if priority is None else parse_priority(priority),
        max_attempts=max_attempts,
        run_at=parse_future_time(run_at, "--run-at"),
    )
    if _selects_by_id(ids, job_filter, all_jobs=all_jobs):
        _act_on_ids(context, ids or [], lambda id: context.client.retry(id, **changes), dry_run=dry_run)
    else:
        request = {"filter": job_filter, "all": all_jobs, **changes}
        _act_on_matching(context, "retry", request, dry_run=dry_run, yes=yes)


def _selects_by_id(ids: Sequence[str] | None, job_filter: dict[str, Any], *, all_jobs: bool) -> bool:
    """Return whether jobs are selected by ID. Raises `InvalidInput` for both IDs and a filter, or for neither."""
    if ids and (job_filter or all_jobs):
        raise InvalidInput("IDs and a filter cannot be combined", hint="Remove one of them. Nothing was changed.")
    if not ids and not job_filter and not all_jobs:
        raise InvalidInput(
            "no jobs are selected",
            hint="Name IDs, use a filter such as --type, or use --all for all jobs of the tenant.",
        )
    return bool(ids)


# -- by ID --------------------------------------------------------------------------------------------------


def _act_on_ids(context: CommandContext, ids: Sequence[str], action: Callable[[str], Job], *, dry_run: bool) -> None:
    """Apply an action to each job. After an error it continues with the other jobs, and then raises the first error."""
    for id in ids:
        if not is_id(id):
            raise JobNotFound(f"{id[:64]!r} is not a job ID", hint="Use complete IDs. Nothing was changed.")
    read_or_act = context.client.read if dry_run else action
    jobs: list[Job] = []
    errors: list[IngotError] = []
    for id in ids:
        try:
            jobs.append(read_or_act(id))
        except IngotError as error:
            errors.append(error)
            if len(ids) > 1:
                context.out.message(f"{id}: {error.detail}")
    if context.out.json:
        context.out.json_document(jobs)
    elif jobs:
        context.out.table(
            (Column("ID", never_truncate=True), Column("TYPE"), Column("STATUS")), [_row(job) for job in jobs]
        )
    if errors:
        raise errors[0]


def _row(job: Job) -> tuple[str, str, str]:
    stopping = job.status is JobStatus.RUNNING and job.cancel_requested
    return job.id, job.type, "running, cancel requested" if stopping else job.status


# -- by filter ----------------------------------------------------------------------------------------------


def _act_on_matching(
    context: CommandContext, action: str, request: dict[str, Any], *, dry_run: bool, yes: bool
) -> None:
    """Show the matching jobs, ask for confirmation, and apply an action to them step by step."""
    if not yes or dry_run:
        preview = _run_all_steps(context, action, {**request, "dry_run": True}, None)
        if dry_run and context.out.json:
            context.out.json_document(preview)
            return
        if preview.changed:
            _show_sample(context, action, request["filter"])
        context.out.message(f"{_job_count_text(preview.changed)} would be {_PAST_TENSE[action]}.")
        if dry_run or not preview.changed:
            if context.out.json:
                context.out.json_document(msgspec.structs.replace(preview, dry_run=dry_run))
            return
        confirm(f"{action.capitalize()} {_job_count_text(preview.changed)}?")
        total: int | None = preview.changed
    else:
        total = None
    summary = _run_all_steps(context, action, request, total)
    if context.out.json:
        context.out.json_document(summary)
    else:
        context.out.message(
            f"{_job_count_text(summary.changed)} {'was' if summary.changed == 1 else 'were'} {_PAST_TENSE[action]}."
        )
        for failure in summary.failed[:SHOWN_JOBS_MAX]:
            context.out.message(f"{failure.id}: {failure.code}")
        if len(summary.failed) > SHOWN_JOBS_MAX:
            context.out.message(f"{len(summary.failed)} jobs failed in total. Use --json to list all of them.")
    if summary.failed:
        raise typer.Exit(EXIT_SOME_REFUSED)


_PAST_TENSE: Final = {"cancel": "canceled", "retry": "retried"}


def _run_all_steps(
    context: CommandContext, action: str, request: dict[str, Any], total: int | None
) -> JobControlSummary:
    """Repeat a request until all matching jobs are processed, and add up the results."""
    matched = changed = 0
    failed: list[BulkActionFailure] = []
    cursor: str | None = None
    with counter_bar("searching" if request.get("dry_run") else action, total) as advance:
        while True:
            step = context.client.act(action, **request, limit=JOBS_PER_STEP_MAX, **without_none(cursor=cursor))
            matched, changed, failed = matched + step.matched, changed + step.changed, [*failed, *step.failed]
            advance(step.changed)
            if (cursor := step.next_cursor) is None:
                return JobControlSummary(
                    action=action,
                    dry_run=request.get("dry_run", False),
                    matched=matched,
                    changed=changed,
                    failed=failed,
                )


def _show_sample(context: CommandContext, action: str, job_filter: dict[str, Any]) -> None:
    statuses = (job_filter["status"],) if "status" in job_filter else DEFAULT_STATUSES[action]
    matching_jobs = (
        job.data
        for status in statuses
        for job in context.client.jobs(**{**job_filter, "status": status}, limit=SHOWN_JOBS_MAX)
    )
    sample = list(islice(matching_jobs, SHOWN_JOBS_MAX))
    if not context.out.json:
        context.out.table(
            (Column("ID", never_truncate=True), Column("TYPE"), Column("STATUS"), Column("CREATED")),
            [(job.id, job.type, job.status, job.created_at) for job in sample],
        )


def _job_count_text(count: int) -> str:
    return f"{count} job" if count == 1 else f"{count} jobs"
