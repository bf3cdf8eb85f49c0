"""Events: what happened, in order, per tenant. Appended by the same command as the change itself."""

from ingot.events.model import Event
from ingot.events.service import Events

__all__ = ["Event", "Events"]
