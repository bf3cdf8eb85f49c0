"""Caching: browsers and proxies store no response, except downloads, the style sheet and the documentation."""

from __future__ import annotations

from pathlib import Path

from tests.http.serving import OWN_PAGE, PEOPLE, serving

READ = {"description": "mine", "grants": [{"action": "jobs.read"}]}


async def test_responses_with_secrets_and_personal_data_are_not_stored(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", PEOPLE) as served:
        headers = await served.sign_in("operators", email="ada@example.com", email_verified=True)
        job = await served.make_job(payload={"secret": "of a tenant"})
        paths = ["/me", "/me/sessions", "/me/tokens", "/admin/users", "/admin/members", "/admin/tokens", "/admin/audit"]
        paths += ["/admin/tenants", "/admin/workers", "/jobs", f"/jobs/{job['id']}", "/events", "/keys", "/status"]
        for path in paths:
            for credential in (headers, {"authorization": f"Bearer {served.operator}"}, {}):
                response = await served.client.get(f"/api/v1{path}", headers=credential)
                assert response.headers["cache-control"] == "no-store", (path, response.status_code)
        for path, body in (("/me/tokens", READ), ("/admin/workers", {"id": "press"}), ("/admin/links", {})):
            token = {"authorization": f"Bearer {served.operator}"}
            response = await served.client.post(
                f"/api/v1{path}", headers=headers if path.startswith("/me") else token, json=body
            )
            assert (response.status_code, response.headers["cache-control"]) == (201, "no-store"), path
        assert (await served.client.get("/nowhere")).headers["cache-control"] == "no-store"


async def test_a_download_is_revalidated_and_public_pages_may_be_cached(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as served:
        assert (await served.call("PUT", "/keys/a.txt", content=b"hello")).headers["cache-control"] == "no-store"
        download = await served.call("GET", "/keys/a.txt")
        assert download.headers["cache-control"] == "private, no-cache"
        unchanged = await served.call("GET", "/keys/a.txt", headers={"if-none-match": download.headers["etag"]})
        assert (unchanged.status_code, unchanged.headers["cache-control"]) == (304, "private, no-cache")
        assert (await served.client.get("/static/ingot.css")).headers["cache-control"] == "max-age=3600"
        assert (await served.client.get("/docs")).headers["cache-control"] == "no-cache"


async def test_signing_out_clears_what_the_browser_stored(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", PEOPLE) as served:
        headers = await served.sign_in("operators")
        response = await served.client.post("/auth/logout", headers=headers)
        assert response.headers["clear-site-data"] == '"cache", "storage"'
        ended = await served.client.post("/auth/logout", headers=OWN_PAGE)
        assert ended.headers["clear-site-data"] == '"cache", "storage"'
