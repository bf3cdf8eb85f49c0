"""Files of jobs: what an order is given, what attempts have made and saved, and how they go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from ingot.blobs.errors import BlobNotFound, UploadEnded
from ingot.blobs.model import BlobEventData, Content
from ingot.engines.jobs import has_files
from ingot.engines.sqlite.blob_batch import BlobBatch, TenantName
from ingot.engines.sqlite.blob_reads import find_content
from ingot.engines.sqlite.blob_rows import OutputRow, ProducedFileRow, StorageUsage
from ingot.engines.sqlite.job_rows import JobState
from ingot.engines.sqlite.leases import AttemptCall, find_leased_job
from ingot.engines.sqlite.quota import charge, refund_usage
from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.events.audit import PROCESS
from ingot.jobs.errors import JobNotFound
from ingot.jobs.files import (
    PAYLOAD,
    READABLE_KINDS,
    FileNotFound,
    FindRunningJob,
    JobFile,
    ListJobFiles,
    OpenJobFile,
    OutputMissing,
    RunningJob,
)
from ingot.jobs.model import NewJob
from ingot.kernel.errors import IngotError

LeasedAttempt = tuple[JobState, int]  # A job, and the fence it runs under.
Row = tuple[object, ...]


class ReferencedBlob(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A blob that a tenant holds, by its place among those that were asked for, and what it is said to be there."""

    index: int
    number: int
    size: int
    content_type: str


class OrderFiles:
    """The files that some orders name, as they are taken one after the other before any of them is written."""

    def __init__(self, tx: Transaction, orders: Sequence[NewJob]) -> None:
        self._tx = tx
        self._blobs: dict[tuple[str, str], ReferencedBlob] = {}
        self._uploads: set[TenantName] = set()
        orders = [order for order in orders if order.tenant in tx.writer_state.tenants and has_files(order)]
        self.has_any = bool(orders)
        asked = list({(order.tenant, blob): None for order in orders for _, _, blob in named_files(order)})
        if asked:
            digests = as_json([(tx.writer_state.tenants[tenant], blob) for tenant, blob in asked])
            for held in tx.read(list[ReferencedBlob], SQL.referenced_blobs, digests):
                self._blobs[asked[held.index]] = held
        if pairs := [(order.tenant, upload.id) for order in orders for upload in order.uploads]:
            shelf = BlobBatch(tx)
            shelf.load_uploads(pairs)
            self._uploads.update(shelf.uploads)

    def charge(self, orders: Iterable[NewJob]) -> Callable[[], None]:
        """Count all that these orders name, and answer how to undo that.

        Raises `BlobNotFound` or `QuotaExceeded`, and has counted nothing then.
        """
        staged, uploads = self._tx.effects, self._uploads.copy()
        usage, events = staged.usage.copy(), {tenant: len(told) for tenant, told in staged.events.items()}

        def undo() -> None:
            staged.usage, self._uploads = usage, uploads
            for tenant, told in staged.events.items():
                del told[events.get(tenant, 0) :]

        try:
            for order in orders:
                self._charge_order(order)
        except IngotError:
            undo()
            raise
        return undo

    def _charge_order(self, order: NewJob) -> None:
        size = 0
        for _, _, blob in named_files(order):
            held = self._blobs.get((order.tenant, blob))
            if held is None:
                raise BlobNotFound(f"there is no blob {blob} here")
            size += held.size
        if size:
            owner = order.created_by or PROCESS
            charge(self._tx, order.tenant, owner, StorageUsage(bytes=size), quota=order.owner_quota)
        for upload in order.uploads:
            if (order.tenant, upload.id) in self._uploads:
                raise UploadEnded(f"there is an upload {upload.id} already")
            self._uploads.add((order.tenant, upload.id))
            change = StorageUsage(reserved=upload.reserve)
            charge(self._tx, order.tenant, upload.owner, change, quota=upload.owner_quota)

    def file_rows(self, order: NewJob, job: int) -> list[Row]:
        """The rows of the files of a job."""
        tenant, owner = self._tx.writer_state.tenants[order.tenant], order.created_by or PROCESS
        rows: list[Row] = []
        for kind, name, blob in named_files(order):
            held = self._blobs[order.tenant, blob]
            rows.append((tenant, job, kind, name, held.number, held.content_type, owner, None, self._tx.now))
        return rows


def named_files(order: NewJob) -> list[tuple[str, str, str]]:
    """The kinds, the names and the blobs of what an order is given."""
    files = [("input", name, blob) for name, blob in order.inputs.items()]
    if order.payload_blob is not None:
        files.append(("payload", PAYLOAD, order.payload_blob))
    return files


