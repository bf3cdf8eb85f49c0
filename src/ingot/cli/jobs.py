"""`ingot jobs`: looking at jobs. Submitting and steering have files of their own."""

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
JobId = Annotated[str, typer.Argument(metavar="ID", help="The id of a job.", show_default=False)]

app = command_group("Submit jobs, look at them, and steer them.")
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
    ask: CommandContext,
    status: job_filters.StatusOption = None,
    type: job_filters.TypeOption = None,
    tag: job_filters.TagOption = None,
    source: job_filters.SourceOption = None,
    created_after: job_filters.CreatedAfterOption = None,
    created_before: job_filters.CreatedBeforeOption = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")] = LIST_JOBS_DEFAULT,
    every: Annotated[bool, typer.Option("--all", help="As many as there are.")] = False,
) -> None:
    """List jobs, newest first."""
    fits = job_filters.build_filter(
        status=status, type=type, tag=tag, source=source, created_after=created_after, created_before=created_before
    )
    found = ask.client.jobs(**fits, limit=None if every else limit)
    if ask.out.json:
        ask.out.json_array(job.data for job in found)
        return
    jobs = [job.data for job in found]
    ask.out.table(COLUMNS, map(job_row, jobs))
    if len(jobs) == limit and not every:
        ask.out.message(f"There may be more than these {limit}: --limit or --all shows them.")


@app.command(epilog=examples_epilog("ingot jobs show 0198c5a2-…", "ingot jobs show 0198c5a2-… --json | jq .result"))
@server_command
def show(ask: CommandContext, id: JobId) -> None:
    """Show a job with all that is known of it."""
    job = ask.client.read(validate_job_id(id))
    if ask.out.json:
        ask.out.json_document(job)
        return
    ask.out.fields(
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
            ("payload", pretty_json(job.payload) if job.payload_blob is None else f"the blob {job.payload_blob}"),
            ("metadata", pretty_json(job.metadata)),
            ("result", pretty_json(job.result)),
            ("last error" if job.status is JobStatus.SUCCEEDED else "error", job.last_error),
        ]
    )
    if attempts := ask.client.attempts(job.id):
        ask.out.text("\n")
        columns = ("ATTEMPT", "WORKER", "STARTED", "TOOK", "OUTCOME", "ERROR")
        ask.out.table([Column(name) for name in columns], map(_attempt_row, attempts))


@app.command(
    "watch",
    epilog=examples_epilog(
        "ingot jobs watch 0198c5a2-… 0198c5a3-…", "ingot jobs watch --batch thumbnails", "ingot jobs watch"
    ),
)
@server_command
def watch_jobs(
    ask: CommandContext,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="The ids of jobs.", show_default=False)] = None,
    batch: Annotated[str | None, typer.Option(metavar="NAME", help="The jobs of this batch.")] = None,
) -> None:
    """Watch jobs until they are finished; without any, those that run now, until Ctrl-C.

    The exit code is 8 when one of them did not succeed.
    """
    if ids and batch is not None:
        raise InvalidInput("there are ids, and --batch", hint="Leave one of them out.")
    if batch is not None:
        ask.client.batch(batch)
        ended = watch_batch_until_finished(ask.retrying_client, batch, ask.out)
        if bad := ended.dead + ended.canceled:
            raise JobDead(f"{bad} of {ended.total} jobs of the batch did not succeed", hint=job_submission.DEAD_HINT)
    elif ids:
        if len(ids) > WATCHED_JOBS_MAX:
            raise InvalidInput(
                f"there are {len(ids)} ids; it goes up to {WATCHED_JOBS_MAX}", hint="Submit them as a batch."
            )
        for id in ids:
            ask.client.read(validate_job_id(id))
        job_submission.raise_unless_succeeded(watch_until_finished(ask.retrying_client, ids, ask.out))
    else:
        _watch_running_jobs(ask)


@app.command(epilog=examples_epilog("ingot jobs logs 0198c5a2-… --follow", "ingot jobs logs 0198c5a2-… --attempt 1"))
@server_command
def logs(
    ask: CommandContext,
    id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is finished.")] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of this attempt; the newest unless told.")
    ] = None,
) -> None:
    """Write what a job has written."""
    if follow and attempt is not None:
        raise InvalidInput("--follow and --attempt are both given", hint="What is followed is the newest attempt.")
    if not follow:
        log = ask.client.whole_log(validate_job_id(id), attempt=attempt)
        if ask.out.json:
            ask.out.json_document(log)
        else:
            ask.out.text(log.text)
        return
    ask.client.read(validate_job_id(id))
    for part in ask.retrying_client.follow_log(id):
        ask.out.item(part, part.text)


@app.command(epilog=examples_epilog("ingot jobs explain 0198c5a2-…"))
@server_command
def explain(ask: CommandContext, id: JobId) -> None:
    """Say why a job is not running."""
    found = ask.client.explain(validate_job_id(id))
    if ask.out.json:
        ask.out.json_document(found)
        return
    ask.out.text("".join(f"{reason.message}\n" for reason in found.reasons) or f"The job is {found.status}.\n")


def validate_job_id(text: str) -> str:
    """The id of a job. Raises `JobNotFound` for what is none."""
    if not is_id(text):
        raise JobNotFound(f"{text[:64]!r} is not the id of a job", hint="`ingot jobs list` has the ids, in full.")
    return text


def job_row(job: Job) -> tuple[object, ...]:
    """A job in a list."""
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


def _watch_running_jobs(ask: CommandContext) -> None:
    """Show what runs, once a second."""
    ask.client.summary()
    while True:
        summary = ask.retrying_client.summary()
        running: list[SyncJob] = list(ask.retrying_client.jobs(status=JobStatus.RUNNING, limit=LIST_JOBS_DEFAULT))
        if ask.out.json:
            ask.out.json_line({"counts": summary.counts, "running": [job.data for job in running]})
        else:
            counts = ", ".join(f"{count} {status}" for status, count in summary.counts.items() if count)
            ask.out.redraw(counts or "no jobs", COLUMNS, [job_row(job.data) for job in running])
        time.sleep(POLL_SECONDS)
