"""`ingot blobs`: list, delete and check files on the server. `put` and `get` are in `transfers.py`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Final

import typer

from ingot.blobs.errors import BlobDamaged, KeyNotFound
from ingot.blobs.model import Key, PurgeResult, Usage
from ingot.cli import transfers
from ingot.cli.confirm import confirm
from ingot.cli.context import CommandContext, command_group, server_command
from ingot.cli.help_text import examples_epilog
from ingot.cli.output import Column, format_size, relative_time
from ingot.cli.progress import counter_bar
from ingot.kernel.errors import InvalidInput
from ingot.wire.blobs import URL_SECONDS_MAX

LIST_KEYS_DEFAULT: Final = 1000
SHOWN_KEYS_MAX: Final = 10
COLUMNS: Final = (
    Column("KEY", never_truncate=True),
    Column("SIZE", align_right=True),
    Column("TYPE", optional=True),
    Column("STORED"),
)
LONG_COLUMNS: Final = (*COLUMNS, Column("NAME"), Column("OWNER"), Column("ID", never_truncate=True))
KeyOrId = Annotated[str, typer.Argument(metavar="KEY", help="Key, or blob ID.", show_default=False)]
Keys = Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Keys.", show_default=False)]
Prefix = Annotated[str | None, typer.Option(metavar="PREFIX", help="All keys with this prefix.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")]

app = command_group("Store, fetch, list, check and delete files.")
app.command("put", epilog=examples_epilog(*transfers.PUT_EXAMPLES))(transfers.put)
app.command("get", epilog=examples_epilog(*transfers.GET_EXAMPLES))(transfers.get)


@app.command(
    epilog=examples_epilog("ingot blobs ls", "ingot blobs ls reports/2026/ --long", "ingot blobs ls --all --json")
)
@server_command
def ls(
    context: CommandContext,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only keys with this prefix.", show_default=False)
    ] = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="Also show file names, owners and blob IDs.")] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of keys.")] = LIST_KEYS_DEFAULT,
    show_all: Annotated[bool, typer.Option("--all", help="List all keys.")] = False,
) -> None:
    """List keys in alphabetical order."""
    listed = context.client.blobs.list(prefix, limit=None if show_all else limit)
    if context.out.json:
        context.out.json_array(listed)
        return
    keys = list(listed)
    context.out.table(LONG_COLUMNS if long else COLUMNS, (_row(key, long=long) for key in keys))
    if len(keys) == limit and not show_all:
        context.out.message(f"Only the first {limit} keys are shown. Use --limit or --all for more.")


@app.command(
    epilog=examples_epilog("ingot blobs rm reports/march.pdf", "ingot blobs rm --prefix reports/2025/ --dry-run")
)
@server_command
def rm(
    context: CommandContext, keys: Keys = None, prefix: Prefix = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Delete keys, by name or by prefix.

    With --prefix, you are asked for confirmation. The content of a key is deleted later, unless something else refers
    to it.
    """
    _require_keys_or_prefix(keys, prefix)
    if prefix == "":  # Usually an unset variable in a script.
        raise InvalidInput(
            "--prefix is empty; nothing was deleted", hint="To delete all keys, use `ingot blobs purge --all`."
        )
    if prefix is None:
        names = list(dict.fromkeys(keys or ()))
        matching_keys = [context.client.blobs.read(name) for name in names] if dry_run else []
    else:
        matching_keys = list(context.client.blobs.list(prefix))
        names = [key.key for key in matching_keys]
    if dry_run or (prefix is not None and not yes):
        total = PurgeResult(keys=len(matching_keys), bytes=sum(key.size for key in matching_keys), dry_run=True)
        if dry_run and context.out.json:
            context.out.json_document(total)
            return
        context.out.message(f"{_key_count_text(total.keys)}, {format_size(total.bytes)}:")
        context.out.message(
            "".join(f"  {key.key}\n" for key in matching_keys[:SHOWN_KEYS_MAX])
            + ("  …" if len(matching_keys) > SHOWN_KEYS_MAX else "")
        )
        if dry_run:
            return
        confirm(f"Delete {_key_count_text(total.keys)}?")

    def delete_keys() -> Iterator[Key]:
        with counter_bar("deleting", len(names)) as advance:
            for name in names:
                try:
                    yield context.client.blobs.delete(name)
                except KeyNotFound:
                    if prefix is None:
                        raise
                advance(1)

    if context.out.json:
        context.out.json_array(delete_keys())
        return
    deleted: list[Key] = []
    try:
        deleted.extend(delete_keys())
    finally:  # A missing key ends the command with an error. Report the keys that were deleted before.
        if deleted or prefix is not None:
            size = format_size(sum(key.size for key in deleted))
            context.out.message(f"{_key_count_text(len(deleted))} deleted, {size}.")


