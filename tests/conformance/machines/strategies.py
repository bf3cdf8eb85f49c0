"""What machines draw: small values that meet often."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from ingot.identity import Limits
from ingot.jobs import Backoff, Definition, Done, Failed, Outcome, Progress, Release, Snooze
from ingot.kernel.clock import MICROS
from tests.conformance.blob_fixture import id_of
from tests.factories import LEASE_SECONDS

TYPES = ("noop", "fragile")
WORKERS = ("w1", "w2")

places = st.integers(0, 30)  # Which of the known jobs or claims, from the newest back.
priorities = st.none() | st.integers(1, 5)
attempts = st.none() | st.integers(1, 4)
seconds_from_now = st.none() | st.sampled_from([-60.0, 0.0, 0.000001, 1.0, 7.5, 90.0, 4000.0])
spans = st.sampled_from([1.0, 1.5, 5.0, 60.0, LEASE_SECONDS - 1, LEASE_SECONDS, LEASE_SECONDS + 1, 4000.0])
type_lists = st.just(list(TYPES)) | st.lists(st.sampled_from(TYPES), min_size=1, max_size=2)
payloads = st.sampled_from([b"null", b"1", b'{"a": 1, "b": [2]}', b'{ "b":[2],"a":1 }', b' {"a": 1}\n'])
tag = st.sampled_from(["red", "green", "blue"])
tags = st.none() | st.lists(tag, unique=True)
progresses = st.none() | st.builds(
    Progress, percent=st.sampled_from([0.0, 12.5, 100.0]), stage=st.sampled_from(["", "half way"])
)

outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Done, result=st.sampled_from([None, b"1", b' {"b": 1,  "a": 2}\n'])),
    st.builds(
        Failed,
        error=st.sampled_from(["broken", 'said "no"']),
        retry=st.booleans() | st.just(True),
        exit_code=st.sampled_from([None, 0, 2]),
        timed_out=st.booleans(),
    ),
    st.builds(Snooze, delay=st.sampled_from([0, 5 * MICROS, 4000 * MICROS])),
    st.just(Release()),
)

ends: st.SearchStrategy[Outcome] = st.sampled_from([Done(), Done(result=b"1"), Failed(error="broken", retry=False)])

# One part of what a worker said, said otherwise.
changes: st.SearchStrategy[dict[str, object]] = st.sampled_from(
    [
        {"error": "worse"},
        {"retry": False},
        {"retry": True},
        {"exit_code": 1},
        {"timed_out": True},
        {"result": b"2"},
        {"delay": 7},
    ]
)


def changed(outcome: Outcome, change: dict[str, object]) -> Outcome:
    """The outcome with a part of it changed, when it has that part."""
    return msgspec.structs.replace(outcome, **{name: change[name] for name in change if hasattr(outcome, name)})


definitions = st.builds(
    Definition,
    type=st.sampled_from(TYPES),
    timeout_seconds=st.sampled_from([1.0, 60.0]),
    max_attempts=st.integers(1, 3),
    crash_cap=st.integers(1, 3),
    priority=st.integers(1, 5),
    backoff=st.builds(
        Backoff,
        first_seconds=st.sampled_from([0.0, 0.5, 10.0]),
        factor=st.sampled_from([1.0, 3.0]),
        max_seconds=st.sampled_from([10.0, 60.0]),
    ),
)

keys = st.none() | st.sampled_from(["k1", "k2"])
batches = st.sampled_from([None, "b1", "b1", "b2"])

few_payloads = st.sampled_from([b"1", b'{"a": 1, "b": [2]}', b'{ "b":[2],"a":1 }'])
INPUTS = (b"x", b"y")
_X, _Y = map(id_of, INPUTS)
few_inputs = st.sampled_from([(), (("a", _X),), (("b", _X),), (("a", _X), ("b", _Y)), (("a", _Y), ("b", _X))])
reusing_definitions = st.builds(
    Definition, type=st.sampled_from(TYPES), reuse=st.sampled_from([True, True, False]), version=st.integers(1, 2)
)

retentions = st.sampled_from([None, 0.0, 60.0, 60.0, 60.0, 4000.0])
keeping_definitions = st.builds(
    Definition,
    type=st.sampled_from(TYPES),
    retention_seconds=retentions,
    keep_history=st.booleans(),
    reuse=st.booleans(),
    max_attempts=st.integers(1, 3),
)

keyed_payloads = st.sampled_from([b"null", b'{"a": 1}', b'{"a": 2, "b": 1}', b'{"b": 1}', b'{"a": "x"}'])
few = st.none() | st.integers(1, 3)
limiting_definitions = st.builds(
    Definition,
    type=st.sampled_from(TYPES),
    max_running=few,
    limit_key=st.sampled_from(["{a}", "{b}"]),
    max_running_per_key=few,
)
tenant_limits = st.builds(
    Limits, max_running_jobs=st.none() | st.integers(0, 4), max_unfinished_jobs=st.none() | st.integers(0, 7)
)
