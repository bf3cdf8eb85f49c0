"""Planted bugs of the worker."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WORKER = "tests/http/test_faulty_handlers.py"
ISOLATION = "tests/http/test_isolation.py"
OUTLIVES = "tests/system/test_worker_misbehaving.py::test_no_process_of_a_job_outlives_its_worker"

MUTANTS = [
    Mutant(
        name="a handler of untrusted data has a network",
        breaks="an isolated handler sends nothing to anybody",
        file="worker/isolation/child.py",
        old="    if not task.network and network_obstacle() is None:",
        new="    if False:",
        caught_by="tests/http/test_isolated_network.py::test_an_isolated_handler_has_no_network",
    ),
    Mutant(
        name="a worker that relays requests to any place",
        breaks="an isolated handler sends nothing to anybody",
        file="worker/isolation/transfers.py",
        old="headers = self._headers_by_url.get(request.url)",
        new="headers = self._headers_by_url.get(request.url, frozenset())",
        caught_by="tests/http/test_isolated_network.py::test_a_request_that_was_not_issued_is_refused",
    ),
    Mutant(
        name="a Host header of the handler",
        breaks="an isolated handler sends nothing to anybody",
        file="worker/isolation/transfers.py",
        old="            and {name.lower() for name in request.headers} <= HEADERS | headers\n",
        new="",
        caught_by="tests/http/test_isolated_network.py::test_a_request_that_was_not_issued_is_refused",
    ),
    Mutant(
        name="a connection that half a request went over",
        breaks="an answer is to the request that was asked",
        file="worker/sync_http_transport.py",
        old="        self._is_reusable = self._is_sent and response.is_reusable\n",
        new="        self._is_reusable = response.is_reusable\n",
        caught_by="tests/http/test_sync_http_transport.py::test_a_connection_after_an_incomplete_request_is_not_reused",
    ),
    Mutant(
        name="a job that came again is the same run",
        breaks="what is said of a lost run does not touch the one that holds the job",
        file="worker/runner.py",
        old="        if self._attempts.get(attempt.id) is attempt:\n            del self._attempts[attempt.id]\n",
        new="        self._attempts.pop(attempt.id, None)\n",
        caught_by=f"{WORKER}::test_a_second_run_of_a_job_is_independent_of_the_first_run_in_the_same_worker",
    ),
    Mutant(
        name="a place that is free while its thread runs",
        breaks="no more run at once than the concurrency says",
        file="worker/runner.py",
        old="        if attempt.thread_future is None or attempt.thread_future.done():\n",
        new="        if True:\n",
        caught_by=f"{WORKER}::test_a_handler_that_exceeds_its_timeout_keeps_its_slot_until_it_returns",
    ),
    Mutant(
        name="words that cannot be sent",
        breaks="what a handler prints costs no other job its lease",
        file="worker/job.py",
        old='.encode("utf-8", "replace").decode()',
        new="",
        caught_by=f"{WORKER}::test_output_that_is_not_valid_unicode_is_stored_with_replacements",
    ),
    Mutant(
        name="a process that holds what others wait for the end of",
        breaks="jobs at once share nothing that is open",
        file="worker/isolation/template.py",
        old="                *control_sockets,\n",
        new="",
        caught_by=f"{ISOLATION}::test_concurrent_isolated_jobs_share_no_open_files",
    ),
    Mutant(
        name="secrets that are handed on",
        breaks="no secret of the worker is in the environment of a job or of its template",
        file="settings/environment.py",
        old=" if name not in secret_names}",
        new="}",
        caught_by=f"{ISOLATION}::test_no_secret_is_in_the_environment_of_a_child_or_its_template",
    ),
    Mutant(
        name="copies that miss a thread",
        breaks="what a module begins at import is there in each job, and whole",
        file="worker/isolation/linux.py",
        old="    if (threads := _count_threads_after_fork()) > 1:\n",
        new="    if (threads := _count_threads_after_fork()) > 99:\n",
        caught_by=f"{ISOLATION}::test_a_module_with_threads_or_pipes_is_imported_again_for_each_job",
    ),
    Mutant(
        name="copies that share a pipe",
        breaks="what a module opens at import is each job's own",
        file="worker/isolation/linux.py",
        old="            if not (stat.S_ISCHR(mode)",
        new="            if not (True or stat.S_ISCHR(mode)",
        caught_by=f"{ISOLATION}::test_a_module_with_threads_or_pipes_is_imported_again_for_each_job",
    ),
    Mutant(
        name="processes that outlive their template",
        breaks="all that a job started ends with it, also when its template was killed",
        file="worker/isolation/process.py",
        old="                os.killpg(self._pid, signal.SIGKILL)\n",
        new="                pass\n",
        caught_by=f"{ISOLATION}::test_killing_a_template_ends_its_children_and_a_new_template_starts",
    ),
    Mutant(
        name="a template that looks at its socket alone",
        breaks="all that a job started ends with its worker, whoever holds what that had open",
        file="worker/isolation/template.py",
        old="            self._register(self._worker_pidfd, self._kill_all_and_exit)\n",
        new="            pass\n",
        caught_by=f"{OUTLIVES}[killed with a copy]",
    ),
    Mutant(
        name="structs made ready at their first use",
        breaks="threads that decode the same struct for the first time do not end the process",
        file="kernel/msgspec_warmup.py",
        old="                    msgspec.json.Decoder(struct_type)\n",
        new="                    pass\n",
        caught_by="tests/unit/test_msgspec_warmup.py",
    ),
    Mutant(
        name="jobs that are one user",
        breaks="T1: a job sees nothing of the files of another tenant's",
        file="worker/isolation/child.py",
        old="return (uid, uid) if is_mapped_uid(uid) else (fallback.pw_uid, fallback.pw_gid)",
        new="return fallback.pw_uid, fallback.pw_gid",
        caught_by="tests/http/test_isolation.py::test_each_isolated_job_has_its_own_user_and_cannot_read_other_working_folders",
    ),
    Mutant(
        name="what left its group lives on",
        breaks="all that a job started ends with it",
        file="worker/isolation/template.py",
        old="        self._kill_strays()\n",
        new="",
        caught_by="tests/http/test_isolation.py::test_a_process_that_leaves_the_process_group_of_its_job_ends_with_it",
    ),
    Mutant(
        name="an outage that every late request reports again",
        breaks="an outage of the server is logged once",
        file="worker/server_availability.py",
        old="            if self._lost_at is not None or began_at < self._back_at:\n",
        new="            if self._lost_at is not None:\n",
        caught_by="tests/unit/test_server_availability.py::test_a_request_that_began_before_a_change_reports_nothing",
    ),
    Mutant(
        name="jobs that a worker cannot decode and keeps",
        breaks="a claim whose answer could not be used is released at once",
        file="worker/http_job_source.py",
        old="            await self._release(response_body)\n",
        new="",
        caught_by="tests/system/test_rolling_upgrade.py"
        "::test_a_worker_that_cannot_decode_its_claims_releases_the_jobs_and_exits",
    ),
]
