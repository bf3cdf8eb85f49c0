"""Bugs planted in the command line, and in the client that it stands on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        name="a name that leads elsewhere",
        breaks="what is asked of a thing by its name is asked of that thing, whatever the name has in it",
        file="client/url_path.py",
        old="quote(part, safe='')",
        new="part",
        caught_by="tests/http/test_client.py::test_special_characters_in_an_id_do_not_change_the_path",
    ),
    Mutant(
        name="a question that nobody hears is taken for a yes",
        breaks="what is done to all jobs that fit is done when somebody said so",
        file="cli/confirm.py",
        old="    if not sys.stdin.isatty() or not sys.stderr.isatty():\n",
        new="    if not sys.stdin.isatty():\n        return\n    if not sys.stderr.isatty():\n",
        caught_by="tests/system/test_cli_jobs.py::test_a_bulk_action_previews_its_jobs_and_needs_confirmation",
    ),
    Mutant(
        name="an answer that was lost is not asked for again",
        breaks="a document whose answer was lost gets one job, and the rest goes on",
        file="cli/ingest_pipeline.py",
        old='idempotency_key=f"{self._run_id}:{number}",',
        new="",
        caught_by="tests/system/test_cli_ingest.py::test_a_lost_response_creates_no_second_job",
    ),
    Mutant(
        name="a pointer goes where its file should",
        breaks="a Git LFS pointer is never sent",
        file="cli/document_files.py",
        old="            source, head = _content_and_head(resolve_pointer(document.path, head))\n",
        new="            return source\n",
        caught_by="tests/system/test_cli_ingest.py::test_a_git_lfs_pointer_is_never_sent",
    ),
    Mutant(
        name="what is in the way is written over",
        breaks="a file of the user's is written over when that is said",
        file="cli/local_files.py",
        old="    if not replace or not target.is_file():\n",
        new="    if not target.is_file():\n",
        caught_by="tests/system/test_cli_ingest.py::test_ingest_skips_equal_outputs_and_reports_conflicting_files",
    ),
]
