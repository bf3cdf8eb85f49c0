"""Planted bugs of the object stores, and of what verifies their bytes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.selections import ADDRESSES, OBJECT_POWER

MUTANTS = [
    Mutant(
        name="an object that is renamed before it is synced",
        breaks="B3: no part of an object is at a final name",
        file="objects/local_writer.py",
        old=(
            "            self._syscalls.sync(self._file)\n"
            "            self._syscalls.rename(self._path, self._final_path)\n"
        ),
        new=(
            "            self._syscalls.rename(self._path, self._final_path)\n"
            "            self._syscalls.sync(self._file)\n"
        ),
        caught_by=f"{OBJECT_POWER}[upload_of_known_size]",
    ),
    Mutant(
        name="a finished object whose folder is not synced",
        breaks="B1: an acknowledged object survives power loss",
        file="objects/local_writer.py",
        old="            for folder in self._folders:\n",
        new="            for folder in self._folders[1:]:\n",
        caught_by=f"{OBJECT_POWER}[upload_of_unknown_size]",
    ),
    Mutant(
        name="an upload that goes on with what was not synced",
        breaks="B1: what is stored is what was sent",
        file="objects/local_writer.py",
        old="            self._syscalls.truncate(self._file, offset)\n",
        new="",
        caught_by=f"{OBJECT_POWER}[resumed_upload_without_sync]",
    ),
    Mutant(
        name="two objects that take the spare room at once",
        breaks="a disk that files filled still takes deletes",
        file="objects/local_writer.py",
        old="                    self._free_space.check(0)  # Other",
        new="                    # Other",
        caught_by="tests/faults/test_spare_space.py::test_two_concurrent_writes_leave_the_spare_space_free",
    ),
    Mutant(
        name="bytes of unknown number that fill the disk",
        breaks="a disk that files filled still takes deletes",
        file="objects/local_writer.py",
        old="                self._free_space.check(len(data))\n",
        new="                pass\n",
        caught_by="tests/faults/test_spare_space.py::test_a_write_of_unknown_size_stops_before_the_spare_space",
    ),
    Mutant(
        name="two writers of one upload",
        breaks="who resumes an upload shuts out who wrote it before",
        file="objects/local_writer.py",
        old="                previous.close(UploadTaken)\n",
        new="                pass\n",
        caught_by="tests/conformance/test_objects.py::test_late_bytes_of_an_earlier_writer_are_not_stored[local]",
    ),
    Mutant(
        name="parts that are not verified",
        breaks="B2: never wrong bytes",
        file="blobs/hashing.py",
        old="            verify_part(offset // PART_BYTES, part, content.part_checksums)\n",
        new="",
        caught_by="tests/faults/test_object_damage.py::test_damaged_bytes_are_never_returned",
    ),
    Mutant(
        name="a second object at an address",
        breaks="B9: a signed address cannot change a completed blob",
        file="objects/s3.py",
        old='            headers["If-None-Match"] = "*"\n',
        new="            pass\n",
        caught_by=f"{ADDRESSES}::test_a_second_put_is_rejected_and_the_first_object_stays",
    ),
    Mutant(
        name="parts joined without a look",
        breaks="B2: what is joined is what was announced",
        file="objects/s3_parts.py",
        old="        if part.size != stored.size or len(digests) > 1:\n",
        new="        if len(digests) > 1:\n",
        caught_by=f"{ADDRESSES}::test_a_part_of_another_size_is_not_joined",
    ),
    Mutant(
        name="what has no length needs much room",
        breaks="B8: a quota is exact",
        file="blobs/service.py",
        old="            if command.size is not None:\n                raise\n",
        new="            raise\n",
        caught_by="tests/http/test_keys.py::test_a_put_without_a_length_is_accepted_up_to_the_quota",
    ),
    Mutant(
        name="a full disk that is not told",
        breaks="a clear error when there is no room",
        file="blobs/uploads.py",
        old="            with suppress(StoreError):  # Report",
        new="            if True:  # Report",
        caught_by="tests/faults/test_blobs_on_full_disk.py::test_an_upload_on_a_full_disk_resumes_when_space_is_free",
    ),
    Mutant(
        name="strays that are young",
        breaks="B4: what is about to be named is not taken away",
        file="blobs/orphan_sweep.py",
        old="                if age >= self._orphan_age:\n",
        new="                if True:\n",
        caught_by="tests/objects/test_orphan_sweep.py::test_an_old_object_that_no_row_names_is_deleted[local]",
    ),
    Mutant(
        name="an upload whose place is not known",
        breaks="B4: what an upload refers to is not taken away",
        file="engines/sqlite/sql/objects.sql",
        old="    OR EXISTS (SELECT 1 FROM uploads AS u WHERE u.place = item.value)\n",
        new="",
        caught_by="tests/conformance/test_blob_storage_keys.py::test_storage_keys_named_by_any_row_are_known[sqlite]",
    ),
]