class AttemptOutputs:
    """The outputs that some attempts have uploaded, and those of earlier runs of their jobs with their checkpoints."""

    def __init__(self, tx: Transaction, attempts: Sequence[LeasedAttempt]) -> None:
        self._tx = tx
        self._outputs: dict[int, dict[str, OutputRow]] = {}  # Of two with one name, the later.
        self._earlier_files: dict[int, list[ProducedFileRow]] = {}
        self._succeeded: list[JobState] = []
        if attempts:
            asked = as_json([(state.number, state.id, fence) for state, fence in attempts])
            for row in tx.read(list[OutputRow], SQL.outputs_of_attempts, asked):
                self._outputs.setdefault(row.job, {})[row.name] = row
            jobs = as_json([state.number for state, _ in attempts])
            for old in tx.read(list[ProducedFileRow], SQL.produced_files, jobs):
                self._earlier_files.setdefault(old.job, []).append(old)

    def check_uploaded(self, state: JobState, names: Iterable[str]) -> None:
        """Raise `OutputMissing` unless the attempt has uploaded all of these."""
        made = self._outputs.get(state.number, {})
        for name in names:
            if name not in made:
                raise OutputMissing(f"the output {name[:64]!r} was not uploaded under this fence")

    def add_succeeded(self, state: JobState) -> None:
        """The attempt has succeeded: its outputs are the job's, and nobody goes on from its checkpoints."""
        if state.number in self._outputs or state.number in self._earlier_files:
            self._succeeded.append(state)

    def write(self) -> None:
        """Write what was taken. Other uploads of these attempts are swept."""
        if not self._succeeded:
            return
        tx, shelf = self._tx, BlobBatch(self._tx)
        tx.execute(SQL.remove_produced_files, as_json([state.number for state in self._succeeded]))
        files: list[Row] = []
        moved: list[tuple[int, str]] = []
        for state in self._succeeded:
            for old in self._earlier_files.get(state.number, ()):
                refund_usage(tx, state.tenant, old.owner, StorageUsage(bytes=old.size))
                shelf.add_tombstone(old.blob)
            for one in self._outputs.get(state.number, {}).values():
                described = one.content_type, one.owner, one.fence, tx.now
                files.append((one.tenant, one.job, "output", one.name, one.blob, *described))
                moved.append((one.tenant, one.id))
                tx.effects.events[state.tenant].append(("blob.stored", _blob_event_data(state, one)))
        tx.write_rows(SQL.put_job_files, files)
        if moved:
            tx.execute(SQL.remove_uploads, as_json(moved))
        shelf.write()


def _blob_event_data(state: JobState, output: OutputRow) -> BlobEventData:
    return BlobEventData(
        blob_id=output.blob_id,
        size=output.size,
        content_type=output.content_type,
        job_id=state.id,
        name=output.name,
    )


def drop_uploads(tx: Transaction, pairs: Sequence[TenantName], why: str) -> dict[str, str]:
    """Drop uploads; answers which jobs will not get an input therefore, by id, and why."""
    shelf = BlobBatch(tx)
    shelf.load_uploads(pairs)
    for upload in list(shelf.uploads.values()):
        shelf.drop_upload(upload, why)
    shelf.write()
    return shelf.jobs_without_input


def drop_input_uploads(tx: Transaction, jobs: Sequence[JobState]) -> None:
    """These jobs wait for inputs no more: what was on its way is dropped."""
    if jobs and (pairs := tx.read(list[TenantName], SQL.input_uploads_of_jobs, as_json([state.id for state in jobs]))):
        drop_uploads(tx, pairs, "is not needed")


def drop_job_files(tx: Transaction, jobs: Sequence[int]) -> None:
    """The files of these jobs go with them: their blobs get tombstones, and what they counted for is given back."""
    numbers = as_json(jobs)
    files = tx.read(list[tuple[str, str, int, int]], SQL.files_of_jobs, numbers)
    if not files:
        return
    for tenant, owner, _, size in files:
        refund_usage(tx, tenant, owner, StorageUsage(bytes=size))
    tx.write_rows(SQL.put_tombstones, [(blob, tx.now) for blob in {blob: None for _, _, blob, _ in files}])
    tx.execute(SQL.remove_job_files, numbers)


def list_files(reader: Reader, command: ListJobFiles) -> list[JobFile]:
    """Read the files of a job. Raises `JobNotFound`."""
    with reader.snapshot():  # One for the job and its files.
        number = reader.execute(SQL.number_of_job, command.job_id, command.tenant).get
        files = None if number is None else reader.read(list[JobFile], SQL.files_of_job, number)
    if files is None:
        raise JobNotFound(f"there is no job {command.job_id[:64]!r} in this tenant")
    return files


def find_running_job(reader: Reader, command: FindRunningJob) -> RunningJob:
    """Find the job that runs under a fence. Raises `JobNotFound` or `LeaseLost`."""
    state = _running_state(reader, command)
    return RunningJob(job_id=state.id, tenant=state.tenant, type=state.type, attempt=state.attempts)


def open_file(reader: Reader, command: OpenJobFile) -> tuple[JobFile, Content]:
    """Find a file for the attempt under a fence. Raises `JobNotFound`, `LeaseLost` or `FileNotFound`."""
    kind, name = command.kind, command.name
    with reader.snapshot():  # One for the attempt, the file and its bytes.
        state = _running_state(reader, command)
        file = reader.find(JobFile, SQL.file_of_job, state.number, kind, name) if kind in READABLE_KINDS else None
        content = None if file is None else find_content(reader, bytes.fromhex(file.blob_id))
    if file is None or content is None:
        raise FileNotFound(f"the job has no {kind} {name[:64]!r}")
    return file, content


def _running_state(reader: Reader, call: AttemptCall) -> JobState:
    states = reader.read(list[JobState], SQL.states_by_id, as_json([call.job_id]))
    return find_leased_job({state.id: state for state in states}, call)
