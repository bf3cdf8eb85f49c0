"""A job for tests of document handlers, without a server: uploads and checkpoints are kept in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ingot.jobs.files import CHECKPOINT_NAME_DEFAULT
from ingot.worker.attempt_files import FileContent, UploadedOutput
from ingot.worker.job import Stopped, WorkerJob


class FakeJob(WorkerJob):
    """A job with one input.

    `checkpoints` can be passed on to the job of the next attempt. The job stops after `stop_at` progress reports.
    """

    def __init__(
        self,
        folder: Path,
        source: bytes,
        *,
        name: str = "sheet.pdf",
        payload: Any = None,
        checkpoints: dict[str, bytes] | None = None,
        stop_at: int | None = None,
    ) -> None:
        self._folder, self._source, self._name = folder, source, name
        self._payload = payload
        self.checkpoints = {} if checkpoints is None else checkpoints
        self.uploads: dict[str, bytes] = {}
        self.stages: list[str] = []
        self._stop_at = stop_at

    @property
    def payload(self) -> Any:
        return self._payload

    @property
    def inputs(self) -> list[str]:
        return [self._name]

    def download(self, name: str | None = None) -> Path:
        path = self.workdir() / self._name
        path.write_bytes(self._source)
        return path

    def upload(self, source: FileContent, name: str, content_type: str | None = None) -> UploadedOutput:
        assert isinstance(source, (bytes, Path))
        assert content_type is not None or not name.endswith((".md", ".txt")), (
            "a text file needs a content type with its encoding"
        )
        self.uploads[name] = source if isinstance(source, bytes) else source.read_bytes()
        return UploadedOutput(name=name, blob_id="", size=len(self.uploads[name]))

    def workdir(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def progress(self, percent: float, stage: str = "") -> None:
        self.stages.append(stage)

    def check(self) -> None:
        if self._stop_at is not None and len(self.stages) >= self._stop_at:
            raise Stopped

    def save(self, source: FileContent, name: str = CHECKPOINT_NAME_DEFAULT) -> None:
        assert isinstance(source, bytes)
        self.checkpoints[name] = source

    def saved(self, name: str = CHECKPOINT_NAME_DEFAULT) -> bytes | None:
        return self.checkpoints.get(name)


CONVERTER_SOURCE = """
from ingot.worker.handlers.documents.ports import PageText

class Counting:
    version = "7"

    def pages(self, path, numbers):
        assert path.read_bytes().startswith(b"%PDF-")
        return [PageText(markdown=f"Text of page {number}.") for number in numbers]
"""


def install_converter(folder: Path, name: str = "counting") -> Path:
    """Install a package with a converter of this name into a folder, which is then added to `sys.path`."""
    metadata = folder / f"ingot_{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ingot-{name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[ingot.converters]\n{name} = ingot_{name}:Counting\n")
    (folder / f"ingot_{name}.py").write_text(CONVERTER_SOURCE)
    return folder
