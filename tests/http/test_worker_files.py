"""Files in handlers and in the client, with a real server whose handlers run in `drain`."""

from __future__ import annotations

import asyncio
import io
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import NoneType
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from ingot import Worker, WorkerJob, testing
from ingot.blobs.errors import BlobNotFound
from ingot.blobs.model import INLINE_BYTES_MAX
from ingot.client.errors import DownloadDamaged, JobCanceled
from ingot.client.server_address import resolve_server_address
from ingot.jobs.attempt_logs import LOG_TAIL_CHARS_MAX
from ingot.jobs.checks import PAYLOAD_BLOB_BYTES_MAX
from ingot.jobs.errors import PayloadTooLarge
from ingot.jobs.files import CHECKPOINT_BYTES_MAX, FileNotFound
from ingot.jobs.model import JobStatus
from ingot.kernel.errors import InvalidInput
from ingot.settings import ClientSettings
from ingot.wire.files import FileUrl
from ingot.wiring.worker_runner import build_runner
from ingot.worker.attempt_files import AttemptFiles
from ingot.worker.file_requests import FileRequest, NoFiles
from ingot.worker.http_job_source import HttpFileClient, HttpJobSource
from ingot.worker.job import Stopped
from ingot.worker.runner import Runner
from tests.waiting import SECONDS_MAX

worker = Worker()
observed: dict[str, Any] = {}


@worker.handler("shout")
def shout(job: WorkerJob) -> Any:
    source = observed["source"] = job.download()
    assert source.name == job.inputs[0]
    return job.upload(source.read_text(encoding="utf-8").upper(), "loud.txt")


@worker.handler("shout.async")
async def shout_async(job: WorkerJob) -> Any:
    source = observed["source"] = await asyncio.to_thread(job.download)
    return await asyncio.to_thread(job.upload, source.read_bytes().upper(), "loud.txt")


@worker.handler("twice")
def twice(job: WorkerJob) -> None:
    for text in ("first", "second"):
        job.upload(text, "same.txt")
    if job.payload["attempts"] > job.attempt:
        job.upload("of a failed attempt", "other.txt")
        raise ValueError("once more")


@worker.handler("misuse")
def misuse(job: WorkerJob) -> None:
    """Make invalid calls, and record their errors."""
    existing_file = Path(job.payload)
    calls: dict[str, Callable[[], object]] = {
        "which": job.download,
        "unknown": lambda: job.download("c"),
        "path or text": lambda: job.upload(str(existing_file), "x"),
        "folder": lambda: job.upload(b"", "a/.."),
        "number": lambda: job.upload(7, "x"),  # type: ignore[arg-type]
        "missing": lambda: job.upload(existing_file.with_name("nowhere"), "x"),
    }
    for name, call in calls.items():
        try:
            call()
        except (InvalidInput, FileNotFound, OSError) as error:
            observed[name] = error


@worker.handler("sizes")
def sizes(job: WorkerJob) -> list[str]:
    """Store outputs of these sizes, and return the file requests that each needed."""
    requests: list[list[str]] = []

    def send(request: FileRequest) -> bytes:
        requests[-1].append(type(request).__name__)
        return job.file_client.send(request)

    with closing(AttemptFiles(job.data, send, job.workdir, job.check)) as files:
        for size in job.payload:
            requests.append([])
            files.upload(b"x" * size, f"{size}.bin")
    return [" ".join(names) for names in requests]


@worker.handler("talk")
def talk(job: WorkerJob) -> None:
    print("x" * job.payload)


@worker.handler("read")
def read(job: WorkerJob) -> int:
    return len(job.payload)


@worker.handler("pages")
def pages(job: WorkerJob) -> list[str]:
    """Read and save pages, and fail at one of them in the first attempt."""
    read: list[str] = []
    while (page := job.saved(f"{len(read)}")) is not None:
        read.append(page.decode())
    observed["resumed at"] = len(read)
    for number in range(len(read), job.payload["pages"]):
        if job.attempt == 1 and number == job.payload["breaks_at"]:
            raise ValueError("once more")
        read.append(f"page {number} of attempt {job.attempt}")
        job.save(read[-1], f"{number}")
    return read