@app.command(epilog=examples_epilog("ingot blobs why reports/march.pdf"))
@server_command
def why(context: CommandContext, key: KeyOrId) -> None:
    """Show why a blob is kept: the keys, uploads and job files that refer to it."""
    explanation = context.client.blobs.why(key)
    if context.out.json:
        context.out.json_document(explanation)
        return
    context.out.fields(
        [
            ("id", explanation.blob_id),
            ("sha256", explanation.sha256),
            ("size", f"{format_size(explanation.size)} ({explanation.size} bytes)"),
            ("", "damaged" if explanation.damaged else None),
        ]
    )
    context.out.text("\n")
    rows = ((reference.kind, reference.name, reference.job_id, reference.since) for reference in explanation.references)
    context.out.table([Column("KEPT BY"), Column("NAME", never_truncate=True), Column("JOB"), Column("SINCE")], rows)


@app.command(epilog=examples_epilog("ingot blobs usage", "ingot blobs usage --mine --json"))
@server_command
def usage(
    context: CommandContext,
    mine: Annotated[bool, typer.Option("--mine", help="Usage and quota of the token that you use.")] = False,
) -> None:
    """Show the bytes used and the quota of the tenant."""
    usage = context.client.blobs.usage("caller" if mine else "tenant")
    reserved = f"{format_size(usage.reserved_bytes)}, for uploads in progress" if usage.reserved_bytes else None
    context.out.details(
        usage,
        [
            ("keys", usage.keys),
            ("used", f"{format_size(usage.bytes)} ({usage.bytes} bytes)"),
            ("reserved", reserved),
            ("deleted", _deleted_text(usage.deleted_bytes, usage.freed_from, usage.freed_by)),
            ("quota", _quota_text(usage)),
        ],
    )


@app.command(epilog=examples_epilog("ingot blobs verify reports/march.pdf", "ingot blobs verify --prefix reports/"))
@server_command
def verify(context: CommandContext, keys: Keys = None, prefix: Prefix = None) -> None:
    """Let the server read files completely and compare them with their digests.

    The exit code is 1 if a file is damaged.
    """
    _require_keys_or_prefix(keys, prefix)
    names = keys or [key.key for key in context.client.blobs.list(prefix or "")]
    damaged: list[str] = []

    def verify_keys() -> Iterator[dict[str, object]]:
        with counter_bar("verifying", len(names)) as advance:
            for name in names:
                verification = context.retrying_client.blobs.verify(name)
                if not verification.whole:
                    damaged.append(name)
                yield {"key": name, "blob_id": verification.blob_id, "whole": verification.whole}
                advance(1)

    if context.out.json:
        context.out.json_array(verify_keys())
    else:
        for result in verify_keys():
            context.out.text(f"{'whole  ' if result['whole'] else 'damaged'}  {result['key']}\n")
        if not names:
            context.out.message(f"No key has the prefix {prefix!r}.")
    if damaged:
        raise BlobDamaged(f"{len(damaged)} of {_key_count_text(len(names))} damaged, the first is {damaged[0]!r}")


