"""The planted bugs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SETTLE = "tests/conformance/test_settle.py"
POWER = "tests/faults/test_power.py::test_nothing_acknowledged_is_lost_when_the_power_goes"
MACHINES = "tests/conformance/test_machines.py::test_a_store_lives_as_its_model_does"

MUTANTS = [
    Mutant(
        name="settle without the fence",
        breaks="J4: a call on an attempt succeeds only with the current fence",
        file="engines/sqlite/settle.py",
        old="    if state.fence != call.fence:\n",
        new="    if False:\n",
        caught_by=f"{SETTLE}::test_the_worker_of_an_earlier_attempt_cannot_settle_the_next",
    ),
    Mutant(
        name="answer before the commit",
        breaks="J1: an acknowledgement means durable",
        file="engines/sqlite/writer.py",
        old='        self._connection.execute("COMMIT")\n',
        new="        self._loop.call_soon_threadsafe(self._deliver, batch, results, Told(Counter(), None))\n"
        '        self._connection.execute("COMMIT")\n',
        caught_by=POWER,
    ),
    Mutant(
        name="synchronous off",
        breaks="J1: an acknowledged write survives the loss of power",
        file="engines/sqlite/connection.py",
        old='    "synchronous": 2,',
        new='    "synchronous": 0,',
        caught_by=POWER,
    ),
    Mutant(
        name="sweep without the crash cap",
        breaks="J8: a job that kills its worker every time is dead at its crash cap",
        file="jobs/lifecycle.py",
        old="            if crashes >= definition.crash_cap:\n",
        new="            if False:\n",
        caught_by="tests/conformance/test_tend.py"
        "::test_a_job_that_kills_its_worker_every_time_is_dead_at_its_crash_cap",
    ),
    Mutant(
        name="more jobs than the claim limit",
        breaks="J12: a claim never gets more than its limit",
        file="engines/sqlite/claim.py",
        old="shares = [list(islice(waiting, command.limit)) for",
        new="shares = [list(waiting) for",
        caught_by="tests/conformance/test_claim.py"
        "::test_claims_that_wait_together_are_served_in_turn_each_up_to_its_limit",
    ),
    Mutant(
        name="idempotency key without the payload",
        breaks="J11: a key used again with another payload is a mismatch",
        file="engines/sqlite/enqueue.py",
        old="            if digest != order.payload_digest:\n",
        new="            if False:\n",
        caught_by=f"{MACHINES}[sqlite-Keys]",
    ),
    Mutant(
        name="claim without its attempt",
        breaks="J7: every claim writes the attempt's row",
        file="engines/sqlite/claim.py",
        old="    tx.execute(SQL.insert_attempts, tx.now, takers)\n",
        new="",
        caught_by="tests/conformance/test_claim.py::test_every_claim_writes_the_row_of_its_attempt",
    ),
    Mutant(
        name="late failure over a cancel",
        breaks="J6: a job asked to stop is canceled by any end but success",
        file="jobs/lifecycle.py",
        old="    if job.cancel_requested:\n",
        new="    if job.cancel_requested and not isinstance(outcome, Failed):\n",
        caught_by="tests/conformance/test_cancel.py::test_any_other_end_of_a_job_asked_to_stop_is_canceled_uncounted",
    ),
    Mutant(
        name="sweep right after the start",
        breaks="decision 5: an outage does not count as everybody's crash",
        file="engines/sqlite/memory.py",
        old="max(expiry, self._sweep_from, self.swept_at + SWEEP_EVERY)",
        new="max(expiry, self.swept_at + SWEEP_EVERY)",
        caught_by="tests/conformance/test_tend.py::test_nothing_is_swept_within_one_lease_of_the_store_coming_up",
    ),
    Mutant(
        name="cancel that is not counted",
        breaks="decision 6: counts are exact",
        file="engines/sqlite/manage.py",
        old="        state.status, state.finished_at = JobStatus.CANCELED, tx.now\n"
        "        tx.moved(state, before, state.status)\n",
        new="        state.status, state.finished_at = JobStatus.CANCELED, tx.now\n",
        caught_by=f"{MACHINES}[sqlite-Life]",
    ),
    Mutant(
        name="opening without a new epoch",
        breaks="L1: fences grow across restarts",
        file="engines/sqlite/sql/begin_epoch.sql",
        old="SET epoch = epoch + 1",
        new="SET epoch = max(epoch, 1)",
        caught_by="tests/conformance/test_restart.py::test_fences_grow_across_restarts",
    ),
    Mutant(
        name="retry without a look at the dedupe key",
        breaks="DuplicateJob when another unfinished job holds the key of a job that is retried",
        file="engines/sqlite/manage.py",
        old="    _check_dedupe_key(tx, state)\n",
        new="",
        caught_by="tests/conformance/test_retry.py::test_a_job_whose_dedupe_key_another_holds_cannot_be_retried",
    ),
    Mutant(
        name="settle of another tenant's job",
        breaks="T3: not yours is not there",
        file="engines/sqlite/settle.py",
        old="    if state is None or call.tenant not in (None, state.tenant):\n",
        new="    if state is None:\n",
        caught_by=f"{MACHINES}[sqlite-ManyTenants]",
    ),
    Mutant(
        name="jobs found without their key",
        breaks="decision 6: history of any size slows no claim and no page",
        file="engines/sqlite/sql/whole_jobs.sql",
        old="WHERE s.number IN",
        new="WHERE +s.number IN",
        caught_by="tests/unit/test_plans.py::test_no_statement_reads_a_table_from_end_to_end",
    ),
]