@worker.handler("keep")
def keep(job: WorkerJob) -> None:
    """Save checkpoints from every type of source, and record what is read back."""
    source = Path(job.payload)
    observed["nothing"] = job.saved()
    for name, content in (("text", "ä text"), ("bytes", b"\x00\xff"), ("path", source), ("empty", b"")):
        job.save(content, name)
        observed[name] = job.saved(name)
    for content in (b"first", b"second", b"second"):
        job.save(content)
    observed["last"] = job.saved()
    observed["files"] = [(file.kind, file.name) for file in observed["client"].files(job.id)]


@worker.handler("keep.wrong")
async def keep_wrong(job: WorkerJob) -> None:
    with source_of(CHECKPOINT_BYTES_MAX + 1) as large:
        calls: dict[str, Callable[[], object]] = {
            "large": lambda: job.save(large),
            "folder": lambda: job.save(b"", "a/.."),
            "folder read": lambda: job.saved("a/.."),
            "path or text": lambda: job.save(job.payload),
        }
        for name, call in calls.items():
            with pytest.raises(InvalidInput) as caught:
                await asyncio.to_thread(call)
            observed[name] = caught.value
        for method in (lambda: job.save(b""), job.saved):
            with pytest.raises(InvalidInput, match="event loop"):
                method()


