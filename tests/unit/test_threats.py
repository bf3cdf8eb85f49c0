"""Threats to credentials, sign-ins and sessions, and the tests that cover each."""

from __future__ import annotations

from importlib import import_module

import pytest

CREDENTIALS = "tests.conformance.test_credentials::"
CROSS_SITE = "tests.http.test_cross_site::"
REVOCATION = "tests.http.test_revocation::"
PROVIDER_RESPONSES = "tests.outbound.test_provider_responses::"
PROVIDER_TOKENS = "tests.outbound.test_provider_tokens::"
ROUTES = "tests.http.test_route_access::"
SECRETS = "tests.system.test_secrets::test_a_server_exposes_none_of_the_planted_secrets"
SESSIONS = "tests.http.test_sessions::"
LAST_FOUR = "tests.http.test_tokens::test_only_the_last_four_characters_of_a_secret_are_shown"
SIGN_IN = "tests.http.test_sign_in::"
TOKENS = "tests.http.test_tokens::"

ALTERED = f"{TOKENS}test_an_altered_token_is_rejected_without_a_query"
WRONG_CLAIMS = f"{SIGN_IN}test_an_invalid_id_token_creates_no_session"
WRONG_SIGNED_CLAIMS = f"{PROVIDER_TOKENS}test_a_signed_token_with_wrong_claims_is_rejected"
TOKEN_HEADER = f"{PROVIDER_TOKENS}test_a_token_header_with_a_key_or_critical_extensions_is_rejected"
OTHER_SITE = f"{SESSIONS}test_a_request_of_another_site_changes_nothing"

