"""`ingot jobs files`: what a job was given, and what it has made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from ingot.blobs.checks import file_name
from ingot.cli.context import CommandContext, server_command
from ingot.cli.local_files import is_downloaded, translate_os_errors
from ingot.cli.output import Column, format_size
from ingot.cli.progress import transfer_bars
from ingot.jobs.errors import JobNotFound
from ingot.jobs.files import JobFile
from ingot.kernel.ids import is_id

EXAMPLES: Final = ("ingot jobs files 0198c5a2-…", "ingot jobs files 0198c5a2-… --download results/")
COLUMNS: Final = (
    Column("KIND"),
    Column("NAME"),
    Column("SIZE", align_right=True),
    Column("TYPE", optional=True),
    Column("SINCE", optional=True),
    Column("BLOB", optional=True),
)


@server_command
def list_files(
    ask: CommandContext,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of a job.", show_default=False)],
    download: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Fetch the outputs into this folder.", file_okay=False),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --download: write over files that are there.")
    ] = False,
) -> None:
    """List the files of a job: inputs, outputs, logs that are long, and what its attempts saved."""
    if not is_id(id):
        raise JobNotFound(f"{id[:64]!r} is not the id of a job", hint="`ingot jobs list` has the ids, in full.")
    found = ask.client.files(id)
    if download is not None:
        found = [file for file in found if file.kind == "output"]
        _download_outputs(ask, found, download, replace=replace)
    if download is None or ask.out.json:
        ask.out.list(found, COLUMNS, _row)


def _download_outputs(ask: CommandContext, found: list[JobFile], folder: Path, *, replace: bool) -> None:
    """Fetch these files unless they are there, and write where they are. Raises `Conflict` before any is fetched."""
    targets = {file: folder / file_name(file.name, name="name") for file in found}
    with transfer_bars() as bar, translate_os_errors(f"{folder} cannot be written to"):
        missing = {
            file
            for file, target in targets.items()
            if not is_downloaded(target, file.blob_id, file.size, replace=replace)
        }
        folder.mkdir(parents=True, exist_ok=True)
        for file, target in targets.items():
            if file in missing:
                ask.retrying_client.blobs.save(file.blob_id, file.size, target, progress=bar(f"fetching {file.name}"))
            if not ask.out.json:
                ask.out.text(f"{target}\n")


def _row(file: JobFile) -> tuple[object, ...]:
    return file.kind, file.name, format_size(file.size), file.content_type, file.since, file.blob_id
