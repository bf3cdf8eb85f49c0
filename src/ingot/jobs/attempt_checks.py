"""Validation of the outcomes, heartbeats and logs that workers send for their attempts."""

from __future__ import annotations

import msgspec

from ingot.jobs import checks
from ingot.jobs.model import Done, Failed, Outcome, Release, Settle, Snooze
from ingot.jobs.ports import AttemptHeartbeat, LogEntry
from ingot.kernel import validation
from ingot.kernel.errors import InvalidInput


def checked_settle(value: object) -> Settle:
    """Return a valid `Settle`. A long error is truncated, and characters that cannot be stored are replaced.

    Raises `InvalidInput` for all other invalid values, and `JobNotFound` for a text that is not a job ID.
    """
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
        case Failed(error=error, exit_code=exit_code):
            clean_error = checks.error_text(validation.check_text(error, name="error"))
            validation.check_boolean(outcome.retry, name="retry")
            validation.check_boolean(outcome.timed_out, name="timed_out")
            if exit_code is not None:
                validation.check_integer(
                    exit_code, name="exit_code", minimum=-validation.NUMBER_MAX, maximum=validation.NUMBER_MAX
                )
            return outcome if clean_error == error else msgspec.structs.replace(outcome, error=clean_error)
        case Snooze(delay=delay_micros):
            validation.check_integer(delay_micros, name="snooze", minimum=0, maximum=checks.DELAY_MICROS_MAX)
            return outcome
        case _:
            raise InvalidInput(f"the outcome must be Done, Failed, Snooze or Release, got {type(outcome).__name__}")


def _checked_done(outcome: Done) -> Done:
    result, outputs = outcome.result, checks.outputs(outcome.outputs) if outcome.outputs != () else ()
    if result is not None:
        if not isinstance(result, bytes):
            raise InvalidInput(
                f"the result of an outcome must be bytes of JSON text, got {type(result).__name__}",
                hint="Create the outcome with done_outcome. Nothing was changed.",
            )
        result = checks.result(result)
    return outcome if (result, outputs) == (outcome.result, outcome.outputs) else Done(result=result, outputs=outputs)


def checked_heartbeat(value: object) -> AttemptHeartbeat:
    """Return a valid heartbeat. Raises `InvalidInput`, and `JobNotFound` for a text that is not a job ID."""
    beat = validation.check_instance(value, AttemptHeartbeat, name="beat")
    _check_attempt_fields(beat)
    checks.lease(beat.lease)
    if beat.percent is not None:
        checks.percent(beat.percent)
    if beat.stage is not None:
        checks.stage(beat.stage)
    return beat


def checked_log_entry(value: object) -> LogEntry:
    """Return a valid log entry, with characters that cannot be stored replaced.

    Raises `InvalidInput`, and `JobNotFound` for a text that is not a job ID.
    """
    entry = validation.check_instance(value, LogEntry, name="entry")
    _check_attempt_fields(entry)
    if entry.offset is not None:
        validation.check_integer(entry.offset, name="offset", minimum=0, maximum=checks.LOG_OFFSET_MAX)
    clean_text = checks.log_text(entry.text)
    return entry if clean_text == entry.text else msgspec.structs.replace(entry, text=clean_text)


def _check_attempt_fields(message: Settle | AttemptHeartbeat | LogEntry) -> None:
    """Check the fields that identify the attempt: job, fence, tenant and worker."""
    checks.job_id(message.job_id)
    checks.fence(message.fence)
    checks.optional_tenant_id(message.tenant)
    if message.worker is not None:
        checks.worker_id(message.worker)
