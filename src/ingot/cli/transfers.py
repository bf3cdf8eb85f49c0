"""`ingot blobs put` and `get`: files on their way to a server, and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from ingot.blobs import checks
from ingot.blobs.errors import KeyExists
from ingot.blobs.model import Key
from ingot.cli.context import CommandContext, server_command
from ingot.cli.local_files import FileRefused, matches_blob, translate_os_errors, walk_files
from ingot.cli.output import format_size
from ingot.cli.parsing import STDIN, open_input
from ingot.cli.progress import transfer_bars
from ingot.cli.resume_cache import ResumeEntry
from ingot.kernel.errors import Conflict, InvalidInput

PUT_EXAMPLES: Final = (
    "ingot blobs put handbook.pdf",
    "ingot blobs put *.png --prefix pictures/2026",
    "ingot blobs put -r reports --replace",
    "pg_dump shop | ingot blobs put - --key backups/shop.sql",
)
GET_EXAMPLES: Final = (
    "ingot blobs get reports/march.pdf",
    "ingot blobs get reports/march.pdf -o /tmp/",
    "ingot blobs get backups/shop.sql -o - | psql shop",
)
STOPPED_MESSAGE: Final = "Stopped. The same command goes on from here."
UNREADABLE_HINT: Final = "Look at those named above; the same command stores what is left."
BarFactory = Callable[[str], Callable[[int, int], None] | None]


@server_command
def put(
    ask: CommandContext,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Files, with -r folders; - is stdin, and needs --key.", show_default=False),
    ],
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The key of a single file; its name unless told.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="What stands before the names, with a / between.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace what is there under the same key.")] = False,
    content_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="What it is, as in text/csv; its name tells otherwise.")
    ] = None,
    recursive: Annotated[
        bool,
        typer.Option(
            "-r",
            "--recursive",
            help="Folders, with all that is in them. Links to files are followed, links to folders are not.",
        ),
    ] = False,
) -> None:
    """Store files under keys, and write the keys.

    A key is new, unless --replace is said; a file that is there already under its key, byte for byte, is done. Of
    several files, one that cannot be read is told of; the others are stored, and it ends with 2.

    What is large goes on where it broke off: by itself when the line breaks; after Ctrl-C when the same command is
    given again within a day, and the file has not changed. What is needed for that is kept in `ingot/uploads` of the
    user's cache folder (XDG_CACHE_HOME, or ~/.cache).
    """
    plan = _plan_uploads(files, key=key, prefix=prefix, recursive=recursive)
    ask.client.me()  # Who typed the address wrong is told soon.
    stored: list[Key] = []
    unread: list[FileRefused] = []

    def made() -> Iterator[Key]:
        with transfer_bars() as bar:
            for path, name in plan:
                try:
                    one = _upload_file(ask, path, name, replace=replace, content_type=content_type, bar=bar)
                except FileRefused as error:
                    if len(plan) == 1:
                        raise
                    unread.append(error)
                    ask.out.message(f"{error.detail}; it is left out.")
                    continue
                stored.append(one)
                yield one

    try:
        if ask.out.json:
            ask.out.json_array(made())
        else:
            for one in made():
                ask.out.text(f"{one.key}\n")
    except KeyboardInterrupt:
        ask.out.message(STOPPED_MESSAGE)
        raise
    if len(stored) > 1 and not ask.out.json:
        ask.out.message(f"{len(stored)} files are stored, {format_size(sum(one.size for one in stored))}.")
    if unread:
        raise InvalidInput(
            f"{len(unread)} of {len(plan)} files cannot be read, and are not stored", hint=UNREADABLE_HINT
        )


def _plan_uploads(files: list[Path], *, key: str | None, prefix: str | None, recursive: bool) -> list[tuple[Path, str]]:
    """Which files go under which keys. Raises `InvalidInput`."""
    if key is not None and prefix is not None:
        raise InvalidInput("--key and --prefix are both given", hint="Leave one of them out.")
    found: list[tuple[Path, str]] = []
    for path in files:
        if path != STDIN and path.is_dir():
            if not recursive:
                raise InvalidInput(f"{path} is a folder", hint="Say -r to store all that is in it.")
            found += _folder_files(path)
        else:
            found.append((path, path.name))
    if key is not None:
        if len(found) != 1:
            raise InvalidInput(f"--key names one file, and these are {len(found)}", hint="Say --prefix for many.")
        found = [(found[0][0], key)]
    elif any(path == STDIN for path, _ in found):
        raise InvalidInput("stdin has no name", hint="Say --key for what it is to be stored under.")
    before = "" if not prefix else prefix.removesuffix("/") + "/"
    plan = [(path, checks.key(before + name)) for path, name in found]
    names = [name for _, name in plan]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1][:1]:
        raise InvalidInput(f"two files would be {twice[0]!r}", hint="Store them with another --prefix each.")
    return plan


def _folder_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """All files in a folder, in order, and their names from that folder on."""
    above = Path(os.path.normpath(folder)).name
    for path in walk_files(folder):
        yield path, (Path(above) / path.relative_to(folder)).as_posix()


def _upload_file(
    ask: CommandContext, path: Path, key: str, *, replace: bool, content_type: str | None, bar: BarFactory
) -> Key:
    blobs = ask.retrying_client.blobs
    if path == STDIN:
        with open_input(path) as stream:
            return blobs.put(stream, key, content_type=content_type, replace=replace, progress=bar(f"sending {key}"))
    remembered = ResumeEntry(
        path, server=ask.server_address.url, tenant=ask.server_address.headers.get("ingot-tenant", ""), key=key
    )
    with translate_os_errors(f"{path} cannot be read"):
        try:
            made = blobs.put(
                path,
                key,
                content_type=content_type,
                replace=replace,
                hashing=bar(f"hashing {path}"),
                progress=bar(f"sending {path}"),
                unfinished=remembered.read(),
                begun=remembered.write,
            )
        except KeyExists:
            made = blobs.read(key)
            if not matches_blob(path, made.blob_id, made.size):
                raise KeyExists(f"there is another blob under the key {key!r} already") from None
    remembered.delete()
    return made


@server_command
def get(
    ask: CommandContext,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key, or the id of a blob.", show_default=False)],
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Where to, a folder with a / at its end; the last part of the key unless told, - is stdout.",
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Write over a file that is there.")] = False,
) -> None:
    """Fetch a file, and write it when all of it is there and right.

    Until then it is beside its place, in a file that ends in .part; the same command goes on with that, as long as the
    key holds the same bytes.
    """
    name = checks.key(key).rpartition("/")[2]
    ask.client.me()
    if output == str(STDIN):
        if ask.out.json:
            raise InvalidInput("--json and -o - are both given", hint="Only one of them can be on stdout.")
        with transfer_bars() as bar:
            for part in ask.retrying_client.blobs.stream(key, progress=bar(f"fetching {key}")):
                ask.out.bytes(part)
        return
    to = Path(name) if output is None else _download_target(output, name)
    if to.exists() and not replace:
        raise Conflict(f"{to} is there already", hint="Say --replace to write over it, or another name after -o.")
    try:
        with transfer_bars() as bar, translate_os_errors(f"{to} cannot be written"):
            if output is not None and output.endswith("/"):
                to.parent.mkdir(parents=True, exist_ok=True)
            ask.retrying_client.blobs.get(key, to, progress=bar(f"fetching {key}"))
            size = to.stat().st_size
    except KeyboardInterrupt:
        ask.out.message(STOPPED_MESSAGE)
        raise
    ask.out.outcome({"key": key, "size": size, "file": str(to)}, f"{to} is there, {format_size(size)}.")


def _download_target(output: str, name: str) -> Path:
    """Where a file goes: a folder is one that is there, or that a / at its end says is one."""
    path = Path(output)
    return path / name if output.endswith("/") or path.is_dir() else path
