"""Isolated handlers: each job runs in its own process, with limits and without privileges.

When a job has to stop, its process is terminated together with everything that it started.

Three kinds of process take part: the worker (`supervisor`, `templates`, `process`), the template (`template`), which
imports the module of a handler once, and the child (`child`), which the template forks for each job. They exchange
`messages`.
"""

from ingot.worker.isolation.network import network_obstacle
from ingot.worker.isolation.supervisor import IsolatedHandlerFailed, ProcessExited, check_picklable, run_isolated
from ingot.worker.isolation.templates import Templates

__all__ = ["IsolatedHandlerFailed", "ProcessExited", "Templates", "check_picklable", "network_obstacle", "run_isolated"]
