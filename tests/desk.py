"""A job as handlers of documents see it, without a server: what they upload and keep is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ingot.jobs.files import CHECKPOINT_NAME_DEFAULT
from ingot.worker.attempt_files import FileContent, UploadedOutput
from ingot.worker.job import Stopped, WorkerJob


class Desk(WorkerJob):
    """A job with one input. `kept` outlives it, as it does an attempt; `stop_at` a page of its progress it stops."""

    def __init__(
        self,
        folder: Path,
        source: bytes,
        *,
        name: str = "sheet.pdf",
        payload: Any = None,
        kept: dict[str, bytes] | None = None,
        stop_at: int | None = None,
    ) -> None:
        self._folder, self._source, self._name = folder, source, name
        self._payload = payload
        self.kept = {} if kept is None else kept
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
        assert content_type is not None or not name.endswith((".md", ".txt")), "what is text says how it is written"
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
        self.kept[name] = source

    def saved(self, name: str = CHECKPOINT_NAME_DEFAULT) -> bytes | None:
        return self.kept.get(name)


PLUGGED = """
from ingot.worker.handlers.documents.ports import PageText

class Counting:
    version = "7"

    def pages(self, path, numbers):
        assert path.read_bytes().startswith(b"%PDF-")
        return [PageText(markdown=f"Text of page {number}.") for number in numbers]
"""


def plug_in(folder: Path, name: str = "counting") -> Path:
    """A folder as packages are installed in, with one that brings a converter of this name."""
    about = folder / f"ingot_{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ingot-{name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[ingot.converters]\n{name} = ingot_{name}:Counting\n")
    (folder / f"ingot_{name}.py").write_text(PLUGGED)
    return folder
