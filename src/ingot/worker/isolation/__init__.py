"""Handlers in processes of their own: limited, without rights they do not need, and ended whole when they are to stop.

A template imports the module of a handler once, and each job gets a copy of it. Three kinds of process talk here: the
worker (`attempt`, `templates`), the template (`template`), and the process of a job (`child`).
"""

from ingot.worker.isolation.supervisor import IsolatedHandlerFailed, ProcessExited, check_picklable, run_isolated
from ingot.worker.isolation.templates import Templates

__all__ = ["IsolatedHandlerFailed", "ProcessExited", "Templates", "check_picklable", "run_isolated"]
