"""The document handlers with less memory and time, so that hostile files reach a limit soon."""

from __future__ import annotations

from ingot.worker import Worker
from ingot.worker.handlers.ocr import handle as read
from ingot.worker.handlers.pdf import handle as convert

worker = Worker()
worker.handler("pdf", isolate=True, memory_mb=768, timeout="60s", concurrency=2)(convert)
worker.handler("ocr", isolate=True, memory_mb=768, timeout="60s", concurrency=2)(read)
