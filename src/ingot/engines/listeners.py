"""The callbacks that a store calls. All of them run on the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ingot.jobs.metrics import Listener
from ingot.jobs.model import LostLease
from ingot.kernel.logs import report


def notify_all(listeners: Iterable[Callable[..., object]], *details: object) -> None:
    """Call all listeners. An error in one is logged and does not stop the others."""
    for listener in listeners:
        try:
            listener(*details)
        except Exception as error:
            report("listener_failed", error)


class StoreListeners:
    """The callbacks of a store, by event."""

    def __init__(self) -> None:
        self.ready: list[Callable[[str, str, int], object]] = []
        self.upcoming_jobs: list[Callable[[str, str, int], int]] = []  # Wake claims for jobs that are about to be made.
        self.maintenance_rescheduled: list[Callable[[], None]] = []
        self.leases_lost: list[Callable[[Sequence[LostLease]], None]] = []
        self.event: list[Callable[[str], None]] = []
        self.tenant_removed: list[Callable[[str], None]] = []
        self.record_changed: list[Callable[[], None]] = []
        self.schema_mismatch: list[Callable[[], None]] = []
        self.metrics: list[Listener] = []


class ObservableStore:
    """The methods of a store that register callbacks."""

    def __init__(self, listeners: StoreListeners) -> None:
        self.listeners = listeners

    def on_ready(self, callback: Callable[[str, str, int], object]) -> None:
        """See `JobStore`."""
        self.listeners.ready.append(callback)

    def on_upcoming_jobs(self, wake: Callable[[str, str, int], int]) -> None:
        """See `JobStore`."""
        self.listeners.upcoming_jobs.append(wake)

    def on_maintenance_rescheduled(self, callback: Callable[[], None]) -> None:
        """See `JobStore`."""
        self.listeners.maintenance_rescheduled.append(callback)

    def on_leases_lost(self, callback: Callable[[Sequence[LostLease]], None]) -> None:
        """See `JobStore`."""
        self.listeners.leases_lost.append(callback)

    def add_listener(self, listener: Listener) -> None:
        """See `JobStore`."""
        self.listeners.metrics.append(listener)

    def on_event(self, callback: Callable[[str], None]) -> None:
        """See `EventLog`."""
        self.listeners.event.append(callback)

    def on_tenant_removed(self, callback: Callable[[str], None]) -> None:
        """See `TenantStore`."""
        self.listeners.tenant_removed.append(callback)

    def on_schema_mismatch(self, callback: Callable[[], None]) -> None:
        """See `JobStore`."""
        self.listeners.schema_mismatch.append(callback)

    def on_record_changed(self, callback: Callable[[], None]) -> None:
        """See `RecordStore`."""
        self.listeners.record_changed.append(callback)
