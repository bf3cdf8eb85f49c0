"""What workers say of their attempts, checked before it is stored."""

from __future__ import annotations

import msgspec

from ingot.jobs import checks
from ingot.jobs.model import Done, Failed, Outcome, Release, Settle, Snooze
from ingot.jobs.ports import AttemptHeartbeat, LogEntry
from ingot.kernel import validation
from ingot.kernel.errors import InvalidInput


def checked_settle(value: object) -> Settle:
    """A settle that can be stored: a long or odd error is cut and cleaned, anything else out of bounds is refused."""
    settle = validation.check_instance(value, Settle, name="settle")
    _check_attempt_fields(settle)
    outcome = _checked_outcome(settle.outcome)
    return settle if outcome is settle.outcome else msgspec.structs.replace(settle, outcome=outcome)


def _checked_outcome(outcome: object) -> Outcome:
    match outcome:
        case Done():
            return _checked_done(outcome)
        case Release():
            return outcome
        case Failed(error=error, retry=retry, exit_code=exit_code):
            clean = checks.error_text(validation.check_text(error, name="error"))
            validation.check_boolean(retry, name="retry")
            if exit_code is not None:
                validation.check_integer(
                    exit_code, name="exit_code", minimum=-validation.NUMBER_MAX, maximum=validation.NUMBER_MAX
                )
            return outcome if clean == error else Failed(error=clean, retry=retry, exit_code=exit_code)
        case Snooze(delay=micros):
            validation.check_integer(micros, name="snooze", minimum=0, maximum=checks.DELAY_MICROS_MAX)
            return outcome
        case _:
            raise InvalidInput(f"the outcome is a {type(outcome).__name__}; it is Done, Failed, Snooze or Release")


def _checked_done(outcome: Done) -> Done:
    text, outputs = outcome.result, checks.outputs(outcome.outputs) if outcome.outputs != () else ()
    if text is not None:
        if not isinstance(text, bytes):
            raise InvalidInput(f"the result is a {type(text).__name__}; an outcome carries it as bytes of JSON text")
        text = checks.result(text)
    return outcome if (text, outputs) == (outcome.result, outcome.outputs) else Done(result=text, outputs=outputs)


def checked_heartbeat(value: object) -> AttemptHeartbeat:
    """A heartbeat that can be judged. Raises `JobNotFound` for a text that no job can have."""
    beat = validation.check_instance(value, AttemptHeartbeat, name="beat")
    _check_attempt_fields(beat)
    checks.lease(beat.lease)
    if beat.percent is not None:
        checks.percent(beat.percent)
    if beat.stage is not None:
        checks.stage(beat.stage)
    return beat


def checked_log_entry(value: object) -> LogEntry:
    """An entry that can be stored: odd characters are replaced, anything else out of bounds is refused."""
    entry = validation.check_instance(value, LogEntry, name="entry")
    _check_attempt_fields(entry)
    if entry.offset is not None:
        validation.check_integer(entry.offset, name="offset", minimum=0, maximum=checks.LOG_OFFSET_MAX)
    clean = checks.log_text(entry.text)
    return entry if clean == entry.text else msgspec.structs.replace(entry, text=clean)


def _check_attempt_fields(call: Settle | AttemptHeartbeat | LogEntry) -> None:
    """Raises unless it names an attempt that there can be, and whose it may be."""
    checks.job_id(call.job_id)
    checks.fence(call.fence)
    checks.optional_tenant_id(call.tenant)
    if call.worker is not None:
        checks.worker_id(call.worker)
