"""Files of jobs: inputs of orders, outputs and checkpoints of attempts, and the removal of files."""

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
from ingot.engines.sqlite.quota import bury, charge, refund_usage
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

LeasedAttempt = tuple[JobState, int]  # A running job and its fence.
Row = tuple[object, ...]


class ReferencedBlob(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A blob with a reference in a tenant, and its index in the list of blobs that were looked up."""

    index: int
    number: int
    size: int
    content_type: str


class OrderFiles:
    """The files of orders, counted while orders are accepted, before the files are written."""

    def __init__(self, tx: Transaction, orders: Sequence[NewJob]) -> None:
        self._tx = tx
        self._blobs: dict[tuple[str, str], ReferencedBlob] = {}
        self._uploads: set[TenantName] = set()
        orders = [order for order in orders if order.tenant in tx.writer_state.tenants and has_files(order)]
        self.has_any = bool(orders)
        keys = list({(order.tenant, blob): None for order in orders for _, _, blob in files_of_order(order)})
        if keys:
            blob_ids = as_json([(tx.writer_state.tenants[tenant], blob) for tenant, blob in keys])
            for blob in tx.read(list[ReferencedBlob], SQL.referenced_blobs, blob_ids):
                self._blobs[keys[blob.index]] = blob
        if pairs := [(order.tenant, upload.id) for order in orders for upload in order.uploads]:
            batch = BlobBatch(tx)
            batch.load_uploads(pairs)
            self._uploads.update(batch.uploads)

    def charge(self, orders: Iterable[NewJob]) -> Callable[[], None]:
        """Count the files of these orders against quotas, and return a function that undoes it.

        Raises `BlobNotFound` or `QuotaExceeded`, and has counted nothing then.
        """
        effects, uploads = self._tx.effects, self._uploads.copy()
        usage = effects.usage.copy()
        event_counts = {tenant: len(tenant_events) for tenant, tenant_events in effects.events.items()}

        def undo() -> None:
            effects.usage, self._uploads = usage, uploads
            for tenant, tenant_events in effects.events.items():
                del tenant_events[event_counts.get(tenant, 0) :]

        try:
            for order in orders:
                self._charge_order(order)
        except IngotError:
            undo()
            raise
        return undo

    def _charge_order(self, order: NewJob) -> None:
        size = 0
        for _, _, blob in files_of_order(order):
            referenced = self._blobs.get((order.tenant, blob))
            if referenced is None:
                raise BlobNotFound(f"there is no blob {blob} in this tenant")
            size += referenced.size
        if size:
            owner = order.created_by or PROCESS
            charge(self._tx, order.tenant, owner, StorageUsage(bytes=size), quota=order.owner_quota)
        for upload in order.uploads:
            if (order.tenant, upload.id) in self._uploads:
                raise UploadEnded(f"an upload {upload.id} already exists")
            self._uploads.add((order.tenant, upload.id))
            change = StorageUsage(reserved=upload.reserve)
            charge(self._tx, order.tenant, upload.owner, change, quota=upload.owner_quota)

    def file_rows(self, order: NewJob, job: int) -> list[Row]:
        """Return the rows of the files of a job."""
        tenant, owner = self._tx.writer_state.tenants[order.tenant], order.created_by or PROCESS
        rows: list[Row] = []
        for kind, name, blob in files_of_order(order):
            referenced = self._blobs[order.tenant, blob]
            rows.append(
                (tenant, job, kind, name, referenced.number, referenced.content_type, owner, None, self._tx.now)
            )
        return rows


def files_of_order(order: NewJob) -> list[tuple[str, str, str]]:
    """Return the kind, the name and the blob of each file of an order."""
    files = [("input", name, blob) for name, blob in order.inputs.items()]
    if order.payload_blob is not None:
        files.append(("payload", PAYLOAD, order.payload_blob))
    return files


class AttemptOutputs:
    """The outputs that some attempts have uploaded, and the outputs and checkpoints that their jobs had before."""

    def __init__(self, tx: Transaction, attempts: Sequence[LeasedAttempt]) -> None:
        self._tx = tx
        self._outputs: dict[int, dict[str, OutputRow]] = {}  # By name. A later upload replaces an earlier one.
        self._earlier_files: dict[int, list[ProducedFileRow]] = {}
        self._succeeded: list[JobState] = []
        if attempts:
            attempts_json = as_json([(state.number, state.id, fence) for state, fence in attempts])
            for row in tx.read(list[OutputRow], SQL.outputs_of_attempts, attempts_json):
                self._outputs.setdefault(row.job, {})[row.name] = row
            jobs = as_json([state.number for state, _ in attempts])
            for file in tx.read(list[ProducedFileRow], SQL.produced_files, jobs):
                self._earlier_files.setdefault(file.job, []).append(file)

    def check_uploaded(self, state: JobState, names: Iterable[str]) -> None:
        """Raise `OutputMissing` unless the attempt has uploaded all of these outputs."""
        uploaded = self._outputs.get(state.number, {})
        for name in names:
            if name not in uploaded:
                raise OutputMissing(f"the output {name[:64]!r} was not uploaded under this fence")

    def add_succeeded(self, state: JobState) -> None:
        """Add a succeeded attempt. Its outputs become files of the job, and checkpoints are removed."""
        if state.number in self._outputs or state.number in self._earlier_files:
            self._succeeded.append(state)

    def write(self) -> None:
        """Write the files of the succeeded attempts. Other uploads of these attempts are swept later."""
        if not self._succeeded:
            return
        tx, batch = self._tx, BlobBatch(self._tx)
        tx.execute(SQL.remove_produced_files, as_json([state.number for state in self._succeeded]))
        files: list[Row] = []
        moved_uploads: list[tuple[int, str]] = []
        for state in self._succeeded:
            for file in self._earlier_files.get(state.number, ()):
                refund_usage(tx, state.tenant, file.owner, StorageUsage(bytes=file.size))
                batch.drop_reference(file.blob, state.tenant, file.owner, file.size)
            for output in self._outputs.get(state.number, {}).values():
                values = output.content_type, output.owner, output.fence, tx.now
                files.append((output.tenant, output.job, "output", output.name, output.blob, *values))
                moved_uploads.append((output.tenant, output.id))
                tx.effects.events[state.tenant].append(("blob.stored", _blob_event_data(state, output)))
        tx.write_rows(SQL.put_job_files, files)
        if moved_uploads:
            tx.execute(SQL.remove_uploads, as_json(moved_uploads))
        batch.write()


def _blob_event_data(state: JobState, output: OutputRow) -> BlobEventData:
    return BlobEventData(
        blob_id=output.blob_id,
        size=output.size,
        content_type=output.content_type,
        job_id=state.id,
        name=output.name,
    )


def drop_uploads(tx: Transaction, pairs: Sequence[TenantName], reason: str) -> dict[str, str]:
    """Drop uploads. Return the jobs that will not get an input therefore, by ID, with the reasons."""
    batch = BlobBatch(tx)
    batch.load_uploads(pairs)
    for upload in list(batch.uploads.values()):
        batch.drop_upload(upload, reason)
    batch.write()
    return batch.jobs_without_input


def drop_input_uploads(tx: Transaction, jobs: Sequence[JobState]) -> None:
    """Drop the unfinished input uploads of jobs that no longer wait for them."""
    if jobs and (pairs := tx.read(list[TenantName], SQL.input_uploads_of_jobs, as_json([state.id for state in jobs]))):
        drop_uploads(tx, pairs, "is not needed")


def drop_job_files(tx: Transaction, jobs: Sequence[int]) -> None:
    """Remove the files of removed jobs. Blobs without another reference are deleted."""
    numbers = as_json(jobs)
    files = tx.read(list[tuple[str, str, int, int]], SQL.files_of_jobs, numbers)
    if not files:
        return
    for tenant, owner, _, size in files:
        refund_usage(tx, tenant, owner, StorageUsage(bytes=size))
    tx.execute(SQL.remove_job_files, numbers)
    # Of several owners, the first by name owns the deleted bytes.
    bury(tx, {blob: owner for _, owner, blob, _ in sorted(files, key=lambda file: file[1], reverse=True)})


def list_job_files(reader: Reader, command: ListJobFiles) -> list[JobFile]:
    """Read the files of a job. Raises `JobNotFound`."""
    with reader.snapshot():
        number = reader.execute(SQL.number_of_job, command.job_id, command.tenant).get
        files = None if number is None else reader.read(list[JobFile], SQL.files_of_job, number)
    if files is None:
        raise JobNotFound(f"there is no job {command.job_id[:64]!r} in this tenant")
    return files


def find_running_job(reader: Reader, command: FindRunningJob) -> RunningJob:
    """Find the job of a running attempt. Raises `JobNotFound` or `LeaseLost`."""
    state = _running_state(reader, command)
    return RunningJob(job_id=state.id, tenant=state.tenant, type=state.type, attempt=state.attempts)


def open_job_file(reader: Reader, command: OpenJobFile) -> tuple[JobFile, Content]:
    """Find a file of the job of a running attempt. Raises `JobNotFound`, `LeaseLost` or `FileNotFound`."""
    kind, name = command.kind, command.name
    with reader.snapshot():
        state = _running_state(reader, command)
        file = reader.find(JobFile, SQL.file_of_job, state.number, kind, name) if kind in READABLE_KINDS else None
        holder = reader.writer_state.tenant_numbers.get(state.tenant)
        content = None if file is None else find_content(reader, holder, bytes.fromhex(file.blob_id))
    if file is None or content is None:
        raise FileNotFound(f"the job has no {kind} {name[:64]!r}")
    return file, content


def _running_state(reader: Reader, call: AttemptCall) -> JobState:
    states = reader.read(list[JobState], SQL.states_by_id, as_json([call.job_id]))
    return find_leased_job({state.id: state for state in states}, call)