@app.command(
    epilog=examples_epilog(
        "ingot blobs url reports/march.pdf", 'curl -o march.pdf "$(ingot blobs url reports/march.pdf)"'
    )
)
@server_command
def url(
    context: CommandContext,
    key: KeyOrId,
    seconds: Annotated[
        int, typer.Option(min=1, max=URL_SECONDS_MAX, metavar="N", help="Validity of the URL in seconds.")
    ] = URL_SECONDS_MAX,
) -> None:
    """Print a temporary URL that fetches a file without a token.

    Anyone who has the URL can fetch the file until the URL expires.
    """
    signed_url = context.client.blobs.url(key, seconds=seconds)
    context.out.result(signed_url, signed_url.url)


@app.command(epilog=examples_epilog("ingot blobs purge --owner token:0198c5a2-…", "ingot blobs purge --all --dry-run"))
@server_command
def purge(
    context: CommandContext,
    owner: Annotated[
        str | None, typer.Option(metavar="OWNER", help="Owner of the keys: token:ID, worker:ID or user:ID.")
    ] = None,
    all_owners: Annotated[bool, typer.Option("--all", help="All keys of the tenant.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete all keys of one owner, or all keys of the tenant, after confirmation.

    The owner of a key is the token, worker credential or person that stored it. It may have been revoked since.
    """
    if (owner is None) is not all_owners:
        raise InvalidInput("exactly one of --owner and --all is required", hint="`ingot blobs ls --long` shows owners.")
    preview = context.client.blobs.purge(owner=owner, everybody=all_owners)
    if dry_run and context.out.json:
        context.out.json_document(preview)
        return
    if dry_run or not yes:
        context.out.message(f"{_key_count_text(preview.keys)}, {format_size(preview.bytes)}.")
        if dry_run:
            return
        confirm(f"Delete {_key_count_text(preview.keys)}?")
    purged = context.client.blobs.purge(owner=owner, everybody=all_owners, dry_run=False)
    context.out.outcome(purged, f"{_key_count_text(purged.keys)} deleted, {format_size(purged.bytes)}.")


@app.command(epilog=examples_epilog("ingot blobs collect --dry-run", "ingot blobs collect --now"))
@server_command
def collect(
    context: CommandContext,
    dry_run: DryRun = False,
    now: Annotated[
        bool, typer.Option("--now", help="Include blobs in their grace period that no reader can still need.")
    ] = False,
) -> None:
    """Delete unreferenced blobs and leftovers of uploads whose grace period is over; for operators.

    The server also does this regularly.
    """
    collected = context.client.blobs.collect(dry_run=dry_run, now=now)
    facts = [
        ("blobs", f"{collected.blobs} ({format_size(collected.bytes)})"),
        ("uploads", collected.uploads),
        ("objects", collected.objects),
        ("waiting", _deleted_text(collected.waiting_bytes, collected.freed_from, collected.freed_by)),
    ]
    context.out.details(collected, facts)


def _require_keys_or_prefix(keys: list[str] | None, prefix: str | None) -> None:
    if bool(keys) is (prefix is not None):
        raise InvalidInput("either keys or --prefix must be given, not both", hint="`ingot blobs ls` shows all keys.")


def _key_count_text(keys: int) -> str:
    return f"{keys} key{'' if keys == 1 else 's'}"


def _deleted_text(size: int, freed_from: datetime | None, freed_by: datetime | None) -> str | None:
    """Describe bytes that are deleted and not free yet."""
    if not size or freed_from is None or freed_by is None:
        return None
    first, last = (f"{time:%Y-%m-%d %H:%M} UTC" for time in (freed_from, freed_by))
    return f"{format_size(size)}, free {f'by {last}' if first == last else f'from {first} to {last}'}"


def _quota_text(usage: Usage) -> str:
    if usage.quota_bytes is None:
        return "none"
    if usage.quota_bytes == 0:
        return "0 B"
    used = (usage.bytes + usage.reserved_bytes + usage.deleted_bytes) / usage.quota_bytes
    return f"{format_size(usage.quota_bytes)} ({usage.quota_bytes} bytes), {used:.0%} used"


def _row(key: Key, *, long: bool) -> tuple[object, ...]:
    short = (key.key, format_size(key.size), key.content_type, relative_time(key.uploaded_at))
    return (*short, key.original_name, key.owner, key.blob_id) if long else short
