"""`ingot blobs`: files on the server, under keys. Sending and fetching have a file of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from ingot.blobs.errors import BlobDamaged, KeyNotFound
from ingot.blobs.model import Key, Purged, Usage
from ingot.cli import transfers
from ingot.cli.asking import Asking, asking, noun
from ingot.cli.confirm import confirm
from ingot.cli.output import Column, ago, sized
from ingot.cli.progress import counted
from ingot.cli.teaching import examples
from ingot.kernel.errors import InvalidInput
from ingot.wire.blobs import URL_SECONDS_MAX

LIST_KEYS: Final = 1000
SHOWN_MAX: Final = 10
COLUMNS: Final = (Column("KEY", whole=True), Column("SIZE", right=True), Column("TYPE", spare=True), Column("STORED"))
LONG: Final = (*COLUMNS, Column("NAME"), Column("OWNER"), Column("ID", whole=True))
KeyOrId = Annotated[str, typer.Argument(metavar="KEY", help="A key, or the id of a blob.", show_default=False)]
Keys = Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Keys.", show_default=False)]
Prefix = Annotated[str | None, typer.Option(metavar="PREFIX", help="All keys that begin so.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")]

app = noun("Store files, fetch them, and look after them.")
app.command("put", epilog=examples(*transfers.PUT_EXAMPLES))(transfers.put)
app.command("get", epilog=examples(*transfers.GET_EXAMPLES))(transfers.get)


@app.command(epilog=examples("ingot blobs ls", "ingot blobs ls reports/2026/ --long", "ingot blobs ls --all --json"))
@asking
def ls(
    ask: Asking,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Keys that begin so.", show_default=False)] = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="With their files, owners and ids.")] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")] = LIST_KEYS,
    every: Annotated[bool, typer.Option("--all", help="As many as there are.")] = False,
) -> None:
    """List keys, in the order of their letters."""
    found = ask.client.blobs.list(prefix, limit=None if every else limit)
    if ask.out.json:
        ask.out.array(found)
        return
    keys = list(found)
    ask.out.table(LONG if long else COLUMNS, (_row(key, long=long) for key in keys))
    if len(keys) == limit and not every:
        ask.out.say(f"There may be more than these {limit}: --limit or --all shows them.")


@app.command(epilog=examples("ingot blobs rm reports/march.pdf", "ingot blobs rm --prefix reports/2025/ --dry-run"))
@asking
def rm(ask: Asking, keys: Keys = None, prefix: Prefix = None, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete keys, or with --prefix all that begin so, after a question. A file goes when nothing refers to it."""
    _expect_one(keys, prefix)
    if prefix == "":  # As of a variable in a script that is not set.
        raise InvalidInput("--prefix is empty, and nothing was deleted", hint="`ingot blobs purge --all` deletes all.")
    if prefix is None:
        names = list(dict.fromkeys(keys or ()))
        found = [ask.client.blobs.read(name) for name in names] if dry_run else []
    else:
        found = list(ask.client.blobs.list(prefix))
        names = [key.key for key in found]
    if dry_run or (prefix is not None and not yes):
        total = Purged(keys=len(found), bytes=sum(key.size for key in found), dry_run=True)
        if dry_run and ask.out.json:
            ask.out.document(total)
            return
        ask.out.say(f"{_counted(total.keys)}, {sized(total.bytes)}:")
        ask.out.say("".join(f"  {key.key}\n" for key in found[:SHOWN_MAX]) + ("  …" if len(found) > SHOWN_MAX else ""))
        if dry_run:
            return
        confirm(f"Delete {_counted(total.keys)}?")

    def deleted() -> Iterator[Key]:
        with counted("deleting", len(names)) as advance:
            for name in names:
                try:
                    yield ask.client.blobs.delete(name)
                except KeyNotFound:
                    if prefix is None:
                        raise
                advance(1)

    if ask.out.json:
        ask.out.array(deleted())
        return
    done: list[Key] = []
    try:
        done.extend(deleted())
    finally:  # One that is not there ends it: what was deleted before is told.
        if done or prefix is not None:
            ask.out.say(f"{_counted(len(done))} deleted, {sized(sum(key.size for key in done))}.")


@app.command(epilog=examples("ingot blobs why reports/march.pdf"))
@asking
def why(ask: Asking, key: KeyOrId) -> None:
    """Say why a blob is kept: what refers to it."""
    found = ask.client.blobs.why(key)
    if ask.out.json:
        ask.out.document(found)
        return
    ask.out.facts(
        [
            ("id", found.blob_id),
            ("sha256", found.sha256),
            ("size", f"{sized(found.size)} ({found.size} bytes)"),
            ("", "damaged" if found.damaged else None),
        ]
    )
    ask.out.text("\n")
    rows = ((one.kind, one.name, one.job_id, one.since) for one in found.references)
    ask.out.table([Column("KEPT BY"), Column("NAME", whole=True), Column("JOB"), Column("SINCE")], rows)


