"""`ingot blobs put` and `ingot blobs get`."""

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
STOPPED_MESSAGE: Final = "Interrupted. Run the same command again to resume."
UNREADABLE_HINT: Final = "Check the files named above, then run the same command again to store them."
BarFactory = Callable[[str], Callable[[int, int], None] | None]


@server_command
def put(
    context: CommandContext,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="Files; with -r also folders. - is stdin and requires --key.", show_default=False
        ),
    ],
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Key of a single file. Default: the file name.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Prefix of the keys, separated from the names by a /.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite existing keys.")] = False,
    content_type: Annotated[
        str | None,
        typer.Option(
            "--type", metavar="TYPE", help="Content type, such as text/csv. Default: guessed from the file name."
        ),
    ] = None,
    recursive: Annotated[
        bool,
        typer.Option(
            "-r",
            "--recursive",
            help="Store folders with everything in them. Links to files are followed, links to folders are not.",
        ),
    ] = False,
) -> None:
    """Store files and print their keys.

    Existing keys are not overwritten unless you use --replace. A file that is already stored under its key with the
    same content is skipped. If one of several files cannot be read, the others are stored and the exit code is 2.

    Large uploads resume where they stopped: automatically after a connection error, and after Ctrl-C if you run the
    same command again within a day and the file has not changed. The state of unfinished uploads is kept in
    `ingot/uploads` in your cache folder (XDG_CACHE_HOME, or ~/.cache).
    """
    plan = _plan_uploads(files, key=key, prefix=prefix, recursive=recursive)
    context.client.me()  # Fail fast on a wrong URL or token.
    stored: list[Key] = []
    unreadable: list[FileRefused] = []

    def upload_files() -> Iterator[Key]:
        with transfer_bars() as bar:
            for path, name in plan:
                try:
                    uploaded = _upload_file(context, path, name, replace=replace, content_type=content_type, bar=bar)
                except FileRefused as error:
                    if len(plan) == 1:
                        raise
                    unreadable.append(error)
                    context.out.message(f"Skipped: {error.detail}.")
                    continue
                stored.append(uploaded)
                yield uploaded

    try:
        if context.out.json:
            context.out.json_array(upload_files())
        else:
            for uploaded in upload_files():
                context.out.text(f"{uploaded.key}\n")
    except KeyboardInterrupt:
        context.out.message(STOPPED_MESSAGE)
        raise
    if len(stored) > 1 and not context.out.json:
        context.out.message(f"{len(stored)} files stored, {format_size(sum(uploaded.size for uploaded in stored))}.")
    if unreadable:
        raise InvalidInput(
            f"{len(unreadable)} of {len(plan)} files cannot be read and were not stored", hint=UNREADABLE_HINT
        )


def _plan_uploads(files: list[Path], *, key: str | None, prefix: str | None, recursive: bool) -> list[tuple[Path, str]]:
    """Return the files to upload with their keys. Raises `InvalidInput`."""
    if key is not None and prefix is not None:
        raise InvalidInput("--key and --prefix cannot be combined", hint="Remove one of them.")
    named_files: list[tuple[Path, str]] = []
    for path in files:
        if path != STDIN and path.is_dir():
            if not recursive:
                raise InvalidInput(f"{path} is a folder", hint="Use -r to store everything in it.")
            named_files += _folder_files(path)
        else:
            named_files.append((path, path.name))
    if key is not None:
        if len(named_files) != 1:
            raise InvalidInput(
                f"--key requires exactly one file, got {len(named_files)}", hint="Use --prefix for several files."
            )
        named_files = [(named_files[0][0], key)]
    elif any(path == STDIN for path, _ in named_files):
        raise InvalidInput("stdin has no file name", hint="Set the key with --key.")
    key_prefix = "" if not prefix else prefix.removesuffix("/") + "/"
    plan = [(path, checks.key(key_prefix + name)) for path, name in named_files]
    keys = [key for _, key in plan]
    if duplicates := [key for key in dict.fromkeys(keys) if keys.count(key) > 1][:1]:
        raise InvalidInput(
            f"two files would have the key {duplicates[0]!r}",
            hint="Store them in separate commands, each with its own --prefix.",
        )
    return plan


def _folder_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield all files of a folder in order, each with its path from the folder's own name on."""
    folder_name = Path(os.path.normpath(folder)).name
    for path in walk_files(folder):
        yield path, (Path(folder_name) / path.relative_to(folder)).as_posix()


def _upload_file(
    context: CommandContext, path: Path, key: str, *, replace: bool, content_type: str | None, bar: BarFactory
) -> Key:
    blobs = context.retrying_client.blobs
    if path == STDIN:
        with open_input(path) as stream:
            return blobs.put(stream, key, content_type=content_type, replace=replace, progress=bar(f"sending {key}"))
    resume_entry = ResumeEntry(
        path, server=context.server_address.url, tenant=context.server_address.headers.get("ingot-tenant", ""), key=key
    )
    with translate_os_errors(f"{path} cannot be read"):
        try:
            stored = blobs.put(
                path,
                key,
                content_type=content_type,
                replace=replace,
                hashing=bar(f"hashing {path}"),
                progress=bar(f"sending {path}"),
                unfinished=resume_entry.read(),
                begun=resume_entry.write,
            )
        except KeyExists:
            stored = blobs.read(key)
            if not matches_blob(path, stored.blob_id, stored.size):
                raise KeyExists(f"the key {key!r} exists already, with different content") from None
    resume_entry.delete()
    return stored


@server_command
def get(
    context: CommandContext,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key, or blob ID.", show_default=False)],
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Target file, or a folder that ends in /. - is stdout. Default: the last segment of the key.",
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite an existing file.")] = False,
) -> None:
    """Fetch a file and verify it.

    The download is written to a file next to the target whose name ends in .part, and renamed when it is complete. If
    it is interrupted, run the same command again to resume it, unless the content of the key has changed.
    """
    name = checks.key(key).rpartition("/")[2]
    context.client.me()
    if output == str(STDIN):
        if context.out.json:
            raise InvalidInput("--json and -o - cannot be combined", hint="Both write to stdout. Remove one of them.")
        with transfer_bars() as bar:
            for part in context.retrying_client.blobs.stream(key, progress=bar(f"fetching {key}")):
                context.out.bytes(part)
        return
    target = Path(name) if output is None else _download_target(output, name)
    if target.exists() and not replace:
        raise Conflict(f"{target} exists already", hint="Use --replace to overwrite it, or -o to choose another file.")
    try:
        with transfer_bars() as bar, translate_os_errors(f"{target} cannot be written"):
            if output is not None and output.endswith("/"):
                target.parent.mkdir(parents=True, exist_ok=True)
            context.retrying_client.blobs.get(key, target, progress=bar(f"fetching {key}"))
            size = target.stat().st_size
    except KeyboardInterrupt:
        context.out.message(STOPPED_MESSAGE)
        raise
    context.out.outcome({"key": key, "size": size, "file": str(target)}, f"Fetched {target}, {format_size(size)}.")


def _download_target(output: str, name: str) -> Path:
    """Return the target file of a download. `output` is a folder if it exists as one or ends in a slash."""
    path = Path(output)
    return path / name if output.endswith("/") or path.is_dir() else path
