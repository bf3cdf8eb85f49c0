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
    Mutant(
        name="policy open while no tenant is set",
        breaks="T2: no tenant set, zero rows",
        file="engines/postgres/migrations/0001_heart.sql",
        old="'USING (tenant = nullif(",
        new="'USING (nullif(current_setting(''ingot.tenant'', true), '''') IS NULL OR tenant = nullif(",
        caught_by="tests/unit/test_postgres_isolation.py::test_without_a_tenant_there_is_nothing_to_see",
    ),
    Mutant(
        name="worker role that serves any tenant",
        breaks="decision 9: the tenant of a direct worker is that of its role",
        file="engines/postgres/functions/worker.sql",
        old="array_fill(tenant, ARRAY[cardinality(ids)]), outcomes",
        new="array_fill(NULL::uuid, ARRAY[cardinality(ids)]), outcomes",
        caught_by="tests/unit/test_postgres_workers.py::test_a_direct_worker_gets_nothing_of_another_tenant",
    ),
    Mutant(
        name="cursor that does not wait for what began before",
        breaks="decision 10: a committed event never appears below one already read",
        file="engines/postgres/sql/read_events.sql",
        old="e.position < ingot.position(pg_snapshot_xmin(pg_current_snapshot())) AS settled",
        new="true AS settled",
        caught_by="tests/unit/test_postgres_cursor.py::test_what_began_before_is_waited_for",
    ),
    Mutant(
        name="settle that goes on after a later change",
        breaks="decision 10: no effect before its cause",
        file="engines/postgres/functions/settle.sql",
        old="WHEN l.changed_by > pg_current_xact_id() THEN",
        new="WHEN false THEN",
        caught_by="tests/unit/test_postgres_cursor.py::test_a_settle_that_waited_for_a_later_cancel_begins_again",
    ),
    Mutant(
        name="settle without the fence on PostgreSQL",
        breaks="J4: only the current fence is heard",
        file="engines/postgres/functions/settle.sql",
        old="WHERE l.id = a.id AND l.fence = a.fence AND (",
        new="WHERE l.id = a.id AND (",
        caught_by="tests/conformance/test_settle.py::test_the_worker_of_an_earlier_attempt_cannot_settle_the_next",
    ),
    Mutant(
        name="crash cap forgotten in SQL",
        breaks="J10: a job that kills its worker every time ends",
        file="engines/postgres/functions/judge.sql",
        old="            WHEN said = 'lost' AND crashes + 1 >= crash_cap THEN 'dead'\n",
        new="",
        caught_by="tests/unit/test_postgres_judge.py::test_sql_knows_every_verdict",
    ),
    Mutant(
        name="claims that wait for each other",
        breaks="decision 7: a claim passes what another holds",
        file="engines/postgres/functions/claim.sql",
        old="FOR UPDATE SKIP LOCKED",
        new="FOR UPDATE",
        caught_by="tests/unit/test_postgres_interleavings.py::test_claims_of_ten_jobs_pass_each_other_without_waiting",
    ),
    Mutant(
        name="claim that takes its limit from every lane",
        breaks="J12: a claim never gets more than its limit, and loses nothing",
        file="engines/postgres/functions/claim.sql",
        old="WHERE h.place > a.upto - a.jobs AND h.place <= a.upto LIMIT 1",
        new="WHERE h.place > a.upto - a.jobs LIMIT 1",
        caught_by="tests/unit/test_postgres_interleavings.py::test_a_claim_keeps_to_its_limit_under_every_plan",
    ),
    Mutant(
        name="batches that lock in the order they came",
        breaks="decision 3: batches are sorted by key before they lock",
        file="engines/postgres/functions/renew.sql",
        old="FROM (SELECT * FROM asked ORDER BY id) AS a CROSS JOIN",
        new="FROM asked AS a CROSS JOIN",
        caught_by="tests/unit/test_postgres_batches.py"
        "::test_batches_over_the_same_jobs_in_opposite_orders_never_lock_each_other_out",
    ),
    Mutant(
        name="two retries of one job",
        breaks="J3: a job is in one place",
        file="engines/postgres/functions/manage.sql",
        old="    PERFORM pg_advisory_xact_lock(hashtextextended(of_job::text, 7303));\n",
        new="",
        caught_by="tests/unit/test_postgres_interleavings.py::test_a_retry_that_meets_another_is_refused",
    ),
    Mutant(
        name="position hint that lives for ever",
        breaks="decision 7: what others put before a position is found after a second",
        file="engines/postgres/memory.py",
        old="return START if time.monotonic() - self.whole_at > self.patience else self.after",
        new="return self.after",
        caught_by="tests/unit/test_postgres_watch.py"
        "::test_work_put_before_a_position_by_another_process_is_found_after_a_while",
    ),
]
