"""`ingot jobs submit`: one job, or one for each line of a file."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from itertools import islice
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
from ingot.cli.progress import counter_bar, transfer_bars, watch_until_finished
from ingot.client import SyncJob
from ingot.client.asynchronous.client import JOBS_PER_REQUEST_MAX
from ingot.client.errors import JobCanceled, JobDead
from ingot.client.job_request import to_seconds
from ingot.jobs.model import Job, JobStatus, OnDead
from ingot.kernel.errors import IngotError, InvalidInput

LINE_BYTES_MAX: Final = 16 * 1024 * 1024
MANY_JOBS_PANEL: Final = "Many jobs"
DEAD_HINT: Final = "`ingot jobs show` tells of its attempts and `ingot jobs logs` what it wrote; `retry` runs it again."
EXAMPLES: Final = (
    """ingot jobs submit greet --payload '{"name": "Ada"}' --priority high --wait""",
    "ingot jobs submit report --payload-file report.json --delay 10m --tag nightly --key report-2026-01-31",
    "ingot jobs submit thumbnail --file cat.png --wait",
    "ingot jobs submit thumbnail --from payloads.jsonl --batch thumbnails --key thumbnails-1",
    """jq -c '{type: "greet", payload: .}' people.json | ingot jobs submit --from -""",
)


@server_command
def submit(
    ask: CommandContext,
    type: Annotated[
        str | None,
        typer.Argument(metavar="TYPE", help="The type of the job.", autocompletion=job_types, show_default=False),
    ] = None,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="What the job is given.")] = None,
    payload_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same, from a file; - is stdin.", allow_dash=True)
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A file to send with it; may be given more than once."),
    ] = None,
    priority: PriorityOption = None,
    run_at: Annotated[str | None, typer.Option(metavar="TIME", help="Not before this time.")] = None,
    delay: Annotated[str | None, typer.Option(metavar="SPAN", help="Not before 30s, 10m, 2h … have gone by.")] = None,
    tag: TagsOption = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="An idempotency key: the same again makes no second job.")
    ] = None,
    dedupe_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Refused while a job with the same dedupe key is unfinished.")
    ] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, metavar="N", help="How often it may fail.")] = None,
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="What is kept beside the payload.")] = None,
    after: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Wait for this job; more than once too.")
    ] = None,
    on_dead: Annotated[OnDead | None, typer.Option(help="When a job it waits for is dead or canceled.")] = None,
    batch: BatchOption = None,
    correlation_id: Annotated[str | None, typer.Option(metavar="ID", help="What it belongs to, elsewhere.")] = None,
    force: ForceOption = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end, and write its result.")] = False,
    timeout: TimeoutOption = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            allow_dash=True,
            rich_help_panel=MANY_JOBS_PANEL,
            help="A job for each line, which is the payload as JSON; without TYPE it is the job, as in "
            '{"type": …, "payload": …, "priority": …}. - is stdin.',
        ),
    ] = None,
) -> None:
    """Ask for a job, and write its id; or for many.

    With --wait the result is written at the end, as JSON, and the exit code is 8 when the job did not succeed. With
    --from and --key the key of a job is that one and the number of its line, so that the same command again makes no
    job twice.
    """
    if delay is not None and run_at is not None:
        raise InvalidInput("--run-at and --delay are both given", hint="Leave one of them out.")
    order = without_none(
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
        _submit_many(ask, source, type, order, key)
        return
    if type is None:
        raise InvalidInput("there is no type", hint="Write it as in: ingot jobs submit greet.")
    if timeout is not None and not wait:
        raise InvalidInput("--timeout is given without --wait", hint="It says how long to wait.")
    limit = None if timeout is None else to_seconds(timeout)
    body = read_json_option(payload, payload_file, "payload")
    job = _submit(ask, type, body, file or [], {**order, **without_none(idempotency_key=key)})
    if wait:
        _wait(ask, job, limit)
    else:
        ask.out.result(job, job.id)


def _submit(ask: CommandContext, type: str, payload: object, files: list[Path], order: dict[str, Any]) -> Job:
    """Ask for one job, and send its files. Raises `InvalidInput` for those that cannot be."""
    if not files:
        return _report_reuse(ask, ask.client.submit(type, payload, **order))
    named = {path.name: path for path in files}
    for path in files:
        with translate_os_errors(f"{path} cannot be read"):
            if stat.S_ISDIR(path.stat().st_mode):
                raise InvalidInput(f"{path} is a folder", hint="Pack it in a file first, or name the files in it.")
    if len(named) < len(files):
        raise InvalidInput("two files have the same name", hint="Rename one of them.")
    with transfer_bars() as bar, translate_os_errors("a file cannot be read"):
        job: SyncJob = ask.client.submit(
            type, payload, file=named, progress=bar(f"sending {', '.join(named)}"), **order
        )
    return _report_reuse(ask, job)


def _report_reuse(ask: CommandContext, job: SyncJob) -> Job:
    if job.reused:
        ask.out.message(f"The job {job.id} does the same, and is the answer; --force does it anew.")
    return job.data


def _wait(ask: CommandContext, job: Job, seconds: float | None) -> None:
    ask.out.message(f"The job {job.id} is {job.status}.")
    (ended,) = watch_until_finished(ask.retrying_client, [job.id], ask.out, silent=True, timeout_seconds=seconds)
    if ask.out.json:
        ask.out.json_document(ended)
    raise_unless_succeeded([ended])
    if not ask.out.json:
        ask.out.text(f"{pretty_json(ended.result) or 'null'}\n")


def raise_unless_succeeded(jobs: Iterable[Job]) -> None:
    """Raises `JobDead` or `JobCanceled` for the first that did not succeed."""
    for job in jobs:
        if job.status is JobStatus.DEAD:
            raise JobDead(f"the job {job.id} is dead: {job.last_error}", hint=DEAD_HINT)
        if job.status is JobStatus.CANCELED:
            raise JobCanceled(f"the job {job.id} was canceled", hint="`ingot jobs retry` runs it again.")


# -- many of them -------------------------------------------------------------------------------------------


def _submit_many(ask: CommandContext, source: Path, type: str | None, order: dict[str, Any], key: str | None) -> None:
    """Send the jobs of a file, some hundreds at a time. Raises `InvalidInput` for a line that is none."""
    made = 0
    with open_input(source) as lines, counter_bar("submitted", _count_lines(source)) as advance:
        orders = _read_orders(lines, type, order, key)
        try:
            while some := list(islice(orders, JOBS_PER_REQUEST_MAX)):
                client = (
                    ask.retrying_client if made else ask.client
                )  # What has begun well outlives a restart of the server.
                for job in client.submit_orders(some):
                    ask.out.item(job.data, f"{job.id}\n")
                made += len(some)
                advance(len(some))
        except IngotError:
            ask.out.message(f"{made} jobs were submitted before this:")
            raise
    ask.out.message(f"{made} jobs were submitted.")


def _read_orders(
    lines: IO[bytes], type: str | None, order: dict[str, Any], key: str | None
) -> Iterator[dict[str, Any]]:
    number = 0
    while line := lines.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise InvalidInput(f"line {number} is longer than {LINE_BYTES_MAX} bytes", hint="Give each job a line.")
        if not line.strip():
            continue
        keyed = {} if key is None else {"idempotency_key": f"{key}:{number}"}
        if type is not None:
            yield {"type": type, "payload": parse_json(line, f"line {number}"), **order, **keyed}
        else:
            yield {**order, **keyed, **_parse_order(line, number)}


def _parse_order(line: bytes, number: int) -> dict[str, Any]:
    """A job as a line says it; its payload and metadata stay as they are written."""
    parse_json(line, f"line {number}")
    try:
        parts = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise InvalidInput(
            f"line {number} is no job", hint='Name the type before --from, or write {"type": "greet", "payload": …}.'
        ) from None
    return {
        name: part if name in ("payload", "metadata") else msgspec.json.decode(part) for name, part in parts.items()
    }


def _count_lines(source: Path) -> int | None:
    """How many lines there are, to show how far it is; of stdin nobody knows."""
    if source == STDIN or not source.is_file():
        return None
    with source.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


def _reject_single_job_options(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidInput(
                f"--from and --{name.replace('_', '-')} are both given", hint="That one is for a single job."
            )
