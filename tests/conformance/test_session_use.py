"""A session that is used does not expire, even if no other session is."""

from __future__ import annotations

import pytest

from ingot.events.audit import Act
from ingot.identity.credentials import Unauthorized
from ingot.identity.last_used import LastUsedRecorder
from ingot.identity.people import LOCAL_ISSUER, LOCAL_SUBJECT
from ingot.identity.sessions import Sessions
from tests.conformance.people_fixture import PeopleFixture, person
from tests.factories import Bench

HOUR_SECONDS = 3600


async def test_a_used_session_stays_valid_and_an_idle_one_expires(bench: Bench) -> None:
    people = PeopleFixture(bench)
    operator = person(issuer=LOCAL_ISSUER, subject=LOCAL_SUBJECT)
    sessions = Sessions(bench.store, people.access, bench.clock)
    secret = (await sessions.sign_in(operator, user_agent=None, old_secret=None, act=Act())).secret
    usage = LastUsedRecorder(bench.store, people.access)
    for _ in range(5):
        bench.clock.advance(seconds=HOUR_SECONDS)
        await people.access.authenticate_session(secret)
        assert (await usage.run_once()).sessions
    bench.clock.advance(seconds=2 * HOUR_SECONDS)
    with pytest.raises(Unauthorized):
        await people.access.authenticate_session(secret)
