"""`ingot jobs files`: list the files of a job and fetch its outputs."""

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
    context: CommandContext,
    id: Annotated[str, typer.Argument(metavar="ID", help="Job ID.", show_default=False)],
    download: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder to fetch the outputs into.", file_okay=False),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --download: overwrite files that exist already.")
    ] = False,
) -> None:
    """List the files of a job: inputs, outputs, long logs and checkpoints.

    With --download, fetch the outputs that are missing in a folder and print their paths.
    """
    if not is_id(id):
        raise JobNotFound(f"{id[:64]!r} is not a job ID", hint="Use a complete ID. `ingot jobs list` shows them.")
    files = context.client.files(id)
    if download is not None:
        files = [file for file in files if file.kind == "output"]
        _download_outputs(context, files, download, replace=replace)
    if download is None or context.out.json:
        context.out.list(files, COLUMNS, _row)


def _download_outputs(context: CommandContext, files: list[JobFile], folder: Path, *, replace: bool) -> None:
    """Fetch the files that are missing and print the paths of all. Raises `Conflict` before anything is fetched."""
    targets = {file: folder / file_name(file.name, name="name") for file in files}
    with transfer_bars() as bar, translate_os_errors(f"{folder} cannot be written to"):
        missing = {
            file
            for file, target in targets.items()
            if not is_downloaded(target, file.blob_id, file.size, replace=replace)
        }
        folder.mkdir(parents=True, exist_ok=True)
        for file, target in targets.items():
            if file in missing:
                context.retrying_client.blobs.save(
                    file.blob_id, file.size, target, progress=bar(f"fetching {file.name}")
                )
            if not context.out.json:
                context.out.text(f"{target}\n")


def _row(file: JobFile) -> tuple[object, ...]:
    return file.kind, file.name, format_size(file.size), file.content_type, file.since, file.blob_id
