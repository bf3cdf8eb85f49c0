"""The requests of each route: well-formed ones that name objects inside the grant, outside it, and none that exist.

A row is a function that returns the requests for one caller. Objects inside the grant are used up by some of them.

No request uses a dedupe key or a worker ID of the outside. These are names of the whole tenant: a caller that chooses
one which is taken learns that it is, and `test_a_taken_name_reveals_nothing_else` checks the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from ingot.http.routes import PREFIX
from tests.http.two_worlds.direct_client import SERVER_PATHS, Call
from tests.http.two_worlds.world import (
    EQUAL_BYTES,
    LARGE,
    LATER,
    LOOKALIKE,
    MINE,
    MISSING,
    MISSING_BLOB,
    OTHER,
    OUTSIDE_BYTES,
    UNHURRIED_TYPE,
    WORKER,
    Attempt,
    Inside,
    Outside,
)

Builder = Callable[[Inside, Outside], Iterable[Call]]
ROWS: Final[dict[tuple[str, str], Builder]] = {}
TYPES: Final = {"inside": MINE, "outside": OTHER, "lookalike": LOOKALIKE, "missing": "gone.print"}
FORM: Final = "multipart/form-data; boundary=x"


def row(method: str, path: str) -> Callable[[Builder], Builder]:
    """Add the row of a route of the API, or with a path outside it, of the server."""

    def add(builder: Builder) -> Builder:
        key = method, path if path in SERVER_PATHS else PREFIX + path
        assert key not in ROWS, f"{key} has two rows"
        ROWS[key] = builder
        return builder

    return add


def get(about: str, path: str, query: dict[str, Any] | None = None, **options: Any) -> Call:
    texts = {name: str(value) for name, value in (query or {}).items()}
    return Call(about=about, method="GET", path=path, query=texts, **options)


def post(about: str, path: str, body: Any = None, **options: Any) -> Call:
    return Call(about=about, method=options.pop("method", "POST"), path=path, body=body, **options)


def simple(method: str, path: str, names: Callable[[Inside, Outside], dict[str, Any]], body: Any = None) -> None:
    """Add the row of a route whose requests differ only in the name in the path."""

    def build(inside: Inside, outside: Outside) -> Iterator[Call]:
        for about, name in names(inside, outside).items():
            full = path.replace("{}", str(name))
            yield Call(about=about, method=method, path=full, body=body)

    parameter = {"/jobs": "{id}", "/batches": "{batch}", "/pauses": "{type}", "/keys": "{key*}", "/secrets": "{name}"}
    first = "/" + path.split("/")[1]
    named = {"/admin/definitions/{}": "{type}", "/admin/tenants/{}": "{slug}"}.get(path) or parameter.get(first, "{id}")
    row(method, path.replace("{}", named))(build)


# -- names ------------------------------------------------------------------------------------------------------------


def outside_jobs(outside: Outside) -> dict[str, str]:
    return {
        "outside queued": outside.queued,
        "outside running": outside.running.id,
        "outside done": outside.done,
        "outside blocked": outside.blocked,
        "missing": MISSING,
    }


def all_jobs(inside: Inside, outside: Outside) -> dict[str, str]:
    return {f"inside {n}": job for n, job in enumerate(inside.jobs())} | outside_jobs(outside)


def attempts(inside: Inside, outside: Outside) -> dict[str, Attempt]:
    """A running attempt to use up, and others that the caller must not reach."""
    stale = Attempt(inside.attempts[0].id, 1)
    queued, done = Attempt(outside.queued, 1), Attempt(outside.done, outside.running.fence)
    outsides = {"outside running": outside.running, "outside queued": queued, "outside done": done}
    return {"inside": inside.attempts.pop(), "stale": stale, **outsides, "missing": Attempt(MISSING, 1)}


def types(inside: Inside, outside: Outside) -> dict[str, str]:
    return {**TYPES, "inside, with an object": f"mine.{inside.number:02}", "outside, with an object": "other"}


def blobs(inside: Inside, outside: Outside) -> dict[str, str]:
    return {"inside": inside.blob, "outside": outside.blob, "missing": MISSING_BLOB}


def uploads(inside: Inside, outside: Outside) -> dict[str, str]:
    return {
        **inside.uploads,
        "outside": outside.upload,
        "outside input": outside.input_upload,
        "outside output": outside.output_upload,
        "missing": MISSING,
    }


def keys(inside: Inside, outside: Outside) -> dict[str, str]:
    return {"inside": inside.key, "inside missing": "mine/none", "outside missing": "other/none"} | {
        f"outside {key}": key for key in outside.keys
    }


def secrets(inside: Inside, outside: Outside) -> dict[str, str]:
    names = {"inside": f"mine.{inside.number:02}", "inside missing": "mine.none", "missing": "none"}
    return names | {f"outside {name}": name for name in ("other", "mines.a", "mine-a")}


def workers(inside: Inside, outside: Outside) -> dict[str, str]:
    return {"inside": WORKER, "outside": "outside-worker", "outside idle": "outside-second", "missing": "no-worker"}


def own_workers(inside: Inside, outside: Outside) -> dict[str, str]:
    return {"own": inside.worker, **workers(inside, outside)}


def credentials(inside: Inside, outside: Outside) -> dict[str, str]:
    return {"outside": "outside-press", "missing": "no-press"}


# -- jobs -------------------------------------------------------------------------------------------------------------


def orders(inside: Inside, outside: Outside) -> Iterator[tuple[str, dict[str, Any]]]:
    """New jobs, each of which names something else."""
    for about, type in TYPES.items():
        yield about, {"type": type, "delay_seconds": LATER}
    yield "idempotency key of outside", {"type": MINE, "delay_seconds": LATER, "idempotency_key": "outside"}
    yield "batch of outside", {"type": MINE, "delay_seconds": LATER, "batch": "outside"}
    yield "after inside", {"type": MINE, "after": [inside.attempts[0].id]}
    for about, job in outside_jobs(outside).items():
        yield f"after {about}", {"type": MINE, "after": [job]}
    yield "after both", {"type": MINE, "after": [inside.attempts[0].id, outside.queued]}
    for about, blob in blobs(inside, outside).items():
        yield f"input {about}", {"type": MINE, "delay_seconds": LATER, "inputs": {"f": blob}}
        yield f"payload {about}", {"type": MINE, "delay_seconds": LATER, "payload_blob": blob}


@row("POST", "/jobs")
def create_job(inside: Inside, outside: Outside) -> Iterator[Call]:
    for about, order in orders(inside, outside):
        yield post(about, "/jobs", order)
    key = {"Idempotency-Key": "outside"}
    yield post("idempotency header of outside", "/jobs", {"type": MINE, "delay_seconds": LATER}, headers=key)
    for about, blob in blobs(inside, outside).items():
        file = {"name": "f", "size": len(OUTSIDE_BYTES), "blob_id": blob}
        yield post(f"upload of {about}", "/jobs", {"type": MINE, "uploads": [file]})
    data = {"name": "f", "size": len(OUTSIDE_BYTES), "data": OUTSIDE_BYTES}
    yield post("upload of outside with its bytes", "/jobs", {"type": MINE, "delay_seconds": LATER, "uploads": [data]})


@row("POST", "/jobs/batch")
def create_jobs(inside: Inside, outside: Outside) -> Iterator[Call]:
    for about, order in orders(inside, outside):
        yield post(about, "/jobs/batch", {"jobs": [{"type": MINE, "delay_seconds": LATER}, order]})


@row("GET", "/jobs")
def list_jobs(inside: Inside, outside: Outside) -> Iterator[Call]:
    yield get("all", "/jobs")
    for about, type in TYPES.items():
        yield get(about, "/jobs", {"type": type, "limit": 3}, pages=3)
    for status in ("queued", "running", "succeeded", "blocked"):
        yield get(f"inside {status}", "/jobs", {"type": MINE, "status": status, "limit": 2}, pages=2)
    yield get("inside with a tag", "/jobs", {"type": MINE, "tag": "red", "limit": 5}, pages=2)
    yield get("grant as a type", "/jobs", {"type": "mine"})
    yield get("cursor of another", "/jobs", {"type": MINE, "cursor": outside.cursor})


@row("GET", "/jobs/summary")
def summary(inside: Inside, outside: Outside) -> Iterator[Call]:
    yield get("all", "/jobs/summary")
    for about, type in TYPES.items():
        yield get(about, "/jobs/summary", {"type": type})
    yield get("inside with a tag", "/jobs/summary", {"type": MINE, "tag": "red"})
    yield get("inside queued", "/jobs/summary", {"type": MINE, "status": "queued"})


for suffix in ("", "/attempts", "/explain", "/files", "/wait"):
    simple("GET", f"/jobs/{{}}{suffix}", all_jobs)
ROWS["GET", f"{PREFIX}/jobs/{{id}}/wait"] = lambda inside, outside: (
    get(about, f"/jobs/{job}/wait", {"wait_seconds": 0}) for about, job in all_jobs(inside, outside).items()
)


@row("GET", "/jobs/{id}/log")
def log(inside: Inside, outside: Outside) -> Iterator[Call]:
    stream = {"accept": "text/event-stream"}
    for about, job in all_jobs(inside, outside).items():
        yield get(about, f"/jobs/{job}/log")
    for about, job in {"done": inside.done, "outside": outside.done, "missing": MISSING}.items():
        yield get(f"stream of {about}", f"/jobs/{job}/log", headers=stream)


@row("PATCH", "/jobs/{id}")
def change(inside: Inside, outside: Outside) -> Iterator[Call]:
    for about, job in {"inside": inside.queued[0], **outside_jobs(outside)}.items():
        yield Call(about=about, method="PATCH", path=f"/jobs/{job}", body={"priority": 2, "tags": ["changed"]})


simple("POST", "/jobs/{}/cancel", lambda inside, outside: {"inside": inside.queued.pop(), **outside_jobs(outside)})
simple("POST", "/jobs/{}/retry", lambda inside, outside: {"inside": inside.failed.pop(), **outside_jobs(outside)})
simple("GET", "/batches/{}", lambda inside, outside: {"outside": "outside", "missing": "none"})
row("GET", "/definitions")(lambda inside, outside: [get("all", "/definitions")])
row("GET", "/pauses")(lambda inside, outside: [get("all", "/pauses")])
row("GET", "/status")(lambda inside, outside: [get("all", "/status")])
row("GET", "/metrics")(lambda inside, outside: [get("all", "/metrics")])
row("GET", "/openapi.json")(lambda inside, outside: [get("all", "/openapi.json")])
simple("PUT", "/pauses/{}", types)
simple("DELETE", "/pauses/{}", types)


@row("POST", "/jobs/actions")
def bulk_action(inside: Inside, outside: Outside) -> Iterator[Call]:
    for about, type in TYPES.items():
        for action in ({"action": "cancel"}, {"action": "retry"}, {"action": "change", "priority": 3}):
            red = {"type": type, "tag": "red"}
            yield post(f"{action['action']} {about}", "/jobs/actions", {**action, "filter": red, "dry_run": True})
            yield post(f"{action['action']} {about}", "/jobs/actions", {**action, "filter": red, "limit": 2})
    yield post("cancel all", "/jobs/actions", {"action": "cancel", "all": True, "dry_run": True})
    yield post("cancel a tag", "/jobs/actions", {"action": "cancel", "filter": {"tag": "red"}})


# -- work -------------------------------------------------------------------------------------------------------------


@row("POST", "/jobs/claim")
def claim(inside: Inside, outside: Outside) -> Iterator[Call]:
    for about, type in TYPES.items():
        yield post(about, "/jobs/claim", {"types": [type], "limit": 2, "worker_id": inside.worker})
    yield post("both", "/jobs/claim", {"types": [MINE, OTHER], "limit": 2})
    yield post("worker of outside", "/jobs/claim", {"types": [MINE], "worker_id": "outside-worker"})


def settling(verb: str, body: dict[str, Any]) -> None:
    def build(inside: Inside, outside: Outside) -> Iterator[Call]:
        for about, attempt in attempts(inside, outside).items():
            yield post(about, f"/jobs/{attempt.id}/{verb}", {"fence": attempt.fence, **body})

    row("POST", f"/jobs/{{id}}/{verb}")(build)


settling("heartbeat", {"progress": {"percent": 10}, "log": "a line\n", "log_offset": 0})
settling("complete", {"result": {"a": 1}})
settling("fail", {"error": "broken"})
settling("release", {})
settling("snooze", {"seconds": LATER})


@row("POST", "/jobs/settle")
def settle(inside: Inside, outside: Outside) -> Iterator[Call]:
    named = attempts(inside, outside).items()
    entries = [{"outcome": "succeeded", "id": one.id, "fence": one.fence} for _, one in named]
    yield post("all", "/jobs/settle", {"jobs": entries})
    snoozed = [{"outcome": "snoozed", "id": one.id, "fence": one.fence, "seconds": 1} for _, one in named]
    yield post("all again", "/jobs/settle", {"jobs": snoozed})


@row("POST", "/jobs/{id}/downloads")
def download(inside: Inside, outside: Outside) -> Iterator[Call]:
    for about, attempt in attempts(inside, outside).items():
        for name in ("f", "none"):
            body = {"fence": attempt.fence, "kind": "input", "name": name}
            yield post(f"{about} {name}", f"/jobs/{attempt.id}/downloads", body)


@row("POST", "/jobs/{id}/uploads")
def begin_file(inside: Inside, outside: Outside) -> Iterator[Call]:
    for about, attempt in attempts(inside, outside).items():
        body = {"fence": attempt.fence, "size": 2, "name": "f", "data": b"ab"}
        yield post(about, f"/jobs/{attempt.id}/uploads", body)
    attempt = inside.attempts.pop()
    for kind in ("output", "checkpoint"):
        for about, blob in blobs(inside, outside).items():
            body = {"fence": attempt.fence, "kind": kind, "name": f"{kind}-{about}", "blob_id": blob}
            sized = {**body, "size": len(OUTSIDE_BYTES)}
            yield post(f"{kind} with the ID of {about}", f"/jobs/{attempt.id}/uploads", sized)


def continuing(verb: str, body: dict[str, Any]) -> None:
    def build(inside: Inside, outside: Outside) -> Iterator[Call]:
        attempt = inside.attempts[0]
        for about, upload in uploads(inside, outside).items():
            yield post(about, f"/jobs/{attempt.id}/uploads/{upload}/{verb}", {"fence": attempt.fence, **body})
        path = f"/jobs/{outside.running.id}/uploads/{outside.output_upload}/{verb}"
        yield post("outside attempt", path, {"fence": outside.running.fence, **body})

    row("POST", f"/jobs/{{id}}/uploads/{{upload}}/{verb}")(build)


PARTS: Final = {"parts": [{"number": 1, "size": LARGE, "sha256": "0" * 64}]}
continuing("renew", {})
continuing("parts", PARTS)
continuing("complete", {})


# -- workers ----------------------------------------------------------------------------------------------------------


@row("POST", "/workers")
def register(inside: Inside, outside: Outside) -> Iterator[Call]:
    for about, type in TYPES.items():
        yield post(about, "/workers", {"id": inside.worker, "types": [type]})
    yield post("both", "/workers", {"id": inside.worker, "types": [MINE, OTHER]})


row("GET", "/workers")(lambda inside, outside: [get("all", "/workers")])
simple("GET", "/workers/{}", workers)


@row("POST", "/workers/{id}/heartbeat")
def worker_heartbeat(inside: Inside, outside: Outside) -> Iterator[Call]:
    named = attempts(inside, outside).items()
    beats = [{"id": one.id, "fence": one.fence, "log": "x", "log_offset": 0} for _, one in named]
    for about, worker in own_workers(inside, outside).items():
        yield post(about, f"/workers/{worker}/heartbeat", {"jobs": beats, "wait_seconds": 0})


simple("POST", "/workers/{}/drain", own_workers)
simple("DELETE", "/workers/{}", own_workers)


# -- events -----------------------------------------------------------------------------------------------------------


@row("GET", "/events")
def list_events(inside: Inside, outside: Outside) -> Iterator[Call]:
    yield get("all", "/events", {"limit": 2}, pages=2)
    yield get("after one inside", "/events", {"after": inside.event, "limit": 5})


@row("POST", "/events")
def publish(inside: Inside, outside: Outside) -> Iterator[Call]:
    for about, name in {"inside": "mine.new", "outside": "other.new", "lookalike": "mines.new"}.items():
        yield post(about, "/events", {"name": name})
    yield post("key of inside", "/events", {"name": "mine.new", "dedupe_key": f"mine.{inside.number:02}"})


@row("GET", "/events/stream")
def stream(inside: Inside, outside: Outside) -> Iterator[Call]:
    last = inside.last_event.encode()
    for query in ({}, {"name": "mine"}, {"name": "other,mine,job"}):
        yield get(query.get("name", "all"), "/events/stream", {**query, "after": inside.event}, until=last)


# -- keys and blobs ---------------------------------------------------------------------------------------------------


@row("GET", "/keys")
def list_keys(inside: Inside, outside: Outside) -> Iterator[Call]:
    for about, prefix in {"inside": "mine/", "grant": "mine", "letters": "min", "outside": "other/", "all": ""}.items():
        yield get(about, "/keys", {"prefix": prefix, "limit": 2}, pages=3)
    yield get("inside", "/keys", {"prefix": f"mine/{inside.number:02}/", "limit": 1}, pages=4)
    yield get("cursor of another", "/keys", {"prefix": "mine", "cursor": outside.cursor})


@row("POST", "/keys")
def post_key(inside: Inside, outside: Outside) -> Iterator[Call]:
    for about, key in {
        "inside": f"mine/{inside.number:02}/form",
        "outside": "other/b",
        "missing": "other/form",
    }.items():
        parts = (
            f'--x\r\ncontent-disposition: form-data; name="key"\r\n\r\n{key}\r\n'
            f'--x\r\ncontent-disposition: form-data; name="blob"; filename="f"\r\n\r\nform\r\n--x--\r\n'
        )
        yield post(about, "/keys", parts.encode(), headers={"content-type": FORM})


@row("PUT", "/keys/{key*}")
def put_key(inside: Inside, outside: Outside) -> Iterator[Call]:
    for about, key in keys(inside, outside).items():
        yield Call(about=about, method="PUT", path=f"/keys/{key}", body=b"new")
    for about, data in {"equal": EQUAL_BYTES, "bytes of outside": OUTSIDE_BYTES}.items():
        yield Call(about=about, method="PUT", path=f"/keys/mine/{inside.number:02}/{len(about)}", body=data)
    for about, blob in blobs(inside, outside).items():
        match, path = {"If-Match": f'"{blob}"'}, f"/keys/{inside.key}"
        yield Call(about=f"if it has {about}", method="PUT", path=path, body=b"%d" % inside.number, headers=match)
        path = f"/keys/mine/{inside.number:02}/claimed"
        yield Call(about=f"as {about}", method="PUT", path=path, body=b"not these", query={"blob_id": blob})


simple("GET", "/keys/{}", keys)
simple("DELETE", "/keys/{}", keys)


@row("GET", "/usage")
def usage(inside: Inside, outside: Outside) -> Iterator[Call]:
    yield get("tenant", "/usage")
    yield get("caller", "/usage", {"of": "caller"})


@row("POST", "/blobs/uploads")
def begin_upload(inside: Inside, outside: Outside) -> Iterator[Call]:
    size = len(OUTSIDE_BYTES)
    for about, blob in blobs(inside, outside).items():
        for place in ({"key": f"mine/{inside.number:02}/{about}"}, {"payload_of": MINE}, {}):
            body = {"size": 1 if about == "inside" else size, "blob_id": blob, **place}
            yield post(f"{about} {','.join(place)}", "/blobs/uploads", body)
    for key in ("other/b", "other/none"):
        yield post(f"to {key}", "/blobs/uploads", {"size": 3, "key": key})
    yield post("payload of outside", "/blobs/uploads", {"size": 3, "payload_of": OTHER})


simple("GET", "/blobs/uploads/{}", uploads)
simple("POST", "/blobs/uploads/{}/parts", uploads, PARTS)
simple("POST", "/blobs/uploads/{}/complete", uploads, {})
simple(
    "DELETE",
    "/blobs/uploads/{}",
    lambda inside, outside: {"inside": inside.uploads["spare"], "outside": outside.upload, "missing": MISSING},
)


def signed(method: str, path: str, body: bytes | None = None) -> None:
    """Add the row of a route with a signed URL: one for an object inside, also changed to name others."""

    def build(inside: Inside, outside: Outside) -> Iterator[Call]:
        url, named, other = inside.blob_url, inside.blob, outside.blob
        if "upload" in path:
            url, named, other = inside.upload_url, inside.uploads["payload"], outside.upload
        headers = {"Upload-Offset": "0"} if method == "PATCH" else {}
        for about, sent in {"inside": url, "outside": url.replace(named, other), "unsigned": url[:-9]}.items():
            yield Call(about=about, method=method, path=sent, body=body, headers=headers)

    row(method, path)(build)


signed("GET", "/blobs/{id}/bytes")
signed("GET", "/blobs/uploads/{id}/bytes")
signed("PATCH", "/blobs/uploads/{id}/bytes", b"some")
signed("PUT", "/blobs/uploads/{id}/bytes", b"some more")
for suffix in ("", "/url", "/references"):
    simple("GET", f"/blobs/{{}}{suffix}", blobs)
simple("POST", "/blobs/{}/verify", blobs)


# -- secrets and administration ---------------------------------------------------------------------------------------


@row("GET", "/secrets")
def list_secrets(inside: Inside, outside: Outside) -> Iterator[Call]:
    for prefix in ("", "mine", "mine.", "other"):
        yield get(f"prefix {prefix}", "/secrets", {"prefix": prefix, "limit": 2}, pages=3)


simple("GET", "/secrets/{}", secrets)
simple("PUT", "/secrets/{}", secrets, {"value": "new"})
simple("DELETE", "/secrets/{}", secrets)
row("GET", "/admin/definitions")(lambda inside, outside: [get("all", "/admin/definitions")])
simple("GET", "/admin/definitions/{}", types)
simple("PUT", "/admin/definitions/{}", types, UNHURRIED_TYPE)
row("POST", "/admin/keys/purge")(lambda inside, outside: [post("all", "/admin/keys/purge", {"all": True})])
row("POST", "/blobs/collect")(lambda inside, outside: [post("all", "/blobs/collect", {})])
row("POST", "/admin/secrets/rotate-key")(lambda inside, outside: [post("all", "/admin/secrets/rotate-key")])
row("GET", "/admin/audit")(lambda inside, outside: [get("all", "/admin/audit")])


def administrate(plural: str, names: Callable[[Inside, Outside], dict[str, str]], body: Any, *verbs: str) -> None:
    """Add the rows of objects that only grants for the whole tenant cover."""
    path = f"/admin/{plural}"
    row("GET", path)(lambda inside, outside: [get("all", path)])
    if body is not None:
        row("POST", path)(lambda inside, outside: [post("new", path, body)])
    simple("GET", f"{path}/{{}}", names)
    for verb in verbs:
        method, _, rest = verb.partition(" ")
        simple(method, f"{path}/{{}}{rest}", names, {"role": "viewer"} if method == "PATCH" else None)


administrate("tenants", lambda *_: {"missing": "none"}, {"slug": "new"}, "DELETE")
simple("PATCH", "/admin/tenants/{}", lambda *_: {"missing": "none"}, {"groups": {}})
new_token = {"description": "x", "grants": [{"action": "jobs.read"}]}
administrate("tokens", lambda inside, outside: {"outside": outside.token, "missing": MISSING}, new_token, "DELETE")
lifecycle = ("POST /regenerate", "POST /enable", "POST /disable")
administrate("workers", credentials, {"id": "new-press"}, *lifecycle)
new_member = {"role": "viewer", "email": "new@example.com"}
administrate(
    "members", lambda _, outside: {"outside": outside.member, "missing": MISSING}, new_member, "PATCH", "DELETE"
)
administrate("users", lambda *_: {"missing": MISSING}, None, "POST /disable", "POST /enable", "GET /sessions")
row("DELETE", "/admin/users/{id}/sessions/{session}")(
    lambda *_: [Call(about="missing", method="DELETE", path=f"/admin/users/{MISSING}/sessions/{MISSING}")]
)
row("POST", "/admin/links")(lambda *_: [post("new", "/admin/links")])
row("GET", "/me")(lambda *_: [get("self", "/me")])
for plural in ("sessions", "tokens"):
    row("GET", f"/me/{plural}")(lambda *_, plural=plural: [get("all", f"/me/{plural}")])
    simple("DELETE", f"/me/{plural}/{{}}", lambda inside, outside: {"outside": outside.token, "missing": MISSING})
row("POST", "/me/tokens")(lambda *_: [post("new", "/me/tokens", new_token)])
row("GET", "/me/invitations")(lambda *_: [get("all", "/me/invitations")])
for verb in ("accept", "decline"):
    simple("POST", f"/me/invitations/{{}}/{verb}", lambda _, outside: {"outside": outside.member, "missing": MISSING})
for verb in ("choose", "leave"):
    row("POST", f"/me/tenants/{{tenant}}/{verb}")(
        lambda *_, verb=verb: [post("missing", f"/me/tenants/{MISSING}/{verb}")]
    )
