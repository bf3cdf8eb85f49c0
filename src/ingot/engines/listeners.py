"""Who is told of what happens in a store. All of it is told on the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ingot.jobs.figures import Listener
from ingot.kernel.logs import report


def tell(listeners: Iterable[Callable[..., object]], *news: object) -> None:
    """Tell all listeners. One that fails does not keep the news from the others."""
    for listener in listeners:
        try:
            listener(*news)
        except Exception as error:
            report("listener_failed", error)


class Listeners:
    """The listeners of a store, by what they are told."""

    def __init__(self) -> None:
        self.ready: list[Callable[[str, str, int], object]] = []
        self.coming: list[Callable[[str, str, int], int]] = []  # Wake claims for jobs that are about to be made.
        self.agenda: list[Callable[[], None]] = []
        self.event: list[Callable[[str], None]] = []
        self.removed: list[Callable[[str], None]] = []
        self.record: list[Callable[[], None]] = []
        self.figures: list[Listener] = []


class TellingStore:
    """The part of a store by which rooms ask to be told."""

    def __init__(self, listeners: Listeners) -> None:
        self.listeners = listeners

    def on_ready(self, tell: Callable[[str, str, int], object]) -> None:
        """See `JobStore`."""
        self.listeners.ready.append(tell)

    def on_coming(self, wake: Callable[[str, str, int], int]) -> None:
        """See `JobStore`."""
        self.listeners.coming.append(wake)

    def on_agenda(self, tell: Callable[[], None]) -> None:
        """See `JobStore`."""
        self.listeners.agenda.append(tell)

    def listen(self, listener: Listener) -> None:
        """See `JobStore`."""
        self.listeners.figures.append(listener)

    def on_event(self, tell: Callable[[str], None]) -> None:
        """See `EventLog`."""
        self.listeners.event.append(tell)

    def on_removed(self, tell: Callable[[str], None]) -> None:
        """See `TenantStore`."""
        self.listeners.removed.append(tell)

    def on_record(self, tell: Callable[[], None]) -> None:
        """See `RecordStore`."""
        self.listeners.record.append(tell)
