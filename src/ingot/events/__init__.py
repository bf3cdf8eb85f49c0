"""Events: the ordered log of what happened in a tenant. The command that makes a change also appends its events."""

from ingot.events.errors import EventTooLarge, Gap
from ingot.events.model import Event, Forgotten, Published
from ingot.events.service import Events

__all__ = ["Event", "EventTooLarge", "Events", "Forgotten", "Gap", "Published"]
