"""`ingot blobs`: files on the server, under keys. Sending and fetching have a file of their own."""

from __future__ import annotations

from collections.abc import Iterator
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
KeyOrId = Annotated[str, typer.Argument(metavar="KEY", help="A key, or the id of a blob.", show_default=False)]
Keys = Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Keys.", show_default=False)]
Prefix = Annotated[str | None, typer.Option(metavar="PREFIX", help="All keys that begin so.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")]

app = command_group("Store files, fetch them, and look after them.")
app.command("put", epilog=examples_epilog(*transfers.PUT_EXAMPLES))(transfers.put)
app.command("get", epilog=examples_epilog(*transfers.GET_EXAMPLES))(transfers.get)


@app.command(
    epilog=examples_epilog("ingot blobs ls", "ingot blobs ls reports/2026/ --long", "ingot blobs ls --all --json")
)
@server_command
def ls(
    ask: CommandContext,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Keys that begin so.", show_default=False)] = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="With their files, owners and ids.")] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")] = LIST_KEYS_DEFAULT,
    every: Annotated[bool, typer.Option("--all", help="As many as there are.")] = False,
) -> None:
    """List keys, in the order of their letters."""
    found = ask.client.blobs.list(prefix, limit=None if every else limit)
    if ask.out.json:
        ask.out.json_array(found)
        return
    keys = list(found)
    ask.out.table(LONG_COLUMNS if long else COLUMNS, (_row(key, long=long) for key in keys))
    if len(keys) == limit and not every:
        ask.out.message(f"There may be more than these {limit}: --limit or --all shows them.")


