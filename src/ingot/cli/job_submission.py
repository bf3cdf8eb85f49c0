"""`ingot jobs submit`: submit one job, or one for each line of a file."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Annotated, Any, Final

import msgspec
import typer

from ingot.cli.completion import job_types
from ingot.cli.context import CommandContext, server_command
from ingot.cli.job_options import BatchOption, ForceOption, PriorityOption, TagsOption, TimeoutOption
from ingot.cli.local_files import translate_os_errors
from ingot.cli.output import pretty_json
from ingot.cli.parsing import STDIN, open_input, parse_future_time, parse_json, read_json_option, without_none
from ingot.cli.progress import counter_bar, reason_suffix, transfer_bars, watch_until_finished
from ingot.client import Client, SyncJob
from ingot.client.asynchronous.client import JOBS_PER_REQUEST_MAX
from ingot.client.errors import JobCanceled, JobDead
from ingot.client.job_request import to_seconds
from ingot.jobs.model import Job, JobStatus, OnDead
from ingot.kernel.errors import IngotError, InvalidInput

LINE_BYTES_MAX: Final = 16 * 1024 * 1024
LINE_HINT: Final = 'Name the job type before --from, or write lines such as {"type": "greet", "payload": …}.'
# Fewer jobs at once can succeed. Nothing was changed.
SIZE_ERRORS: Final = frozenset({"rate_limited", "too_many_bytes", "body_too_large", "proxy_limit"})
MANY_JOBS_PANEL: Final = "Many jobs"
DEAD_HINT: Final = (
    "`ingot jobs show` shows the attempts, `ingot jobs logs` the log. `ingot jobs retry` runs the job again."
)
EXAMPLES: Final = (
    """ingot jobs submit greet --payload '{"name": "Ada"}' --priority high --wait""",
    "ingot jobs submit report --payload-file report.json --delay 10m --tag nightly --key report-2026-01-31",
    "ingot jobs submit thumbnail --file cat.png --wait",
    "ingot jobs submit thumbnail --from payloads.jsonl --batch thumbnails --key thumbnails-1",
    """jq -c '{type: "greet", payload: .}' people.json | ingot jobs submit --from -""",
)


@server_command
def submit(
    context: CommandContext,
    type: Annotated[
        str | None,
        typer.Argument(metavar="TYPE", help="Job type.", autocompletion=job_types, show_default=False),
    ] = None,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="Payload of the job.")] = None,
    payload_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File that contains the payload. - is stdin.", allow_dash=True)
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Input file to upload. Can be repeated."),
    ] = None,
    priority: PriorityOption = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Earliest start time, such as 2026-01-31T09:00:00Z.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Delay before the job can start, such as 30s, 10m or 2h.")
    ] = None,
    tag: TagsOption = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Idempotency key. Submitting the same key again returns the same job."),
    ] = None,
    dedupe_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Dedupe key. Only one unfinished job can have it.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Maximum number of failed attempts.")
    ] = None,
    metadata: Annotated[
        str | None, typer.Option(metavar="JSON", help="Metadata that is kept with the job and not interpreted.")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Job that must finish before this one starts. Can be repeated."),
    ] = None,
    on_dead: Annotated[
        OnDead | None,
        typer.Option(help="Action on this job if a job given with --after is dead or canceled. Default: cancel."),
    ] = None,
    batch: BatchOption = None,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Correlation ID from another system.")
    ] = None,
    force: ForceOption = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job is finished and print its result.")] = False,
    timeout: TimeoutOption = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            allow_dash=True,
            rich_help_panel=MANY_JOBS_PANEL,
            help="File with one job per line. With TYPE, each line is a payload as JSON; without TYPE, a job such as "
            '{"type": …, "payload": …, "priority": …}. - is stdin.',
        ),
    ] = None,
) -> None:
    """Submit one job, or many from a file, and print the IDs.

    With --wait, print the result as JSON instead. The exit code is 8 if the job does not succeed.

    With --from and --key, the idempotency key of each job is KEY:LINE, where LINE is the line number. Running the same
    command again then creates no job twice.
    """
    if delay is not None and run_at is not None:
        raise InvalidInput("--run-at and --delay cannot be combined", hint="Remove one of them.")
    job_options = without_none(
        priority=priority,
        run_at=parse_future_time(run_at, "--run-at"),
        delay=None if delay is None else to_seconds(delay),
        tags=tag or None,
        dedupe_key=dedupe_key,
        max_attempts=max_attempts,
        metadata=None if metadata is None else parse_json(metadata, "--metadata"),
        after=after or None,
        on_dead=on_dead,
        batch=batch,
        correlation_id=correlation_id,
        force=force or None,
    )
    if source is not None:
        _reject_single_job_options(
            payload=payload, payload_file=payload_file, file=file or None, dedupe_key=dedupe_key, wait=wait or None
        )
        _submit_many(context, source, type, job_options, key)
        return
    if type is None:
        raise InvalidInput("the job type is missing", hint="Name it, for example `ingot jobs submit greet`.")
    if timeout is not None and not wait:
        raise InvalidInput("--timeout requires --wait", hint="Add --wait, or remove --timeout.")
    timeout_seconds = None if timeout is None else to_seconds(timeout)
    payload_value = read_json_option(payload, payload_file, "payload")
    job = _submit(context, type, payload_value, file or [], {**job_options, **without_none(idempotency_key=key)})
    if wait:
        _wait(context, job, timeout_seconds)
    else:
        context.out.result(job, job.id)


def _submit(context: CommandContext, type: str, payload: object, files: list[Path], job_options: dict[str, Any]) -> Job:
    """Submit one job and upload its files. Raises `InvalidInput` for unreadable files and duplicate names."""
    if not files:
        return _report_reuse(context, context.client.submit(type, payload, **job_options))
    files_by_name = {path.name: path for path in files}
    for path in files:
        with translate_os_errors(f"{path} cannot be read"):
            if stat.S_ISDIR(path.stat().st_mode):
                raise InvalidInput(f"{path} is a folder", hint="Pack it into one file, or name the files in it.")
    if len(files_by_name) < len(files):
        raise InvalidInput("two files have the same name", hint="Rename one of them.")
    with transfer_bars() as bar, translate_os_errors("a file cannot be read"):
        job: SyncJob = context.client.submit(
            type, payload, file=files_by_name, progress=bar(f"sending {', '.join(files_by_name)}"), **job_options
        )
    return _report_reuse(context, job)


def _report_reuse(context: CommandContext, job: SyncJob) -> Job:
    if job.reused:
        context.out.message(f"Reused job {job.id}, which has the same input. Use --force to run a new one.")
    return job.data


def _wait(context: CommandContext, job: Job, timeout_seconds: float | None) -> None:
    context.out.message(f"Job {job.id} is {job.status}.")
    (finished_job,) = watch_until_finished(
        context.retrying_client, [job.id], context.out, silent=True, timeout_seconds=timeout_seconds
    )
    if context.out.json:
        context.out.json_document(finished_job)
    raise_unless_succeeded([finished_job], context.client)
    if not context.out.json:
        context.out.text(f"{pretty_json(finished_job.result) or 'null'}\n")


def raise_unless_succeeded(jobs: Iterable[Job], client: Client) -> None:
    """Raise `JobDead` or `JobCanceled`, with the reason, for the first job that did not succeed."""
    for job in jobs:
        if job.status is JobStatus.DEAD:
            raise JobDead(f"job {job.id} is dead: {job.last_error}", hint=DEAD_HINT)
        if job.status is JobStatus.CANCELED:
            reason = reason_suffix(client, job.id)
            raise JobCanceled(f"job {job.id} was canceled{reason}", hint="`ingot jobs retry` runs it again.")


# -- many jobs ----------------------------------------------------------------------------------------------


def _submit_many(
    context: CommandContext, source: Path, type: str | None, job_options: dict[str, Any], key: str | None
) -> None:
    """Submit the jobs of a file, several hundred per request. Raises `InvalidInput` for a line that is not a job."""
    submitted = 0
    with open_input(source) as lines, counter_bar("submitting", _count_lines(source)) as advance:
        orders = _read_orders(lines, type, job_options, key)
        try:
            for jobs in submit_in_requests(context, orders):
                for job in jobs:
                    context.out.item(job.data, f"{job.id}\n")
                submitted += len(jobs)
                advance(len(jobs))
        except IngotError:
            context.out.message(f"{submitted} jobs were submitted before this error:")
            raise
    context.out.message(f"{submitted} jobs were submitted.")


def submit_in_requests(context: CommandContext, orders: Iterator[dict[str, Any]]) -> Iterator[list[SyncJob]]:
    """Submit orders, and yield the jobs of each request. A request that exceeds a limit is sent again in halves."""
    # Fail fast until a request of this size has succeeded. Later requests wait, and survive a restart of the server.
    client = context.open_client(limit_patience=0)
    request_jobs_max = JOBS_PER_REQUEST_MAX
    while request_orders := list(islice(orders, request_jobs_max)):
        try:
            jobs = client.submit_orders(request_orders)
        except IngotError as error:
            if error.code not in SIZE_ERRORS or (len(request_orders) == 1 and client is context.retrying_client):
                raise
            orders = chain(request_orders, orders)
            request_jobs_max = max(1, len(request_orders) // 2)
            if len(request_orders) == 1:
                client = context.retrying_client
        else:
            client = context.retrying_client
            yield jobs


def _read_orders(
    lines: IO[bytes], type: str | None, job_options: dict[str, Any], key: str | None
) -> Iterator[dict[str, Any]]:
    """Yield one order per line that is not empty. The fields of a line override the options."""
    number = 0
    while line := lines.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise InvalidInput(
                f"line {number} is longer than {LINE_BYTES_MAX} bytes", hint="Put each job on a line of its own."
            )
        if not line.strip():
            continue
        idempotency = {} if key is None else {"idempotency_key": f"{key}:{number}"}
        if type is not None:
            yield {"type": type, "payload": parse_json(line, f"line {number}"), **job_options, **idempotency}
        else:
            yield {**job_options, **idempotency, **_parse_order(line, number)}


def _parse_order(line: bytes, number: int) -> dict[str, Any]:
    """Parse a line that describes a job. Payload and metadata keep the bytes of the line."""
    parse_json(line, f"line {number}")
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise InvalidInput(
            f"line {number} is not a job",
            hint=LINE_HINT,
        ) from None
    if "type" not in fields:
        raise InvalidInput(f"line {number}: a job has no type", hint=LINE_HINT)
    return {
        name: value if name in ("payload", "metadata") else msgspec.json.decode(value) for name, value in fields.items()
    }


def _count_lines(source: Path) -> int | None:
    """Count the lines of a file that are not empty, for the progress bar. Return `None` for stdin."""
    if source == STDIN or not source.is_file():
        return None
    with source.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


def _reject_single_job_options(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidInput(
                f"--from and --{name.replace('_', '-')} cannot be combined",
                hint=f"Remove --{name.replace('_', '-')}, which is only for a single job.",
            )
