"""Every threat that credentials, sign-ins and sessions have to withstand, and the tests that hold it off."""

from __future__ import annotations

from importlib import import_module

import pytest

CREDENTIALS = "tests.conformance.test_credentials::"
CROSS_SITE = "tests.http.test_cross_site::"
FELT = "tests.http.test_revocation::"
PROVIDER_ANSWERS = "tests.outbound.test_provider_responses::"
PROVIDER_TOKENS = "tests.outbound.test_provider_tokens::"
ROUTES = "tests.http.test_route_access::"
SECRETS = "tests.system.test_secrets::test_a_server_exposes_none_of_the_planted_secrets"
SESSIONS = "tests.http.test_sessions::"
SHOWN = "tests.http.test_tokens::test_of_a_secret_the_last_four_letters_are_shown_and_no_more"
SIGN_IN = "tests.http.test_sign_in::"
TOKENS = "tests.http.test_tokens::"

WHOLE = f"{TOKENS}test_a_token_that_is_not_whole_is_refused_before_it_is_looked_up"
WRONG_CLAIMS = f"{SIGN_IN}test_a_wrong_id_token_signs_no_one_in"
WRONG_SIGNED = f"{PROVIDER_TOKENS}test_a_signed_token_that_says_the_wrong_thing_is_refused"
HEADER = f"{PROVIDER_TOKENS}test_a_header_that_brings_a_key_or_asks_for_more_is_refused"
OTHER_SITE = f"{SESSIONS}test_a_page_of_another_site_changes_nothing"