@app.command(
    epilog=examples_epilog("ingot blobs rm reports/march.pdf", "ingot blobs rm --prefix reports/2025/ --dry-run")
)
@server_command
def rm(
    ask: CommandContext, keys: Keys = None, prefix: Prefix = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Delete keys, or with --prefix all that begin so, after a question. A file goes when nothing refers to it."""
    _require_keys_or_prefix(keys, prefix)
    if prefix == "":  # As of a variable in a script that is not set.
        raise InvalidInput("--prefix is empty, and nothing was deleted", hint="`ingot blobs purge --all` deletes all.")
    if prefix is None:
        names = list(dict.fromkeys(keys or ()))
        found = [ask.client.blobs.read(name) for name in names] if dry_run else []
    else:
        found = list(ask.client.blobs.list(prefix))
        names = [key.key for key in found]
    if dry_run or (prefix is not None and not yes):
        total = PurgeResult(keys=len(found), bytes=sum(key.size for key in found), dry_run=True)
        if dry_run and ask.out.json:
            ask.out.json_document(total)
            return
        ask.out.message(f"{_key_count_text(total.keys)}, {format_size(total.bytes)}:")
        ask.out.message(
            "".join(f"  {key.key}\n" for key in found[:SHOWN_KEYS_MAX]) + ("  …" if len(found) > SHOWN_KEYS_MAX else "")
        )
        if dry_run:
            return
        confirm(f"Delete {_key_count_text(total.keys)}?")

    def deleted() -> Iterator[Key]:
        with counter_bar("deleting", len(names)) as advance:
            for name in names:
                try:
                    yield ask.client.blobs.delete(name)
                except KeyNotFound:
                    if prefix is None:
                        raise
                advance(1)

    if ask.out.json:
        ask.out.json_array(deleted())
        return
    done: list[Key] = []
    try:
        done.extend(deleted())
    finally:  # One that is not there ends it: what was deleted before is told.
        if done or prefix is not None:
            ask.out.message(f"{_key_count_text(len(done))} deleted, {format_size(sum(key.size for key in done))}.")


@app.command(epilog=examples_epilog("ingot blobs why reports/march.pdf"))
@server_command
def why(ask: CommandContext, key: KeyOrId) -> None:
    """Say why a blob is kept: what refers to it."""
    found = ask.client.blobs.why(key)
    if ask.out.json:
        ask.out.json_document(found)
        return
    ask.out.fields(
        [
            ("id", found.blob_id),
            ("sha256", found.sha256),
            ("size", f"{format_size(found.size)} ({found.size} bytes)"),
            ("", "damaged" if found.damaged else None),
        ]
    )
    ask.out.text("\n")
    rows = ((one.kind, one.name, one.job_id, one.since) for one in found.references)
    ask.out.table([Column("KEPT BY"), Column("NAME", never_truncate=True), Column("JOB"), Column("SINCE")], rows)


@app.command(epilog=examples_epilog("ingot blobs usage", "ingot blobs usage --mine --json"))
@server_command
def usage(
    ask: CommandContext, mine: Annotated[bool, typer.Option("--mine", help="Of this token alone.")] = False
) -> None:
    """Tell how many bytes the tenant keeps, and how many it may."""
    found = ask.client.blobs.usage("caller" if mine else "tenant")
    ask.out.details(
        found,
        [
            ("keys", found.keys),
            ("used", f"{format_size(found.bytes)} ({found.bytes} bytes)"),
            (
                "reserved",
                f"{format_size(found.reserved_bytes)}, for uploads under way" if found.reserved_bytes else None,
            ),
            ("quota", _quota_text(found)),
        ],
    )


@app.command(epilog=examples_epilog("ingot blobs verify reports/march.pdf", "ingot blobs verify --prefix reports/"))
@server_command
def verify(ask: CommandContext, keys: Keys = None, prefix: Prefix = None) -> None:
    """Have the server read files whole, and tell whether their bytes are what they were. It ends with 1 when not."""
    _require_keys_or_prefix(keys, prefix)
    names = keys or [key.key for key in ask.client.blobs.list(prefix or "")]
    damaged: list[str] = []

    def looked_at() -> Iterator[dict[str, object]]:
        with counter_bar("verifying", len(names)) as advance:
            for name in names:
                found = ask.retrying_client.blobs.verify(name)
                if not found.whole:
                    damaged.append(name)
                yield {"key": name, "blob_id": found.blob_id, "whole": found.whole}
                advance(1)

    if ask.out.json:
        ask.out.json_array(looked_at())
    else:
        for one in looked_at():
            ask.out.text(f"{'whole  ' if one['whole'] else 'damaged'}  {one['key']}\n")
        if not names:
            ask.out.message(f"There is no key that begins with {prefix!r}.")
    if damaged:
        raise BlobDamaged(f"{len(damaged)} of {_key_count_text(len(names))} damaged, {damaged[0]!r} first")


@app.command(
    epilog=examples_epilog(
        "ingot blobs url reports/march.pdf", 'curl -o march.pdf "$(ingot blobs url reports/march.pdf)"'
    )
)
@server_command
def url(
    ask: CommandContext,
    key: KeyOrId,
    seconds: Annotated[
        int, typer.Option(min=1, max=URL_SECONDS_MAX, metavar="N", help="For how long it holds.")
    ] = URL_SECONDS_MAX,
) -> None:
    """Write an address at which a file can be fetched without a token, for a while, by whoever has it."""
    found = ask.client.blobs.url(key, seconds=seconds)
    ask.out.result(found, found.url)


@app.command(epilog=examples_epilog("ingot blobs purge --owner token:0198c5a2-…", "ingot blobs purge --all --dry-run"))
@server_command
def purge(
    ask: CommandContext,
    owner: Annotated[str | None, typer.Option(metavar="OWNER", help="Whose: token:ID, worker:ID or user:ID.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="All keys of the tenant.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete all keys that a token set, also one that was revoked, or all of the tenant; after a question."""
    if (owner is None) is not everybody:
        raise InvalidInput("either --owner or --all says whose", hint="`ingot blobs ls --long` has the owners.")
    would = ask.client.blobs.purge(owner=owner, everybody=everybody)
    if dry_run and ask.out.json:
        ask.out.json_document(would)
        return
    if dry_run or not yes:
        ask.out.message(f"{_key_count_text(would.keys)}, {format_size(would.bytes)}.")
        if dry_run:
            return
        confirm(f"Delete {_key_count_text(would.keys)}?")
    done = ask.client.blobs.purge(owner=owner, everybody=everybody, dry_run=False)
    ask.out.outcome(done, f"{_key_count_text(done.keys)} deleted, {format_size(done.bytes)}.")


@app.command(epilog=examples_epilog("ingot blobs collect --dry-run", "ingot blobs collect"))
@server_command
def collect(ask: CommandContext, dry_run: DryRun = False) -> None:
    """Take away what nothing refers to and whose time is over, now; for operators. The server does it by itself too."""
    done = ask.client.blobs.collect(dry_run=dry_run)
    facts = [
        ("blobs", f"{done.blobs} ({format_size(done.bytes)})"),
        ("uploads", done.uploads),
        ("objects", done.objects),
    ]
    ask.out.details(done, facts)


def _require_keys_or_prefix(keys: list[str] | None, prefix: str | None) -> None:
    if bool(keys) is (prefix is not None):
        raise InvalidInput("either keys or --prefix say which", hint="`ingot blobs ls` has the keys.")


def _key_count_text(keys: int) -> str:
    return f"{keys} key{'' if keys == 1 else 's'}"


def _quota_text(usage: Usage) -> str:
    if usage.quota_bytes is None:
        return "none"
    if usage.quota_bytes == 0:
        return "0 B"
    taken = (usage.bytes + usage.reserved_bytes) / usage.quota_bytes
    return f"{format_size(usage.quota_bytes)} ({usage.quota_bytes} bytes), {taken:.0%} taken"


def _row(key: Key, *, long: bool) -> tuple[object, ...]:
    short = (key.key, format_size(key.size), key.content_type, relative_time(key.uploaded_at))
    return (*short, key.original_name, key.owner, key.blob_id) if long else short