THREATS: dict[str, dict[str, list[str]]] = {
    "token": {
        "wrong": [
            f"{TOKENS}test_a_forged_token_with_a_valid_id_is_rejected",
            f"{ROUTES}test_a_missing_or_invalid_credential_is_rejected_by_every_route",
        ],
        "truncated": [ALTERED, "tests.unit.test_credential_secrets::test_an_altered_token_has_no_id"],
        "case-changed": [ALTERED, "tests.unit.test_credential_secrets::test_an_altered_token_has_no_id"],
        "bad checksum": [
            ALTERED,
            "tests.unit.test_credential_secrets::test_a_token_with_one_changed_character_is_invalid",
        ],
        "in the query string": [f"{TOKENS}test_a_token_in_the_query_is_ignored"],
        "two Authorization headers": ["tests.http.test_bad_requests::test_a_request_with_two_tokens_is_unauthorized"],
        "expired": [f"{ROUTES}test_an_expired_token_is_rejected_by_every_route"],
        "revoked": [f"{ROUTES}test_a_revoked_token_is_rejected_by_every_route"],
        "wrong resource": [
            f"{TOKENS}test_a_token_of_one_tenant_is_rejected_in_another",
            f"{ROUTES}test_another_tenant_reads_and_changes_nothing",
            f"{ROUTES}test_each_route_needs_a_grant_for_its_action",
        ],
        "tasks and tasks-private": [
            f"{TOKENS}test_a_grant_for_tasks_does_not_cover_tasks_private",
            "tests.unit.test_grants::test_a_grant_covers_resources_that_begin_with_its_segments",
        ],
        "verified before any query": [
            ALTERED,
            f"{CREDENTIALS}test_malformed_credentials_do_not_reach_the_store",
        ],
    },
    "token leakage": {
        "list": [LAST_FOUR, SECRETS],
        "audit": [LAST_FOUR, SECRETS, "tests.conformance.test_audit::test_no_credential_or_digest_is_recorded"],
        "error": [
            SECRETS,
            "tests.http.test_bad_requests::test_an_error_response_does_not_repeat_the_token",
            "tests.unit.test_redaction::test_each_kind_of_secret_is_redacted_even_if_truncated",
            "tests.system.test_secrets::test_a_failed_start_prints_no_secret",
        ],
        "log": [SECRETS, "tests.system.test_logs::test_secrets_are_never_logged"],
        "page": [LAST_FOUR, SECRETS],
        "database": [LAST_FOUR, SECRETS, f"{CREDENTIALS}test_the_text_of_a_token_is_not_stored"],
        "printed by mistake": [
            "tests.unit.test_redaction::test_a_struct_with_a_secret_does_not_show_it",
            "tests.unit.test_redaction::test_settings_show_everything_except_secrets",
        ],
    },
    "OIDC": {
        "no state": [f"{SIGN_IN}test_an_altered_state_is_rejected"],
        "old state": [f"{SIGN_IN}test_an_expired_state_is_rejected"],
        "reused state": [f"{SIGN_IN}test_a_state_can_be_used_once"],
        "other browser's state": [f"{SIGN_IN}test_the_state_of_another_browser_is_rejected"],
        "unknown state": [f"{SIGN_IN}test_a_callback_without_a_login_is_rejected"],
        "wrong nonce": [WRONG_CLAIMS, WRONG_SIGNED_CLAIMS],
        "wrong aud": [WRONG_CLAIMS, WRONG_SIGNED_CLAIMS],
        "wrong azp": [WRONG_CLAIMS, WRONG_SIGNED_CLAIMS],
        "wrong iss": [WRONG_CLAIMS, WRONG_SIGNED_CLAIMS],
        "alg none": [f"{PROVIDER_TOKENS}test_an_unsigned_token_is_rejected"],
        "alg HS256": [
            f"{PROVIDER_TOKENS}test_a_token_signed_with_the_public_key_as_secret_is_rejected",
            f"{PROVIDER_TOKENS}test_a_token_signed_with_the_client_secret_is_rejected",
        ],
        "unknown crit": [TOKEN_HEADER],
        "expired": [WRONG_CLAIMS, WRONG_SIGNED_CLAIMS, f"{PROVIDER_TOKENS}test_a_token_expires"],
        "iat in the future": [WRONG_CLAIMS, WRONG_SIGNED_CLAIMS],
        "jku and jwk": [TOKEN_HEADER],
        "kid injection": [
            f"{PROVIDER_TOKENS}test_an_unknown_kid_is_rejected_without_other_requests",
            f"{PROVIDER_TOKENS}test_a_kid_that_is_not_text_is_rejected",
        ],
        "iss mix-up on callback": [
            f"{SIGN_IN}test_a_callback_of_another_issuer_is_rejected",
            f"{PROVIDER_RESPONSES}test_a_callback_of_another_issuer_is_rejected_before_its_code_is_used",
            f"{PROVIDER_RESPONSES}test_a_callback_without_an_issuer_is_rejected_if_the_provider_announced_it",
        ],
        "discovery issuer mismatch": [f"{PROVIDER_RESPONSES}test_a_configuration_of_another_issuer_is_rejected"],
        "code replay": [
            f"{SIGN_IN}test_a_real_provider_signs_people_in_and_accepts_a_code_once",
            "tests.system.test_real_provider::test_a_code_can_be_used_once",
        ],
        "unverified email": [
            WRONG_CLAIMS,
            "tests.http.test_people::test_an_unverified_email_does_not_match_an_invitation",
        ],
        "groups missing": [
            WRONG_CLAIMS,
            "tests.unit.test_id_token_claims::test_a_missing_groups_claim_is_rejected_if_groups_matter",
        ],
        "groups as a text": [
            WRONG_CLAIMS,
            "tests.unit.test_id_token_claims::test_an_invalid_groups_claim_is_rejected",
        ],
        "groups huge": [WRONG_CLAIMS, "tests.unit.test_id_token_claims::test_the_maximum_number_of_groups_is_accepted"],
        "next=//evil": [f"{SIGN_IN}test_the_next_page_cannot_be_on_another_site"],
    },
    "session": {
        "fixed before login": [
            f"{SESSIONS}test_a_cookie_set_before_the_sign_in_does_not_become_the_session",
            f"{SESSIONS}test_signing_in_again_ends_the_previous_session_of_the_browser",
        ],
        "after logout": [f"{SESSIONS}test_signing_out_ends_the_session"],
        "after group removal": [
            f"{REVOCATION}test_requests_and_streams_of_a_person_end_with_their_rights",
            f"{REVOCATION}test_requests_and_streams_of_a_personal_token_end_with_the_rights_of_its_owner",
        ],
        "idle": [
            f"{SESSIONS}test_an_idle_session_ends",
            "tests.conformance.test_session_use::test_a_used_session_stays_valid_and_an_idle_one_expires",
        ],
        "absolute expiry": [f"{SESSIONS}test_a_session_ends_after_its_maximum_age"],
        "not renewed": [f"{SESSIONS}test_a_session_becomes_stale_after_an_hour"],
        "__Host-": [f"{SESSIONS}test_a_session_cookie_must_be_exact_and_single"],
        "Secure, HttpOnly, SameSite": [f"{SIGN_IN}test_a_complete_login_creates_a_session"],
        "rejected everywhere": [f"{ROUTES}test_an_invalid_session_is_rejected_by_every_route"],
    },
    "CSRF": {
        "cross-site": [OTHER_SITE, f"{ROUTES}test_a_page_of_another_site_cannot_change_anything"],
        "same-site": [OTHER_SITE],
        "none and a foreign origin": [OTHER_SITE],
        "neither": [OTHER_SITE],
        "JSON as text/plain": [OTHER_SITE, f"{CROSS_SITE}test_a_content_type_that_a_form_can_send_creates_no_job"],
        "GET on a mutating route": [
            f"{CROSS_SITE}test_no_route_that_changes_something_accepts_get",
            f"{SESSIONS}test_get_changes_nothing",
        ],
        "HX-Request alone": [
            OTHER_SITE,
            f"{CROSS_SITE}test_headers_of_htmx_do_not_pass_the_cross_site_check_of_any_route",
        ],
    },
}


@pytest.mark.parametrize("row", THREATS)
def test_every_threat_has_existing_tests(row: str) -> None:
    for threat, tests in THREATS[row].items():
        assert tests, threat
        for test in tests:
            module, _, name = test.partition("::")
            assert name.startswith("test_"), test
            assert callable(getattr(import_module(module), name, None)), f"{threat}: there is no {test}"
