"""Files in handlers and in the client, as users' tests see them: the real server, handlers run when told."""

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
seen: dict[str, Any] = {}


@worker.handler("shout")
def shout(job: WorkerJob) -> Any:
    source = seen["source"] = job.download()
    assert source.name == job.inputs[0]
    return job.upload(source.read_text(encoding="utf-8").upper(), "loud.txt")


@worker.handler("shout.async")
async def shout_async(job: WorkerJob) -> Any:
    source = seen["source"] = await asyncio.to_thread(job.download)
    return await asyncio.to_thread(job.upload, source.read_bytes().upper(), "loud.txt")


@worker.handler("twice")
def twice(job: WorkerJob) -> None:
    for text in ("first", "second"):
        job.upload(text, "same.txt")
    if job.payload["attempts"] > job.attempt:
        job.upload("of a run that failed", "other.txt")
        raise ValueError("once more")


@worker.handler("ask")
def ask(job: WorkerJob) -> None:
    """Do what cannot be done, and remember why not."""
    here = Path(job.payload)
    calls: dict[str, Callable[[], object]] = {
        "which": job.download,
        "unknown": lambda: job.download("c"),
        "path or text": lambda: job.upload(str(here), "x"),
        "folder": lambda: job.upload(b"", "a/.."),
        "number": lambda: job.upload(7, "x"),  # type: ignore[arg-type]
        "missing": lambda: job.upload(here.with_name("nowhere"), "x"),
    }
    for name, call in calls.items():
        try:
            call()
        except (InvalidInput, FileNotFound, OSError) as error:
            seen[name] = error


@worker.handler("sizes")
def sizes(job: WorkerJob) -> list[str]:
    """Store outputs of these sizes, and answer what was asked for each."""
    asked: list[list[str]] = []

    def ask(one: FileRequest) -> bytes:
        asked[-1].append(type(one).__name__)
        return job.file_client.send(one)

    with closing(AttemptFiles(job.data, ask, job.workdir, job.check)) as files:
        for size in job.payload:
            asked.append([])
            files.upload(b"x" * size, f"{size}.bin")
    return [" ".join(names) for names in asked]


@worker.handler("talk")
def talk(job: WorkerJob) -> None:
    print("x" * job.payload)


@worker.handler("read")
def read(job: WorkerJob) -> int:
    return len(job.payload)


@worker.handler("pages")
def pages(job: WorkerJob) -> list[str]:
    """Read pages, each of which is saved, and break at one of them in the first attempt."""
    read: list[str] = []
    while (page := job.saved(f"{len(read)}")) is not None:
        read.append(page.decode())
    seen["went on at"] = len(read)
    for number in range(len(read), job.payload["pages"]):
        if job.attempt == 1 and number == job.payload["breaks_at"]:
            raise ValueError("once more")
        read.append(f"page {number} of attempt {job.attempt}")
        job.save(read[-1], f"{number}")
    return read


@worker.handler("keep")
def keep(job: WorkerJob) -> None:
    """Save in every way there is, and remember what came back."""
    source = Path(job.payload)
    seen["nothing"] = job.saved()
    for name, what in (("text", "ä text"), ("bytes", b"\x00\xff"), ("path", source), ("empty", b"")):
        job.save(what, name)
        seen[name] = job.saved(name)
    for what in (b"first", b"second", b"second"):
        job.save(what)
    seen["last"] = job.saved()
    seen["there"] = [(file.kind, file.name) for file in seen["client"].files(job.id)]


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
            seen[name] = caught.value
        for method in (lambda: job.save(b""), job.saved):
            with pytest.raises(InvalidInput, match="event loop"):
                method()