@app.command(epilog=examples("ingot blobs usage", "ingot blobs usage --mine --json"))
@asking
def usage(ask: Asking, mine: Annotated[bool, typer.Option("--mine", help="Of this token alone.")] = False) -> None:
    """Tell how many bytes the tenant keeps, and how many it may."""
    found = ask.client.blobs.usage("caller" if mine else "tenant")
    ask.out.details(
        found,
        [
            ("keys", found.keys),
            ("used", f"{sized(found.bytes)} ({found.bytes} bytes)"),
            ("reserved", f"{sized(found.reserved_bytes)}, for uploads under way" if found.reserved_bytes else None),
            ("quota", _quota(found)),
        ],
    )


@app.command(epilog=examples("ingot blobs verify reports/march.pdf", "ingot blobs verify --prefix reports/"))
@asking
def verify(ask: Asking, keys: Keys = None, prefix: Prefix = None) -> None:
    """Have the server read files whole, and tell whether their bytes are what they were. It ends with 1 when not."""
    _expect_one(keys, prefix)
    names = keys or [key.key for key in ask.client.blobs.list(prefix or "")]
    damaged: list[str] = []

    def looked_at() -> Iterator[dict[str, object]]:
        with counted("verifying", len(names)) as advance:
            for name in names:
                found = ask.patient.blobs.verify(name)
                if not found.whole:
                    damaged.append(name)
                yield {"key": name, "blob_id": found.blob_id, "whole": found.whole}
                advance(1)

    if ask.out.json:
        ask.out.array(looked_at())
    else:
        for one in looked_at():
            ask.out.text(f"{'whole  ' if one['whole'] else 'damaged'}  {one['key']}\n")
        if not names:
            ask.out.say(f"There is no key that begins with {prefix!r}.")
    if damaged:
        raise BlobDamaged(f"{len(damaged)} of {_counted(len(names))} damaged, {damaged[0]!r} first")


@app.command(
    epilog=examples("ingot blobs url reports/march.pdf", 'curl -o march.pdf "$(ingot blobs url reports/march.pdf)"')
)
@asking
def url(
    ask: Asking,
    key: KeyOrId,
    seconds: Annotated[
        int, typer.Option(min=1, max=URL_SECONDS_MAX, metavar="N", help="For how long it holds.")
    ] = URL_SECONDS_MAX,
) -> None:
    """Write an address at which a file can be fetched without a token, for a while, by whoever has it."""
    found = ask.client.blobs.url(key, seconds=seconds)
    ask.out.result(found, found.url)


@app.command(epilog=examples("ingot blobs purge --owner token:0198c5a2-…", "ingot blobs purge --all --dry-run"))
@asking
def purge(
    ask: Asking,
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
        ask.out.document(would)
        return
    if dry_run or not yes:
        ask.out.say(f"{_counted(would.keys)}, {sized(would.bytes)}.")
        if dry_run:
            return
        confirm(f"Delete {_counted(would.keys)}?")
    done = ask.client.blobs.purge(owner=owner, everybody=everybody, dry_run=False)
    ask.out.outcome(done, f"{_counted(done.keys)} deleted, {sized(done.bytes)}.")


@app.command(epilog=examples("ingot blobs collect --dry-run", "ingot blobs collect"))
@asking
def collect(ask: Asking, dry_run: DryRun = False) -> None:
    """Take away what nothing refers to and whose time is over, now; for operators. The server does it by itself too."""
    done = ask.client.blobs.collect(dry_run=dry_run)
    facts = [("blobs", f"{done.blobs} ({sized(done.bytes)})"), ("uploads", done.uploads), ("objects", done.objects)]
    ask.out.details(done, facts)


def _expect_one(keys: list[str] | None, prefix: str | None) -> None:
    if bool(keys) is (prefix is not None):
        raise InvalidInput("either keys or --prefix say which", hint="`ingot blobs ls` has the keys.")


def _counted(keys: int) -> str:
    return f"{keys} key{'' if keys == 1 else 's'}"


def _quota(usage: Usage) -> str:
    if usage.quota_bytes is None:
        return "none"
    if usage.quota_bytes == 0:
        return "0 B"
    taken = (usage.bytes + usage.reserved_bytes) / usage.quota_bytes
    return f"{sized(usage.quota_bytes)} ({usage.quota_bytes} bytes), {taken:.0%} taken"


def _row(key: Key, *, long: bool) -> tuple[object, ...]:
    short = (key.key, sized(key.size), key.content_type, ago(key.uploaded_at))
    return (*short, key.original_name, key.owner, key.blob_id) if long else short