THREATS: dict[str, dict[str, list[str]]] = {
    "token": {
        "wrong": [f"{TOKENS}test_a_token_with_the_id_of_another_is_refused", f"{ROUTES}test_who_is_nobody_is_refused"],
        "truncated": [WHOLE, "tests.unit.test_credential_secrets::test_what_nobody_made_has_no_id"],
        "case-changed": [WHOLE, "tests.unit.test_credential_secrets::test_what_nobody_made_has_no_id"],
        "bad checksum": [WHOLE, "tests.unit.test_credential_secrets::test_one_letter_changed_is_no_token"],
        "in the query string": [f"{TOKENS}test_a_token_in_the_query_is_none"],
        "two Authorization headers": ["tests.http.test_bad_requests::test_two_tokens_in_one_request_are_none"],
        "expired": [f"{ROUTES}test_a_token_that_has_expired_is_refused"],
        "revoked": [f"{ROUTES}test_a_token_that_was_ended_is_refused"],
        "wrong resource": [
            f"{TOKENS}test_a_token_of_one_tenant_is_none_of_another",
            f"{ROUTES}test_another_tenant_finds_nothing_and_changes_nothing",
            f"{ROUTES}test_each_route_needs_a_grant_for_its_action",
        ],
        "tasks and tasks-private": [
            f"{TOKENS}test_a_grant_for_tasks_is_none_for_tasks_private",
            "tests.unit.test_grants::test_a_resource_covers_what_begins_with_its_segments",
        ],
        "checked before it is looked up": [
            WHOLE,
            f"{CREDENTIALS}test_malformed_credentials_do_not_reach_the_store",
        ],
    },
    "token leakage": {
        "list": [SHOWN, SECRETS],
        "audit": [SHOWN, SECRETS, "tests.conformance.test_audit::test_no_credential_or_digest_is_recorded"],
        "error": [
            SECRETS,
            "tests.http.test_bad_requests::test_what_was_sent_is_not_shown_in_an_error",
            "tests.unit.test_redaction::test_each_kind_of_secret_is_taken_out_whole_or_cut",
            "tests.system.test_secrets::test_a_failed_start_prints_no_secret",
        ],
        "log": [SECRETS, "tests.system.test_logs::test_secrets_are_never_logged"],
        "page": [SHOWN, SECRETS],
        "database": [SHOWN, SECRETS, f"{CREDENTIALS}test_the_text_of_a_token_is_not_stored"],
        "written out by mistake": [
            "tests.unit.test_redaction::test_what_holds_a_secret_does_not_show_it",
            "tests.unit.test_redaction::test_settings_show_all_but_what_is_secret",
        ],
    },
    "OIDC": {
        "no state": [f"{SIGN_IN}test_a_state_that_is_not_the_browsers_is_refused"],
        "old state": [f"{SIGN_IN}test_a_state_that_is_old_is_refused"],
        "reused state": [f"{SIGN_IN}test_a_state_is_good_once"],
        "other browser's state": [f"{SIGN_IN}test_the_state_of_another_browser_is_refused"],
        "state that nobody made": [f"{SIGN_IN}test_a_sign_in_that_nobody_began_is_refused"],
        "wrong nonce": [WRONG_CLAIMS, WRONG_SIGNED],
        "wrong aud": [WRONG_CLAIMS, WRONG_SIGNED],
        "wrong azp": [WRONG_CLAIMS, WRONG_SIGNED],
        "wrong iss": [WRONG_CLAIMS, WRONG_SIGNED],
        "alg none": [f"{PROVIDER_TOKENS}test_a_token_that_nobody_signed_is_refused"],
        "alg HS256": [
            f"{PROVIDER_TOKENS}test_a_public_key_is_no_secret_to_sign_with",
            f"{PROVIDER_TOKENS}test_the_secret_of_the_client_signs_nothing_either",
        ],
        "unknown crit": [HEADER],
        "expired": [WRONG_CLAIMS, WRONG_SIGNED, f"{PROVIDER_TOKENS}test_time_goes_on_and_the_token_expires"],
        "iat in the future": [WRONG_CLAIMS, WRONG_SIGNED],
        "jku and jwk": [HEADER],
        "kid injection": [
            f"{PROVIDER_TOKENS}test_a_kid_is_looked_up_and_nothing_else",
            f"{PROVIDER_TOKENS}test_a_kid_that_is_no_text_is_none",
        ],
        "iss mix-up on callback": [
            f"{SIGN_IN}test_an_answer_of_another_provider_is_refused",
            f"{PROVIDER_ANSWERS}test_an_answer_of_another_provider_is_refused_before_its_code_is_used",
            f"{PROVIDER_ANSWERS}test_a_provider_that_names_itself_in_answers_does_so_always",
        ],
        "discovery issuer mismatch": [f"{PROVIDER_ANSWERS}test_a_configuration_of_another_issuer_is_refused"],
        "code replay": [
            f"{SIGN_IN}test_a_real_provider_signs_people_in_and_takes_a_code_once",
            "tests.system.test_real_provider::test_a_code_can_be_used_once",
        ],
        "unverified email": [WRONG_CLAIMS, "tests.http.test_people::test_an_email_that_is_not_verified_is_nobodys"],
        "groups missing": [
            WRONG_CLAIMS,
            "tests.unit.test_id_token_claims::test_groups_that_matter_and_are_missing_are_refused",
        ],
        "groups a text": [
            WRONG_CLAIMS,
            "tests.unit.test_id_token_claims::test_groups_that_are_no_list_of_names_are_refused",
        ],
        "groups huge": [WRONG_CLAIMS, "tests.unit.test_id_token_claims::test_as_many_groups_as_there_may_be_are_taken"],
        "next=//evil": [f"{SIGN_IN}test_nobody_is_led_elsewhere"],
    },
    "session": {
        "fixed before login": [
            f"{SESSIONS}test_a_cookie_fixed_before_the_sign_in_is_not_the_session",
            f"{SESSIONS}test_a_new_session_takes_the_place_of_the_one_before",
        ],
        "after logout": [f"{SESSIONS}test_signing_out_ends_the_session"],
        "after group removal": [
            f"{FELT}test_a_person_who_loses_their_rights_is_out",
            f"{FELT}test_a_token_of_a_person_who_loses_their_rights_is_out",
        ],
        "idle": [
            f"{SESSIONS}test_a_session_that_is_not_used_ends",
            "tests.conformance.test_session_use::test_a_used_session_stays_valid_and_an_idle_one_expires",
        ],
        "absolute expiry": [f"{SESSIONS}test_a_session_ends_with_its_time"],
        "not renewed": [f"{SESSIONS}test_what_the_provider_said_is_not_believed_for_ever"],
        "__Host-": [f"{SESSIONS}test_a_cookie_is_known_by_its_whole_name_and_must_be_one"],
        "Secure, HttpOnly, SameSite": [f"{SIGN_IN}test_who_comes_back_as_they_set_out_is_signed_in"],
        "refused everywhere": [f"{ROUTES}test_a_session_that_does_not_hold_is_refused_everywhere"],
    },
    "CSRF": {
        "cross-site": [OTHER_SITE, f"{ROUTES}test_a_page_of_another_site_reaches_nothing_that_changes_something"],
        "same-site": [OTHER_SITE],
        "none and a foreign origin": [OTHER_SITE],
        "neither": [OTHER_SITE],
        "JSON as text/plain": [OTHER_SITE, f"{CROSS_SITE}test_what_a_form_can_send_is_no_json"],
        "GET on a mutating route": [
            f"{CROSS_SITE}test_no_route_that_changes_something_takes_get",
            f"{SESSIONS}test_nothing_is_changed_with_get",
        ],
        "HX-Request alone": [OTHER_SITE, f"{CROSS_SITE}test_a_header_of_htmx_is_no_proof_on_any_route"],
    },
}


@pytest.mark.parametrize("row", THREATS)
def test_every_threat_has_a_test_that_is_there(row: str) -> None:
    for threat, tests in THREATS[row].items():
        assert tests, threat
        for test in tests:
            module, _, name = test.partition("::")
            assert name.startswith("test_"), test
            assert callable(getattr(import_module(module), name, None)), f"{threat}: there is no {test}"
