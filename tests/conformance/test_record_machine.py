"""Random lives of records: puts, deletes and reads of two tenants, with and without versions, as their model says."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ingot.events.audit import Act
from ingot.identity import Tenants
from ingot.kernel.clock import ManualClock
from ingot.records.kinds import RecordKind
from ingot.records.model import Record, RecordChanged, RecordNotFound
from ingot.records.service import Records
from tests import event_loop
from tests.factories import Bench, open_store

EXAMPLES = {"sqlite": 20, "postgres": 6}
STEPS = 30
pytestmark = pytest.mark.long


class Note(msgspec.Struct, frozen=True):
    """A body for tests."""

    text: str


NOTE = RecordKind(name="note", plural="notes", body_type=Note)
tenants = st.integers(0, 1)
names = st.sampled_from(["a", "a.b", "b"])
texts = st.sampled_from(["x", "y"])
versions = st.none() | st.integers(0, 4)


class RecordLife(RuleBasedStateMachine):
    """Records in a store, compared with a dictionary of versions and texts."""

    engine: str

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="ingot-records-")
        self.clock = ManualClock()
        self.model: dict[tuple[int, str], tuple[int, str]] = {}
        self.changes: dict[tuple[int, str], int] = {}
        event_loop.run(self._open())

    async def _open(self) -> None:
        store = await open_store(self.engine, Path(self.folder.name) / "data", self.clock)
        self.bench = Bench(store, self.clock, await Tenants(store).ensure_default())
        self.tenants = [self.bench.tenant, (await self.bench.tenants.create("other")).id]
        self.notes = Records(store, NOTE)

    def teardown(self) -> None:
        """Close the store."""
        event_loop.run(self.bench.store.close())
        self.folder.cleanup()

    def _expected(self, tenant: int, name: str, if_version: int | None) -> int | None:
        """The current version, or `None` when a change is refused."""
        current = self.model.get((tenant, name), (0, ""))[0]
        return current if if_version in (None, current) else None

    @rule(tenant=tenants, name=names, text=texts, if_version=versions)
    def put(self, tenant: int, name: str, text: str, if_version: int | None) -> None:
        current = self._expected(tenant, name, if_version)
        call = self.notes.put(self.tenants[tenant], name, Note(text), if_version=if_version, act=Act(who="t"))
        if current is None:
            with pytest.raises(RecordChanged):
                event_loop.run(call)
            return
        if self.model.get((tenant, name)) != (current, text):
            self.model[tenant, name] = current + 1, text
            self.changes[tenant, name] = self.changes.get((tenant, name), 0) + 1
        made: Record[Note] = event_loop.run(call)
        assert (made.version, made.body.text) == self.model[tenant, name]

    @rule(tenant=tenants, name=names, if_version=versions)
    def delete(self, tenant: int, name: str, if_version: int | None) -> None:
        call = self.notes.delete(self.tenants[tenant], name, if_version=if_version, act=Act(who="t"))
        if (tenant, name) not in self.model:
            with pytest.raises(RecordNotFound):
                event_loop.run(call)
        elif self._expected(tenant, name, if_version) is None:
            with pytest.raises(RecordChanged):
                event_loop.run(call)
        else:
            event_loop.run(call)
            del self.model[tenant, name]
            self.changes[tenant, name] += 1

    @invariant()
    def lists_are_what_the_model_has(self) -> None:
        for number, tenant in enumerate(self.tenants):
            found = {one.name: (one.version, one.body.text) for one in event_loop.run(self.notes.all(tenant))}
            assert found == {name: value for (owner, name), value in self.model.items() if owner == number}

    @invariant()
    def every_change_has_one_audit_entry(self) -> None:
        for number, tenant in enumerate(self.tenants):
            entries = event_loop.run(self.bench.audit.list(tenant, who="t", limit=1000)).items
            assert len(entries) == sum(count for (owner, _), count in self.changes.items() if owner == number)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_records_behave_like_their_model(engine: str) -> None:
    machine = type("Life", (RecordLife,), {"engine": engine})
    settings = RecordLife.TestCase.settings
    run_state_machine_as_test(
        machine, settings=type(settings)(settings, max_examples=EXAMPLES[engine], stateful_step_count=STEPS)
    )