@contextmanager
def source_of(size: int) -> Iterator[Path]:
    """A file of so many zeros, which takes no room."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(size)
        yield Path(file.name)


@pytest.fixture(scope="module")
def ingot() -> Iterator[testing.LocalIngot]:
    with testing.start(worker) as one:
        yield one


@pytest.mark.parametrize("kind", ["shout", "shout.async"])
def test_a_file_goes_in_and_another_comes_out(ingot: testing.LocalIngot, tmp_path: Path, kind: str) -> None:
    (tmp_path / "quiet.txt").write_text("hello", encoding="utf-8")
    sent: list[tuple[int, int]] = []
    job = ingot.client.submit(kind, file=tmp_path / "quiet.txt", progress=lambda done, of: sent.append((done, of)))
    assert (job.status, sent) == (JobStatus.QUEUED, [(5, 5)] if kind == "shout" else sent)
    assert ingot.drain(raise_errors=True) == 1
    assert not seen["source"].parent.exists(), "what was fetched goes with the attempt"
    assert job.refresh().outputs["loud.txt"].text() == "HELLO"
    assert job.result == {"name": "loud.txt", "blob_id": job.outputs["loud.txt"].read().blob_id, "size": 5}
    assert [(file.kind, file.name) for file in job.files()] == [("input", "quiet.txt"), ("output", "loud.txt")]
    assert job.outputs["loud.txt"].save(tmp_path) == tmp_path / "loud.txt"
    assert (tmp_path / "loud.txt").read_text(encoding="utf-8") == "HELLO"


def test_the_outputs_are_those_of_the_run_that_succeeded(ingot: testing.LocalIngot) -> None:
    job = ingot.client.submit("twice", {"attempts": 2})
    ingot.drain()
    assert [file for file in job.files() if file.kind == "output"] == [], "none of an attempt that failed"
    ingot.clock.advance(hours=1)
    ingot.drain()
    assert job.refresh().status is JobStatus.SUCCEEDED
    assert {file.name for file in job.files()} == {"same.txt"}
    assert job.outputs["same.txt"].text() == "second"


def test_an_attempt_goes_on_where_the_last_one_stopped(ingot: testing.LocalIngot) -> None:
    job = ingot.client.submit("pages", {"pages": 5, "breaks_at": 3})
    ingot.drain()
    assert seen["went on at"] == 0
    assert [(file.kind, file.name) for file in job.files()] == [("checkpoint", f"{n}") for n in range(3)]
    ingot.clock.advance(hours=1)
    ingot.drain(raise_errors=True)
    assert seen["went on at"] == 3
    assert job.refresh().result == [f"page {n} of attempt {1 + (n >= 3)}" for n in range(5)]
    assert job.files() == [], "a success leaves none of them"


def test_what_is_saved_comes_back_whatever_it_was(ingot: testing.LocalIngot, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"of a file")
    seen["client"] = ingot.client
    ingot.client.submit("keep", str(tmp_path / "source"))
    ingot.drain(raise_errors=True)
    assert (seen["nothing"], seen["empty"], seen["last"]) == (None, b"", b"second")
    assert (seen["text"], seen["bytes"], seen["path"]) == ("ä text".encode(), b"\x00\xff", b"of a file")
    assert seen["there"] == [("checkpoint", name) for name in ("bytes", "checkpoint", "empty", "path", "text")]


def test_what_cannot_be_saved_says_why(ingot: testing.LocalIngot, tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    ingot.client.submit("keep.wrong", str(tmp_path / "here"))
    ingot.drain(raise_errors=True)
    assert "several" in seen["large"].hint
    assert "'a/..'" in str(seen["folder"])
    assert "'a/..'" in str(seen["folder read"])
    assert "Path(" in seen["path or text"].hint


def test_other_bytes_than_those_that_were_saved_are_not_handed_out(ingot: testing.LocalIngot, tmp_path: Path) -> None:
    right, wrong = ingot.client.blobs.put(b"right"), ingot.client.blobs.put(b"wrong")
    url = ingot.client.blobs.url(wrong)
    told = FileUrl(url=url.url, expires_in=url.expires_in, blob_id=right, size=5)
    again = msgspec.structs.replace(ingot.client.submit("read", "x").data, attempts=2)
    files = AttemptFiles(again, lambda _: msgspec.json.encode(told), lambda: tmp_path, lambda: None)
    with pytest.raises(DownloadDamaged):
        files.saved("checkpoint")
    files.close()


def test_a_small_output_takes_one_question(ingot: testing.LocalIngot) -> None:
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


def test_a_small_input_takes_no_address(ingot: testing.LocalIngot, tmp_path: Path) -> None:
    job = ingot.client.submit("shout", file={"a.txt": b"small"})
    told = FileUrl(
        url="http://127.0.0.1:1/nobody", expires_in=1, blob_id=job.data.inputs["a.txt"], size=5, data=b"small"
    )
    files = AttemptFiles(job.data, lambda _: msgspec.json.encode(told), lambda: tmp_path, lambda: None)
    assert files.download().read_bytes() == b"small"
    wrong = msgspec.structs.replace(told, data=b"wrong")
    files = AttemptFiles(job.data, lambda _: msgspec.json.encode(wrong), lambda: tmp_path, lambda: None)
    with pytest.raises(DownloadDamaged):
        files.download()


def test_what_cannot_be_moved_says_why(ingot: testing.LocalIngot, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.touch()
    ingot.client.submit("ask", str(here), file={"a": b"1", "b": b"2"})
    ingot.drain(raise_errors=True)
    assert "2 inputs" in str(seen["which"])
    assert "Its inputs are a, b." in seen["unknown"].hint
    assert "Path(" in seen["path or text"].hint
    assert "'a/..'" in str(seen["folder"])
    assert "int" in str(seen["number"])
    assert isinstance(seen["missing"], FileNotFoundError)


def test_other_bytes_than_those_of_the_input_are_not_handed_out(ingot: testing.LocalIngot, tmp_path: Path) -> None:
    right, wrong = ingot.client.blobs.put(b"right"), ingot.client.blobs.put(b"wrong")
    job = ingot.client.submit("shout", inputs={"a.txt": right})
    url = ingot.client.blobs.url(wrong)
    told = FileUrl(url=url.url, expires_in=url.expires_in, blob_id=right, size=5)
    files = AttemptFiles(job.data, lambda _: msgspec.json.encode(told), lambda: tmp_path, lambda: None)
    with pytest.raises(DownloadDamaged):
        files.download("a.txt")
    files.close()
    assert not (tmp_path / "inputs" / "a.txt").exists()


def test_what_becomes_shorter_while_it_is_sent_cancels_the_job(ingot: testing.LocalIngot) -> None:
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


def test_a_job_whose_files_broke_off_is_asked_for_again_by_its_key(ingot: testing.LocalIngot) -> None:
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


def test_files_without_a_name_or_with_two_are_refused(ingot: testing.LocalIngot) -> None:
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


def test_a_payload_of_just_over_the_limit_travels_as_a_blob(ingot: testing.LocalIngot) -> None:
    jobs = ingot.client.submit_many("read", ["x" * (64 * 1024 - 2), "x" * (64 * 1024 - 1)])
    assert [job.data.payload_blob is None for job in jobs] == [True, False]
    ingot.drain(raise_errors=True)
    assert [job.refresh().result for job in jobs] == [64 * 1024 - 2, 64 * 1024 - 1]
    assert jobs[1].payload == "x" * (64 * 1024 - 1)
    with pytest.raises(PayloadTooLarge):
        ingot.client.submit("read", "x" * PAYLOAD_BLOB_BYTES_MAX)


async def test_who_awaits_says_when_a_large_payload_is_fetched() -> None:
    async with testing.start_async(worker) as ingot:
        made = await ingot.client.submit("read", "x" * 100_000)
        assert len(made.payload) == 100_000, "who made it has it"
        job = await ingot.client.job(made.id)
        with pytest.raises(InvalidInput, match="a blob"):
            _ = job.payload
        assert len(await job.fetch_payload()) == len(job.payload) == 100_000
        await ingot.drain()
        assert (await job.refresh()).result == 100_000


def test_a_payload_that_is_no_json_is_not_tried_again(ingot: testing.LocalIngot) -> None:
    job = ingot.client.submit("read", payload_blob=ingot.client.blobs.put(b"{no json"))
    ingot.drain()
    assert job.refresh().status is JobStatus.DEAD
    assert "the payload cannot be read" in (job.error or "")


def test_only_a_long_log_is_a_file(ingot: testing.LocalIngot) -> None:
    short, long = ingot.client.submit_many("talk", [LOG_TAIL_CHARS_MAX - 1, LOG_TAIL_CHARS_MAX])
    ingot.drain(raise_errors=True)
    assert ([file.kind for file in short.files()], [file.kind for file in long.files()]) == ([], ["log"])
    assert [len(short.log()), len(long.log())] == [LOG_TAIL_CHARS_MAX, LOG_TAIL_CHARS_MAX + 1]


# -- workers that are told something meanwhile --------------------------------------------------------------


async def test_a_cancel_stops_what_is_on_its_way() -> None:
    reached = threading.Event()
    why: list[BaseException] = []
    reads: list[int] = []
    halting = Worker()

    class Halting(io.BytesIO):
        def __init__(self, job: WorkerJob) -> None:
            super().__init__(bytes(4 * 1024 * 1024))
            self._job = job

        def read(self, size: int | None = -1, /) -> bytes:
            reads.append(self.tell())
            if len(reads) == 5:  # The fourth was the last to be hashed.
                reached.set()
                assert self._job.wait(SECONDS_MAX)
            return super().read(size)

    @halting.handler("send")
    def send(job: WorkerJob) -> None:
        try:
            job.upload(Halting(job), "zeros")
        except Stopped as error:
            why.append(error)
            raise

    async with testing.start_async(halting) as ingot:
        job = await ingot.client.submit("send")
        draining = asyncio.create_task(ingot.drain())
        assert await asyncio.to_thread(reached.wait, SECONDS_MAX)
        await job.cancel()
        with pytest.raises(JobCanceled):
            await job.wait("40s")
        await draining
        assert (len(why), len(reads), await job.files()) == (1, 5, [])


async def test_a_worker_without_a_server_says_how_to_get_files() -> None:
    alone = Worker()
    told = asyncio.get_running_loop().create_future()

    @alone.handler("send")
    async def send(job: WorkerJob) -> None:
        try:
            await asyncio.to_thread(job.upload, b"x", "x")
        except NoFiles as error:
            told.set_result(error)

    async with testing.start_async() as ingot:
        await ingot.client.submit("send")
        place = resolve_server_address(ingot.url, token=ingot.token, tenant="default")
        runner, stopping = Runner(alone, lambda: HttpJobSource(place, "alone")), asyncio.Event()
        running = asyncio.create_task(runner.run(stopping))
        error = await asyncio.wait_for(told, 30)
        stopping.set()
        await running
    assert "INGOT_SERVER_URL" in error.hint


@pytest.mark.parametrize(("token", "desk"), [(None, NoneType), ("ingot_x", HttpFileClient)])
def test_straight_on_postgresql_files_go_by_way_of_the_server(token: str | None, desk: type) -> None:
    settings = ClientSettings(database_url="postgresql://press@127.0.0.1/ingot", token=token)
    assert isinstance(build_runner(worker, settings).file_client, desk)
