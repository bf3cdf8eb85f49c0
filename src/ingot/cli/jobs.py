"""`ingot jobs`: looking at jobs. Submitting and steering have files of their own."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Final

import typer

from ingot.cli import files, filters, submit
from ingot.cli.asking import Asking, asking, noun
from ingot.cli.output import Column, ago, at, compact
from ingot.cli.progress import LOOK_SECONDS, watch, watch_batch
from ingot.cli.steer import cancel, retry
from ingot.cli.teaching import examples
from ingot.client import SyncJob
from ingot.client.errors import JobDead
from ingot.client.orders import PRIORITIES
from ingot.jobs.errors import JobNotFound
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import Attempt, Job, JobStatus
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id

LIST_JOBS: Final = 50
WATCHED_MAX: Final = 100
NAMES: Final = {number: name for name, number in PRIORITIES.items()}
COLUMNS: Final = (
    Column("ID", whole=True),
    Column("TYPE"),
    Column("STATUS", whole=True),
    Column("PRIORITY", spare=True),
    Column("ATTEMPTS", right=True, spare=True),
    Column("CREATED"),
    Column("DETAIL"),
)
JobId = Annotated[str, typer.Argument(metavar="ID", help="The id of a job.", show_default=False)]

app = noun("Submit jobs, look at them, and steer them.")
app.command("submit", epilog=examples(*submit.EXAMPLES))(submit.submit)
app.command("files", epilog=examples(*files.EXAMPLES))(files.files)
app.command(
    "retry",
    epilog=examples(
        "ingot jobs retry 0198c5a2-… --reset-attempts",
        "ingot jobs retry --type report --created-after 1d --dry-run",
        "ingot jobs retry --type report --created-after 1d --yes",
    ),
)(retry)
app.command(
    "cancel",
    epilog=examples("ingot jobs cancel 0198c5a2-…", "ingot jobs cancel --tag nightly", "ingot jobs cancel --all --yes"),
)(cancel)


@app.command(
    "list", epilog=examples("ingot jobs list --status dead --created-after 1d", "ingot jobs list --all --json")
)
@asking
def list_jobs(
    ask: Asking,
    status: filters.Status = None,
    type: filters.Type = None,
    tag: filters.Tag = None,
    source: filters.FromSource = None,
    created_after: filters.CreatedAfter = None,
    created_before: filters.CreatedBefore = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")] = LIST_JOBS,
    every: Annotated[bool, typer.Option("--all", help="As many as there are.")] = False,
) -> None:
    """List jobs, newest first."""
    fits = filters.filter_of(
        status=status, type=type, tag=tag, source=source, created_after=created_after, created_before=created_before
    )
    found = ask.client.jobs(**fits, limit=None if every else limit)
    if ask.out.json:
        ask.out.array(job.data for job in found)
        return
    jobs = [job.data for job in found]
    ask.out.table(COLUMNS, map(row_of, jobs))
    if len(jobs) == limit and not every:
        ask.out.say(f"There may be more than these {limit}: --limit or --all shows them.")


@app.command(epilog=examples("ingot jobs show 0198c5a2-…", "ingot jobs show 0198c5a2-… --json | jq .result"))
@asking
def show(ask: Asking, id: JobId) -> None:
    """Show a job with all that is known of it."""
    job = ask.client.read(job_id(id))
    if ask.out.json:
        ask.out.document(job)
        return
    ask.out.facts(
        [
            ("id", job.id),
            ("type", job.type),
            ("status", job.status),
            ("", "cancel requested" if job.cancel_requested and job.status not in FINISHED else None),
            ("priority", NAMES.get(job.priority, job.priority)),
            ("progress", _progress(job) or None),
            ("attempts", f"{job.attempts} ({job.failures} of {job.max_attempts} failed, {job.crashes} crashed)"),
            ("created", at(job.created_at)),
            ("by", job.created_by),
            ("run at", at(job.run_at)),
            ("started", at(job.started_at)),
            ("finished", at(job.finished_at)),
            ("worker", job.worker_id),
            ("lease until", at(job.lease_expires_at)),
            ("tags", job.tags or None),
            ("batch", job.batch),
            ("inputs", ", ".join(job.inputs) or None),
            ("after", job.after or None),
            ("idempotency key", job.idempotency_key),
            ("dedupe key", job.dedupe_key),
            ("correlation id", job.correlation_id),
            ("source", job.source if job.source_ref is None else f"{job.source} {job.source_ref}"),
            ("payload", compact(job.payload) if job.payload_blob is None else f"the blob {job.payload_blob}"),
            ("metadata", compact(job.metadata)),
            ("result", compact(job.result)),
            ("last error" if job.status is JobStatus.SUCCEEDED else "error", job.last_error),
        ]
    )
    if attempts := ask.client.attempts(job.id):
        ask.out.text("\n")
        columns = ("ATTEMPT", "WORKER", "STARTED", "TOOK", "OUTCOME", "ERROR")
        ask.out.table([Column(name) for name in columns], map(_attempt_row, attempts))


@app.command(
    "watch",
    epilog=examples(
        "ingot jobs watch 0198c5a2-… 0198c5a3-…", "ingot jobs watch --batch thumbnails", "ingot jobs watch"
    ),
)
@asking
def watch_jobs(
    ask: Asking,
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
        ended = watch_batch(ask.patient, batch, ask.out)
        if bad := ended.dead + ended.canceled:
            raise JobDead(f"{bad} of {ended.total} jobs of the batch did not succeed", hint=submit.HINT_DEAD)
    elif ids:
        if len(ids) > WATCHED_MAX:
            raise InvalidInput(f"there are {len(ids)} ids; it goes up to {WATCHED_MAX}", hint="Submit them as a batch.")
        for id in ids:
            ask.client.read(job_id(id))
        submit.expect_succeeded(watch(ask.patient, ids, ask.out))
    else:
        _watch_all(ask)


@app.command(epilog=examples("ingot jobs logs 0198c5a2-… --follow", "ingot jobs logs 0198c5a2-… --attempt 1"))
@asking
def logs(
    ask: Asking,
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
        log = ask.client.whole_log(job_id(id), attempt=attempt)
        if ask.out.json:
            ask.out.document(log)
        else:
            ask.out.text(log.text)
        return
    ask.client.read(job_id(id))
    for part in ask.patient.follow_log(id):
        ask.out.item(part, part.text)


@app.command(epilog=examples("ingot jobs explain 0198c5a2-…"))
@asking
def explain(ask: Asking, id: JobId) -> None:
    """Say why a job is not running."""
    found = ask.client.explain(job_id(id))
    if ask.out.json:
        ask.out.document(found)
        return
    ask.out.text("".join(f"{reason.message}\n" for reason in found.reasons) or f"The job is {found.status}.\n")


def job_id(text: str) -> str:
    """The id of a job. Raises `JobNotFound` for what is none."""
    if not is_id(text):
        raise JobNotFound(f"{text[:64]!r} is not the id of a job", hint="`ingot jobs list` has the ids, in full.")
    return text


def row_of(job: Job) -> tuple[object, ...]:
    """A job in a list."""
    return (
        job.id,
        job.type,
        job.status,
        NAMES.get(job.priority, job.priority),
        job.attempts,
        job.created_at,
        _detail(job),
    )


def _detail(job: Job) -> str:
    if job.status is JobStatus.RUNNING:
        return _progress(job)
    if job.status is JobStatus.QUEUED and (due := ago(job.run_at)).startswith("in "):
        return f"{'retry' if job.failures or job.crashes else 'scheduled'} {due}"
    if job.status is JobStatus.SUCCEEDED:
        return f"took {_took(job.started_at, job.finished_at)}"
    return (job.last_error or "").partition("\n")[0]


def _progress(job: Job) -> str:
    if job.progress is None or job.status in FINISHED:
        return ""
    return f"{job.progress.percent:.0f} % {job.progress.stage}".rstrip()


def _took(started_at: datetime | None, finished_at: datetime | None) -> str:
    return "" if started_at is None or finished_at is None else f"{(finished_at - started_at).total_seconds():.1f} s"


def _attempt_row(attempt: Attempt) -> tuple[object, ...]:
    return (
        attempt.number,
        attempt.worker_id,
        ago(attempt.started_at),
        _took(attempt.started_at, attempt.finished_at),
        attempt.outcome or "running",
        (attempt.error or "").partition("\n")[0],
    )


def _watch_all(ask: Asking) -> None:
    """Show what runs, once a second."""
    ask.client.summary()
    while True:
        summary = ask.patient.summary()
        running: list[SyncJob] = list(ask.patient.jobs(status=JobStatus.RUNNING, limit=LIST_JOBS))
        if ask.out.json:
            ask.out.line({"counts": summary.counts, "running": [job.data for job in running]})
        else:
            counts = ", ".join(f"{count} {status}" for status, count in summary.counts.items() if count)
            ask.out.refresh(counts or "no jobs", COLUMNS, [row_of(job.data) for job in running])
        time.sleep(LOOK_SECONDS)