@contextmanager
def source_of(size: int) -> Iterator[Path]:
    """A sparse file of this size."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(size)
        yield Path(file.name)


@pytest.fixture(scope="module")
def ingot() -> Iterator[testing.LocalIngot]:
    with testing.start(worker) as local_ingot:
        yield local_ingot


@pytest.mark.parametrize("job_type", ["shout", "shout.async"])
def test_a_handler_reads_an_input_and_writes_an_output(
    ingot: testing.LocalIngot, tmp_path: Path, job_type: str
) -> None:
    (tmp_path / "quiet.txt").write_text("hello", encoding="utf-8")
    sent: list[tuple[int, int]] = []
    job = ingot.client.submit(
        job_type, file=tmp_path / "quiet.txt", progress=lambda done, total: sent.append((done, total))
    )
    assert (job.status, sent) == (JobStatus.QUEUED, [(5, 5)] if job_type == "shout" else sent)
    assert ingot.drain(raise_errors=True) == 1
    assert not observed["source"].parent.exists(), "the working folder is deleted after the attempt"
    assert job.refresh().outputs["loud.txt"].text() == "HELLO"
    assert job.result == {"name": "loud.txt", "blob_id": job.outputs["loud.txt"].read().blob_id, "size": 5}
    assert [(file.kind, file.name) for file in job.files()] == [("input", "quiet.txt"), ("output", "loud.txt")]
    assert job.outputs["loud.txt"].save(tmp_path) == tmp_path / "loud.txt"
    assert (tmp_path / "loud.txt").read_text(encoding="utf-8") == "HELLO"


def test_outputs_are_those_of_the_successful_attempt(ingot: testing.LocalIngot) -> None:
    job = ingot.client.submit("twice", {"attempts": 2})
    ingot.drain()
    assert [file for file in job.files() if file.kind == "output"] == [], "a failed attempt has no outputs"
    ingot.clock.advance(hours=1)
    ingot.drain()
    assert job.refresh().status is JobStatus.SUCCEEDED
    assert {file.name for file in job.files()} == {"same.txt"}
    assert job.outputs["same.txt"].text() == "second"


def test_an_attempt_resumes_from_the_checkpoints_of_the_last_one(ingot: testing.LocalIngot) -> None:
    job = ingot.client.submit("pages", {"pages": 5, "breaks_at": 3})
    ingot.drain()
    assert observed["resumed at"] == 0
    assert [(file.kind, file.name) for file in job.files()] == [("checkpoint", f"{n}") for n in range(3)]
    ingot.clock.advance(hours=1)
    ingot.drain(raise_errors=True)
    assert observed["resumed at"] == 3
    assert job.refresh().result == [f"page {n} of attempt {1 + (n >= 3)}" for n in range(5)]
    assert job.files() == [], "checkpoints are deleted after a success"


def test_checkpoints_of_every_source_are_read_back(ingot: testing.LocalIngot, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"of a file")
    observed["client"] = ingot.client
    ingot.client.submit("keep", str(tmp_path / "source"))
    ingot.drain(raise_errors=True)
    assert (observed["nothing"], observed["empty"], observed["last"]) == (None, b"", b"second")
    assert (observed["text"], observed["bytes"], observed["path"]) == ("ä text".encode(), b"\x00\xff", b"of a file")
    assert observed["files"] == [("checkpoint", name) for name in ("bytes", "checkpoint", "empty", "path", "text")]


def test_an_invalid_checkpoint_is_rejected(ingot: testing.LocalIngot, tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    ingot.client.submit("keep.wrong", str(tmp_path / "here"))
    ingot.drain(raise_errors=True)
    assert "several" in observed["large"].hint
    assert "'a/..'" in str(observed["folder"])
    assert "'a/..'" in str(observed["folder read"])
    assert "Path(" in observed["path or text"].hint


def test_a_checkpoint_with_wrong_bytes_is_rejected(ingot: testing.LocalIngot, tmp_path: Path) -> None:
    right, wrong = ingot.client.blobs.put(b"right"), ingot.client.blobs.put(b"wrong")
    url = ingot.client.blobs.url(wrong)
    response = FileUrl(url=url.url, expires_in=url.expires_in, blob_id=right, size=5)
    again = msgspec.structs.replace(ingot.client.submit("read", "x").data, attempts=2)
    files = AttemptFiles(again, lambda _: msgspec.json.encode(response), lambda: tmp_path, lambda: None)
    with pytest.raises(DownloadDamaged):
        files.saved("checkpoint")
    files.close()


def test_a_small_output_needs_one_file_request(ingot: testing.LocalIngot) -> None:
    small, large = INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1
    job = ingot.client.submit("sizes", [0, small, large])
    ingot.drain(raise_errors=True)
    assert job.refresh().result == [
        "UploadPlanRequest",
        "UploadPlanRequest",
        "UploadPlanRequest UploadCompletionRequest",
    ]
    assert {file.name: file.size for file in job.files()} == {f"{size}.bin": size for size in (0, small, large)}
    assert job.outputs[f"{small}.bin"].bytes() == b"x" * small


def test_a_small_input_is_read_without_its_url(ingot: testing.LocalIngot, tmp_path: Path) -> None:
    job = ingot.client.submit("shout", file={"a.txt": b"small"})
    response = FileUrl(
        url="http://127.0.0.1:1/nobody", expires_in=1, blob_id=job.data.inputs["a.txt"], size=5, data=b"small"
    )
    files = AttemptFiles(job.data, lambda _: msgspec.json.encode(response), lambda: tmp_path, lambda: None)
    assert files.download().read_bytes() == b"small"
    wrong = msgspec.structs.replace(response, data=b"wrong")
    files = AttemptFiles(job.data, lambda _: msgspec.json.encode(wrong), lambda: tmp_path, lambda: None)
    with pytest.raises(DownloadDamaged):
        files.download()


def test_invalid_file_calls_of_a_handler_are_rejected(ingot: testing.LocalIngot, tmp_path: Path) -> None:
    existing_file = tmp_path / "here"
    existing_file.touch()
    ingot.client.submit("misuse", str(existing_file), file={"a": b"1", "b": b"2"})
    ingot.drain(raise_errors=True)
    assert "2 inputs" in str(observed["which"])
    assert "Its inputs are a, b." in observed["unknown"].hint
    assert "Path(" in observed["path or text"].hint
    assert "'a/..'" in str(observed["folder"])
    assert "int" in str(observed["number"])
    assert isinstance(observed["missing"], FileNotFoundError)


def test_an_input_with_wrong_bytes_is_rejected(ingot: testing.LocalIngot, tmp_path: Path) -> None:
    right, wrong = ingot.client.blobs.put(b"right"), ingot.client.blobs.put(b"wrong")
    job = ingot.client.submit("shout", inputs={"a.txt": right})
    url = ingot.client.blobs.url(wrong)
    response = FileUrl(url=url.url, expires_in=url.expires_in, blob_id=right, size=5)
    files = AttemptFiles(job.data, lambda _: msgspec.json.encode(response), lambda: tmp_path, lambda: None)
    with pytest.raises(DownloadDamaged):
        files.download("a.txt")
    files.close()
    assert not (tmp_path / "inputs" / "a.txt").exists()


def test_a_file_that_shrinks_during_the_upload_cancels_its_job(ingot: testing.LocalIngot) -> None:
    class Shrinking(io.BytesIO):
        reads = 0

        def read(self, size: int | None = -1, /) -> bytes:
            self.reads += 1
            return super().read(size)[: None if self.reads == 1 else -1]

    with pytest.raises(InvalidInput, match="shorter"):
        ingot.client.submit("shout", file={"a.txt": Shrinking(b"it shrinks" * INLINE_BYTES_MAX)}, tags=["shrinks"])
    (job,) = ingot.client.jobs(tag="shrinks")
    assert job.status is JobStatus.CANCELED
    assert "a.txt" in (job.error or "")


def test_a_job_whose_upload_failed_is_resumed_with_its_idempotency_key(ingot: testing.LocalIngot) -> None:
    class Breaking(io.BytesIO):
        reads = 0

        def read(self, size: int | None = -1, /) -> bytes:
            self.reads += 1
            if self.reads == 2:
                raise OSError("the disk is gone")
            return super().read(size)

    with pytest.raises(OSError, match="the disk is gone"):
        ingot.client.submit(
            "shout", file={"a.txt": Breaking(b"it breaks" * INLINE_BYTES_MAX)}, idempotency_key="breaks"
        )
    job = ingot.client.submit("shout", file={"a.txt": b"it breaks" * INLINE_BYTES_MAX}, idempotency_key="breaks")
    assert job.status is JobStatus.QUEUED
    ingot.drain(raise_errors=True)
    assert job.refresh().outputs["loud.txt"].text() == "IT BREAKS" * INLINE_BYTES_MAX


def test_files_without_a_valid_unique_name_are_rejected(ingot: testing.LocalIngot) -> None:
    with pytest.raises(InvalidInput, match="no name"):
        ingot.client.submit("shout", file=b"hello")
    with pytest.raises(InvalidInput, match="path"):
        ingot.client.submit("shout", file={"a/b.txt": b"hello"})
    with pytest.raises(InvalidInput, match="same name"):
        ingot.client.submit("shout", file={"a": b"hello"}, inputs={"a": "0" * 64})
    with pytest.raises(BlobNotFound):
        ingot.client.submit("shout", inputs={"a": "0" * 64})
    with pytest.raises(InvalidInput, match="transaction"):
        ingot.client.submit("shout", file={"a": b"hello"}, connection=object())  # type: ignore[call-overload]


def test_a_payload_just_over_the_limit_is_sent_as_a_blob(ingot: testing.LocalIngot) -> None:
    jobs = ingot.client.submit_many("read", ["x" * (64 * 1024 - 2), "x" * (64 * 1024 - 1)])
    assert [job.data.payload_blob is None for job in jobs] == [True, False]
    ingot.drain(raise_errors=True)
    assert [job.refresh().result for job in jobs] == [64 * 1024 - 2, 64 * 1024 - 1]
    assert jobs[1].payload == "x" * (64 * 1024 - 1)
    with pytest.raises(PayloadTooLarge):
        ingot.client.submit("read", "x" * PAYLOAD_BLOB_BYTES_MAX)


async def test_the_asynchronous_client_fetches_a_large_payload_explicitly() -> None:
    async with testing.start_async(worker) as ingot:
        submitted = await ingot.client.submit("read", "x" * 100_000)
        assert len(submitted.payload) == 100_000, "the submitted job has its payload"
        job = await ingot.client.job(submitted.id)
        with pytest.raises(InvalidInput, match="a blob"):
            _ = job.payload
        assert len(await job.fetch_payload()) == len(job.payload) == 100_000
        await ingot.drain()
        assert (await job.refresh()).result == 100_000


def test_a_job_with_a_payload_that_is_not_json_is_not_retried(ingot: testing.LocalIngot) -> None:
    job = ingot.client.submit("read", payload_blob=ingot.client.blobs.put(b"{no json"))
    ingot.drain()
    assert job.refresh().status is JobStatus.DEAD
    assert "the payload cannot be read" in (job.error or "")


def test_only_a_long_log_is_stored_as_a_file(ingot: testing.LocalIngot) -> None:
    short, long = ingot.client.submit_many("talk", [LOG_TAIL_CHARS_MAX - 1, LOG_TAIL_CHARS_MAX])
    ingot.drain(raise_errors=True)
    assert ([file.kind for file in short.files()], [file.kind for file in long.files()]) == ([], ["log"])
    assert [len(short.log()), len(long.log())] == [LOG_TAIL_CHARS_MAX, LOG_TAIL_CHARS_MAX + 1]


# -- cancellation and workers without a server --------------------------------------------------------------


async def test_a_cancel_stops_a_running_upload() -> None:
    reached = threading.Event()
    errors: list[BaseException] = []
    reads: list[int] = []
    pausing = Worker()

    class PausingFile(io.BytesIO):
        def __init__(self, job: WorkerJob) -> None:
            super().__init__(bytes(4 * 1024 * 1024))
            self._job = job

        def read(self, size: int | None = -1, /) -> bytes:
            reads.append(self.tell())
            if len(reads) == 5:  # The first four computed digests.
                reached.set()
                assert self._job.wait(SECONDS_MAX)
            return super().read(size)

    @pausing.handler("send")
    def send(job: WorkerJob) -> None:
        try:
            job.upload(PausingFile(job), "zeros")
        except Stopped as error:
            errors.append(error)
            raise

    async with testing.start_async(pausing) as ingot:
        job = await ingot.client.submit("send")
        draining = asyncio.create_task(ingot.drain())
        assert await asyncio.to_thread(reached.wait, SECONDS_MAX)
        await job.cancel()
        with pytest.raises(JobCanceled):
            await job.wait("40s")
        await draining
        assert (len(errors), len(reads), await job.files()) == (1, 5, [])


async def test_a_worker_without_a_file_client_raises_no_files() -> None:
    alone = Worker()
    raised = asyncio.get_running_loop().create_future()

    @alone.handler("send")
    async def send(job: WorkerJob) -> None:
        try:
            await asyncio.to_thread(job.upload, b"x", "x")
        except NoFiles as error:
            raised.set_result(error)

    async with testing.start_async() as ingot:
        await ingot.client.submit("send")
        address = resolve_server_address(ingot.url, token=ingot.token, tenant="default")
        runner, stopping = Runner(alone, lambda: HttpJobSource(address, "alone")), asyncio.Event()
        running = asyncio.create_task(runner.run(stopping))
        error = await asyncio.wait_for(raised, 30)
        stopping.set()
        await running
    assert "INGOT_SERVER_URL" in error.hint


@pytest.mark.parametrize(
    ("server", "file_client"),
    [
        ({"server_url": "http://127.0.0.1:9", "token": "ingot_x"}, HttpFileClient),
        ({"server_url": "http://127.0.0.1:9"}, NoneType),
        ({"token": "ingot_x"}, NoneType),
        ({}, NoneType),
    ],
)
def test_a_worker_on_postgresql_uses_the_server_for_files_if_it_has_a_url_and_a_token(
    server: dict[str, str], file_client: type, tmp_path: Path
) -> None:
    settings = ClientSettings(database_url="postgresql://press@127.0.0.1/ingot", data=tmp_path, **server)  # type: ignore[arg-type]
    with capture_logs() as entries:
        assert isinstance(build_runner(worker, settings).file_client, file_client)
    logged = [(entry["event"], entry["log_level"]) for entry in entries]
    assert logged == ([] if file_client is HttpFileClient else [("jobs_with_files_not_claimed", "warning")])
