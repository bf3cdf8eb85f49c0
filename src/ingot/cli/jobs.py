"""`ingot jobs`: list and show jobs. Other commands are in `job_submission.py`, `job_files.py` and `job_control.py`."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Final

import typer

from ingot.cli import job_files, job_filters, job_submission
from ingot.cli.context import CommandContext, command_group, server_command
from ingot.cli.help_text import examples_epilog
from ingot.cli.job_control import cancel, retry
from ingot.cli.output import Column, full_time, pretty_json, relative_time
from ingot.cli.progress import POLL_SECONDS, watch_batch_until_finished, watch_until_finished
from ingot.client import SyncJob
from ingot.client.errors import JobDead
from ingot.client.job_request import PRIORITIES
from ingot.jobs.errors import JobNotFound
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import Attempt, Job, JobStatus
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id

LIST_JOBS_DEFAULT: Final = 50
WATCHED_JOBS_MAX: Final = 100
PRIORITY_NAMES: Final = {number: name for name, number in PRIORITIES.items()}
COLUMNS: Final = (
    Column("ID", never_truncate=True),
    Column("TYPE"),
    Column("STATUS", never_truncate=True),
    Column("PRIORITY", optional=True),
    Column("ATTEMPTS", align_right=True, optional=True),
    Column("CREATED"),
    Column("DETAIL"),
)
JobId = Annotated[str, typer.Argument(metavar="ID", help="Job ID.", show_default=False)]

app = command_group("Submit, show, cancel and retry jobs.")
app.command("submit", epilog=examples_epilog(*job_submission.EXAMPLES))(job_submission.submit)
app.command("files", epilog=examples_epilog(*job_files.EXAMPLES))(job_files.list_files)
app.command(
    "retry",
    epilog=examples_epilog(
        "ingot jobs retry 0198c5a2-… --reset-attempts",
        "ingot jobs retry --type report --created-after 1d --dry-run",
        "ingot jobs retry --type report --created-after 1d --yes",
    ),
)(retry)
app.command(
    "cancel",
    epilog=examples_epilog(
        "ingot jobs cancel 0198c5a2-…", "ingot jobs cancel --tag nightly", "ingot jobs cancel --all --yes"
    ),
)(cancel)


@app.command(
    "list", epilog=examples_epilog("ingot jobs list --status dead --created-after 1d", "ingot jobs list --all --json")
)
@server_command
def list_jobs(
    context: CommandContext,
    status: job_filters.StatusOption = None,
    type: job_filters.TypeOption = None,
    tag: job_filters.TagOption = None,
    source: job_filters.SourceOption = None,
    created_after: job_filters.CreatedAfterOption = None,
    created_before: job_filters.CreatedBeforeOption = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of jobs.")] = LIST_JOBS_DEFAULT,
    show_all: Annotated[bool, typer.Option("--all", help="List all jobs.")] = False,
) -> None:
    """List jobs, newest first."""
    job_filter = job_filters.build_filter(
        status=status, type=type, tag=tag, source=source, created_after=created_after, created_before=created_before
    )
    listed = context.client.jobs(**job_filter, limit=None if show_all else limit)
    if context.out.json:
        context.out.json_array(job.data for job in listed)
        return
    jobs = [job.data for job in listed]
    context.out.table(COLUMNS, map(job_row, jobs))
    if len(jobs) == limit and not show_all:
        context.out.message(f"Only the newest {limit} jobs are shown. Use --limit or --all for more.")


@app.command(epilog=examples_epilog("ingot jobs show 0198c5a2-…", "ingot jobs show 0198c5a2-… --json | jq .result"))
@server_command
def show(context: CommandContext, id: JobId) -> None:
    """Show a job and its attempts."""
    job = context.client.read(validate_job_id(id))
    if context.out.json:
        context.out.json_document(job)
        return
    context.out.fields(
        [
            ("id", job.id),
            ("type", job.type),
            ("status", job.status),
            ("", "cancel requested" if job.cancel_requested and job.status not in FINISHED else None),
            ("priority", PRIORITY_NAMES.get(job.priority, job.priority)),
            ("progress", _progress_text(job) or None),
            ("attempts", f"{job.attempts} ({job.failures} of {job.max_attempts} failed, {job.crashes} crashed)"),
            ("created", full_time(job.created_at)),
            ("by", job.created_by),
            ("run at", full_time(job.run_at)),
            ("started", full_time(job.started_at)),
            ("finished", full_time(job.finished_at)),
            ("worker", job.worker_id),
            ("lease until", full_time(job.lease_expires_at)),
            ("tags", job.tags or None),
            ("batch", job.batch),
            ("inputs", ", ".join(job.inputs) or None),
            ("after", job.after or None),
            ("idempotency key", job.idempotency_key),
            ("dedupe key", job.dedupe_key),
            ("correlation id", job.correlation_id),
            ("source", job.source if job.source_ref is None else f"{job.source} {job.source_ref}"),
            ("payload", pretty_json(job.payload) if job.payload_blob is None else f"blob {job.payload_blob}"),
            ("metadata", pretty_json(job.metadata)),
            ("result", pretty_json(job.result)),
            ("last error" if job.status is JobStatus.SUCCEEDED else "error", job.last_error),
        ]
    )
    if attempts := context.client.attempts(job.id):
        context.out.text("\n")
        columns = ("ATTEMPT", "WORKER", "STARTED", "TOOK", "OUTCOME", "ERROR")
        context.out.table([Column(name) for name in columns], map(_attempt_row, attempts))


@app.command(
    "watch",
    epilog=examples_epilog(
        "ingot jobs watch 0198c5a2-… 0198c5a3-…", "ingot jobs watch --batch thumbnails", "ingot jobs watch"
    ),
)
@server_command
def watch_jobs(
    context: CommandContext,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Job IDs.", show_default=False)] = None,
    batch: Annotated[str | None, typer.Option(metavar="NAME", help="Batch to watch.")] = None,
) -> None:
    """Show the progress of jobs until they are finished.

    Without IDs and --batch, show all running jobs until Ctrl-C. The exit code is 8 if a job does not succeed.
    """
    if ids and batch is not None:
        raise InvalidInput("IDs and --batch cannot be combined", hint="Remove one of them.")
    if batch is not None:
        context.client.batch(batch)
        finished_batch = watch_batch_until_finished(context.retrying_client, batch, context.out)
        if unsuccessful := finished_batch.dead + finished_batch.canceled:
            raise JobDead(
                f"{unsuccessful} of {finished_batch.total} jobs of the batch did not succeed",
                hint=job_submission.DEAD_HINT,
            )
    elif ids:
        if len(ids) > WATCHED_JOBS_MAX:
            raise InvalidInput(
                f"at most {WATCHED_JOBS_MAX} jobs can be watched at once, got {len(ids)}",
                hint="Submit the jobs as a batch and use --batch.",
            )
        for id in ids:
            context.client.read(validate_job_id(id))
        finished_jobs = watch_until_finished(context.retrying_client, ids, context.out)
        job_submission.raise_unless_succeeded(finished_jobs, context.client)
    else:
        _watch_running_jobs(context)


@app.command(epilog=examples_epilog("ingot jobs logs 0198c5a2-… --follow", "ingot jobs logs 0198c5a2-… --attempt 1"))
@server_command
def logs(
    context: CommandContext,
    id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job is finished.")] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of the attempt. Default: the newest.")
    ] = None,
) -> None:
    """Print the log of a job."""
    if follow and attempt is not None:
        raise InvalidInput(
            "--follow and --attempt cannot be combined", hint="--follow always prints the newest attempt. Remove one."
        )
    if not follow:
        log = context.client.whole_log(validate_job_id(id), attempt=attempt)
        if context.out.json:
            context.out.json_document(log)
        else:
            context.out.text(log.text)
        return
    context.client.read(validate_job_id(id))
    for part in context.retrying_client.follow_log(id):
        context.out.item(part, part.text)


@app.command(epilog=examples_epilog("ingot jobs explain 0198c5a2-…"))
@server_command
def explain(context: CommandContext, id: JobId) -> None:
    """Explain why a job is not running, or how it ended."""
    explanation = context.client.explain(validate_job_id(id))
    if context.out.json:
        context.out.json_document(explanation)
        return
    reasons = "".join(f"{reason.message}\n" for reason in explanation.reasons)
    context.out.text(reasons or f"The job is {explanation.status}.\n")


def validate_job_id(text: str) -> str:
    """Return the text if it is a job ID. Raises `JobNotFound` otherwise."""
    if not is_id(text):
        raise JobNotFound(f"{text[:64]!r} is not a job ID", hint="Use a complete ID. `ingot jobs list` shows them.")
    return text


def job_row(job: Job) -> tuple[object, ...]:
    """Return the cells of a job for `COLUMNS`."""
    return (
        job.id,
        job.type,
        job.status,
        PRIORITY_NAMES.get(job.priority, job.priority),
        job.attempts,
        job.created_at,
        _detail(job),
    )


def _detail(job: Job) -> str:
    if job.status is JobStatus.RUNNING:
        return _progress_text(job)
    if job.status is JobStatus.QUEUED and (due := relative_time(job.run_at)).startswith("in "):
        return f"{'retry' if job.failures or job.crashes else 'scheduled'} {due}"
    if job.status is JobStatus.SUCCEEDED:
        return f"took {_duration_text(job.started_at, job.finished_at)}"
    return (job.last_error or "").partition("\n")[0]


def _progress_text(job: Job) -> str:
    if job.progress is None or job.status in FINISHED:
        return ""
    return f"{job.progress.percent:.0f} % {job.progress.stage}".rstrip()


def _duration_text(started_at: datetime | None, finished_at: datetime | None) -> str:
    return "" if started_at is None or finished_at is None else f"{(finished_at - started_at).total_seconds():.1f} s"


def _attempt_row(attempt: Attempt) -> tuple[object, ...]:
    return (
        attempt.number,
        attempt.worker_id,
        relative_time(attempt.started_at),
        _duration_text(attempt.started_at, attempt.finished_at),
        attempt.outcome or "running",
        (attempt.error or "").partition("\n")[0],
    )


def _watch_running_jobs(context: CommandContext) -> None:
    """Show the numbers of jobs by status and the running jobs, once per second."""
    context.client.summary()
    while True:
        summary = context.retrying_client.summary()
        running: list[SyncJob] = list(context.retrying_client.jobs(status=JobStatus.RUNNING, limit=LIST_JOBS_DEFAULT))
        if context.out.json:
            context.out.json_line({"counts": summary.counts, "running": [job.data for job in running]})
        else:
            counts = ", ".join(f"{count} {status}" for status, count in summary.counts.items() if count)
            context.out.redraw(counts or "no jobs", COLUMNS, [job_row(job.data) for job in running])
        time.sleep(POLL_SECONDS)
