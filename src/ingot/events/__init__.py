"""Events: what happened, in order, per tenant. Appended by the same command as the change itself."""

from ingot.events.errors import EventTooLarge, Gap
from ingot.events.model import Event, Forgotten, Published
from ingot.events.service import Events

__all__ = ["Event", "EventTooLarge", "Events", "Forgotten", "Gap", "Published"]
