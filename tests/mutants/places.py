"""Where the tests are that catch many planted bugs."""

from __future__ import annotations

SETTLE = "tests/conformance/test_settle.py"
POWER = "tests/faults/test_power.py::test_nothing_acknowledged_is_lost_when_the_power_goes"
PROVIDER = "tests/unit/test_provider.py"
WORKERS = "tests/conformance/test_workers.py"
PEOPLE = "tests/conformance/test_people.py"
WAITING = "tests/conformance/test_worker_waiting.py"
AUDIT = "tests/conformance/test_audit.py"
AUDIT_HTTP = "tests/http/test_audit.py"
BROWSER = "tests/browser"
REMOVAL = "tests/conformance/test_removal.py"
REMOVAL_RACES = "tests/unit/test_postgres_removal.py"
TOKENS = "tests/http/test_tokens.py"
SECRETS = "tests/system/test_secrets.py::test_no_planted_secret_is_found_in_what_a_server_lets_out[sqlite-json]"
MACHINES = "tests/conformance/test_machines.py::test_a_store_lives_as_its_model_does"
