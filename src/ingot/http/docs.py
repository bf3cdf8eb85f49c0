"""The page that people read: the OpenAPI document as HTML, without a script."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from typing import Any, Final

import msgspec

from ingot.kernel.errors import IngotError

STYLE: Final = files("ingot.http").joinpath("docs.css").read_text(encoding="utf-8")
STYLE_DIGEST: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{STYLE_DIGEST}'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
NOT_TOLD: Final = frozenset(  # Kinds of errors that others are kinds of, and those that keep a server from starting.
    {
        "address_in_use",
        "conflict",
        "error",
        "invalid_setting",
        "not_found",
        "otel_missing",
        "secret_key_unusable",
        "store_locked",
        "store_too_new",
        "too_many",
    }
)
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
FORM: Final = "multipart/form-data"
ANY: Final = "*/*"
FILE: Final = '"$FILE"'
_CODE = re.compile(r"`([^`]+)`")
Schema = dict[str, Any]


def page_of(document: dict[str, Any]) -> bytes:
    """The page of an OpenAPI document."""
    shapes = document["components"]["schemas"]
    rooms = {tag["name"]: list(_of_room(document, tag["name"])) for tag in document["tags"]}
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Ingot: the API</title><style>{STYLE}</style></head><body>",
        '<a class="skip" href="#routes">To the routes</a><div class="page">',
        f"<header><h1>Ingot {_text(document['info']['version'])}: the API</h1><p>{_words(INTRODUCTION)}</p></header>",
        _contents(rooms),
        '<main id="routes">',
        *(_room(name, operations, shapes) for name, operations in rooms.items()),
        _errors(known_errors()),
        _shapes(shapes),
        "</main></div></body></html>",
    ]
    return "".join(parts).encode()


INTRODUCTION: Final = (
    "Requests and answers are JSON. A caller sends `Authorization: Bearer ingot_…`, a worker its `X-Worker-ID` and "
    "`X-Worker-Secret`. People sign in at `/auth/login`, and their browser sends a cookie. HEAD is answered wherever "
    "GET is, but for streams. What is wrong is told as a problem (RFC 9457) whose `code` stays the same. The same as "
    "an OpenAPI document is at `/openapi.json`, for who has a credential."
)


def known_errors() -> list[type[IngotError]]:
    """Every kind of error that a caller can be told of, by status and code."""
    found: dict[str, type[IngotError]] = {}
    waiting: list[type[IngotError]] = [IngotError]
    while waiting:
        kind = waiting.pop()
        waiting.extend(kind.__subclasses__())
        ours = kind.__module__.startswith("ingot.") and not kind.__module__.startswith("ingot.client.")
        if ours and kind.code not in NOT_TOLD:
            found[kind.code] = kind
    return sorted(found.values(), key=lambda kind: (kind.status, kind.code))


# -- parts of the page ----------------------------------------------------------------------------------------


def _of_room(document: dict[str, Any], room: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if room in operation["tags"]:
                yield method.upper(), path, operation


def _contents(rooms: dict[str, list[tuple[str, str, dict[str, Any]]]]) -> str:
    parts = ['<nav aria-label="Routes">']
    for name, operations in rooms.items():
        links = "".join(
            f'<li><a href="#{_text(operation["operationId"])}">{_method(method)} {_text(path)}</a></li>'
            for method, path, operation in operations
        )
        parts.append(f"<details><summary>{_text(name)}</summary><ul>{links}</ul></details>")
    parts.append('<ul><li><a href="#errors">Errors</a></li><li><a href="#shapes">Shapes</a></li></ul></nav>')
    return "".join(parts)


def _room(name: str, operations: Iterable[tuple[str, str, dict[str, Any]]], shapes: Schema) -> str:
    label = f"room-{_text(name)}"
    whole = "".join(_operation(*operation, shapes) for operation in operations)
    return f'<section aria-labelledby="{label}"><h2 id="{label}">{_text(name)}</h2>{whole}</section>'


def _operation(method: str, path: str, operation: dict[str, Any], shapes: Schema) -> str:
    label = _text(operation["operationId"])
    parts = [
        f'<article aria-labelledby="{label}"><h3 id="{label}"><a href="#{label}">{_method(method)} ',
        f"<code>{_text(path)}</code></a></h3><p>{_words(operation['summary'])}</p>",
        f'<p class="needs">{_words(_needs(operation))}</p>',
    ]
    if operation["parameters"]:
        rows = [
            (one["name"], {**one["schema"], "description": one.get("description", "")}, one["required"], one["in"])
            for one in operation["parameters"]
        ]
        parts.append(_table("Parameters", rows, shapes))
    kind, body = _body(operation)
    if kind in (JSON, FORM):
        parts.extend(_bodies(body["schema"], shapes))
    elif kind is not None:
        parts.append(f"<h4>Body</h4><p>The bytes as they are: {_code(kind)}, or what else they are.</p>")
    parts.append(f"<h4>Answers</h4><ul>{''.join(_answers(operation['responses'], shapes))}</ul>")
    parts.extend(_examples(method, path, operation))
    return "".join([*parts, "</article>"])


def _bodies(schema: Schema, shapes: Schema) -> Iterator[str]:
    """The table of a body, or one for each kind that it can be of."""
    if "anyOf" not in schema:
        yield _table("Body", _fields(_resolved(schema, shapes)), shapes)
        return
    for one in schema["anyOf"]:
        resolved = _resolved(one, shapes)
        yield _table(f"Body, {_plain(resolved['title'])}: {resolved['description']}", _fields(resolved), shapes)


def _needs(operation: dict[str, Any]) -> str:
    if not operation["security"] and "description" not in operation:
        return "Open to anybody."
    return str(operation.get("description", "Needs a credential, whatever it allows."))


def _answers(responses: dict[str, Any], shapes: Schema) -> Iterator[str]:
    for status, answer in responses.items():
        if status == "default":
            yield '<li>Otherwise a <a href="#errors">problem</a></li>'
            continue
        kinds = [
            _type(content["schema"], shapes) if kind == JSON else _code(kind)
            for kind, content in answer.get("content", {}).items()
        ]
        yield f"<li>{_code(status)} {_text(answer['description'])}{': ' if kinds else ''}{', or '.join(kinds)}</li>"


def _table(title: str, rows: Iterable[tuple[str, Schema, bool, str]], shapes: Schema) -> str:
    lines = "".join(
        f'<tr><th scope="row">{_code(name)}</th><td>{_type(schema, shapes)}{_bounds(schema)}</td>'
        f"<td>{'required' if required else 'optional'}{_default(schema)}{_in_the(place)}</td>"
        f"<td>{_words(schema.get('description', ''))}</td></tr>"
        for name, schema, required, place in rows
    )
    title, label = _words(title), _text(title)
    if not lines:
        return f"<h4>{title}</h4><p>None of its fields: <code>{{}}</code>.</p>"
    head = '<thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col">Given</th>'
    head += '<th scope="col">Meaning</th></tr></thead>'
    table = f"<table>{head}<tbody>{lines}</tbody></table>"
    return f'<h4>{title}</h4><div class="wide" tabindex="0" role="group" aria-label="{label}">{table}</div>'


def _in_the(place: str) -> str:
    return f", in the {_text(place)}" if place else ""


def _errors(kinds: Iterable[type[IngotError]]) -> str:
    entries = "".join(
        f'<div id="{_text(kind.code)}"><dt>{_code(kind.code)} <span class="needs">{kind.status}</span></dt>'
        f"<dd>{_words(kind.title())} {_words(str(kind.hint))}</dd></div>"
        for kind in kinds
    )
    return f'<section aria-labelledby="errors"><h2 id="errors">Errors</h2><dl>{entries}</dl></section>'


def _shapes(shapes: Schema) -> str:
    parts = ['<section aria-labelledby="shapes"><h2 id="shapes">Shapes</h2>']
    for name, schema in sorted(shapes.items()):
        label = _label(name)
        parts.append(f'<article aria-labelledby="{label}"><h3 id="{label}">{_text(_plain(name))}</h3>')
        parts.append(f"<p>{_words(schema.get('description', ''))}</p>")
        if "properties" in schema:
            parts.append(_table("Fields", _fields(schema), shapes))
        else:
            parts.append(f"<p>{_type(schema, shapes)}</p>")
        parts.append("</article>")
    return "".join([*parts, "</section>"])


# -- examples -------------------------------------------------------------------------------------------------


def _examples(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    """Requests that can be sent as they are: one, and where an answer can be a stream, one that follows it."""
    kinds = [kind for answer in operation["responses"].values() for kind in answer.get("content", {})]
    if EVENTS not in kinds:
        yield _example(method, path, operation, ["curl"])
    elif JSON not in kinds:
        yield _example(method, path, operation, ["curl", "-N"])
    else:
        yield _example(method, path, operation, ["curl"])
        yield _example(method, path, operation, ["curl", "-N", f"-H 'Accept: {EVENTS}'"])


def _example(method: str, path: str, operation: dict[str, Any], words: list[str]) -> str:
    if method != "GET":
        words = [*words, "-X", method]
    place = re.sub(r"\{(\w+)\}", lambda found: f"${found[1].upper()}", path)
    words = [*words, f'"http://127.0.0.1:8080{place}"']
    if operation["security"]:
        words.append('-H "Authorization: Bearer $TOKEN"')
    words.extend(_sent(operation))
    line = " ".join(words)
    return f'<pre tabindex="0" aria-label="Example"><code>{_text(line)}</code></pre>'


def _sent(operation: dict[str, Any]) -> Iterator[str]:
    """How curl sends a body, and keeps an answer that is a file."""
    kind, body = _body(operation)
    if kind == JSON:
        said = msgspec.json.encode(body.get("example", {})).decode()
        yield f"-H 'Content-Type: application/json' -d '{said}'"
    elif kind == FORM:
        fields = body["schema"]["properties"]
        yield from (
            f"-F {name}={f'@{FILE}' if 'type' not in of else f'${name.upper()}'}" for name, of in fields.items()
        )
    elif kind is not None:
        yield f"--data-binary @{FILE}"
    if ANY in operation["responses"].get("200", {}).get("content", {}):
        yield f"-o {FILE}"


# -- schemas in words -----------------------------------------------------------------------------------------


def _body(operation: dict[str, Any]) -> tuple[str | None, Schema]:
    """The content type of what it takes, its schema, and an example of it."""
    if "requestBody" not in operation:
        return None, {}
    ((kind, body),) = operation["requestBody"]["content"].items()
    return kind, body


def _resolved(schema: Schema, shapes: Schema) -> Schema:
    if "$ref" in schema:
        found: Schema = shapes[schema["$ref"].rpartition("/")[2]]
        return found
    return schema


def _fields(schema: Schema) -> list[tuple[str, Schema, bool, str]]:
    required = schema.get("required", ())
    return [(name, of, name in required, "") for name, of in schema.get("properties", {}).items()]


def _type(schema: Schema, shapes: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{_label(name)}">{_text(_plain(name))}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(one, shapes) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(_code(str(value)) for value in schema["enum"])
    if "const" in schema:
        return _code(str(schema["const"]))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_type(schema.get('items') or {}, shapes)}{_bounds(schema.get('items') or {})}"
    if kind == "object" and "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'], shapes)}"
    return _text(
        schema.get("format") or {"string": "text", "integer": "whole number", None: "any JSON"}.get(kind, kind)
    )


def _bounds(schema: Schema) -> str:
    """Where values begin and end, in words."""
    parts = [_bounds(one) for one in schema.get("anyOf", ())]
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        parts.append(f", {low:g} to {high:,}")
    if (longest := schema.get("maxLength")) is not None:
        parts.append(f", up to {longest:,} characters")
    if (most := schema.get("maxItems")) is not None:
        parts.append(f"; up to {most:,} of them")
    if "pattern" in schema:
        parts.append(f", as {_code(schema['pattern'])}")
    return "".join(parts)


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value is None or value in ([], {}):
        return ""
    return f", else {_code(msgspec.json.encode(value).decode())}"


def _label(name: str) -> str:
    return f"shape-{_text(name)}"


def _plain(name: str) -> str:
    """The name of a shape as people write it."""
    return re.sub(r"_(\w+)_$", r" of \1", name)


def _method(method: str) -> str:
    return f'<span class="method">{_text(method)}</span>'


def _code(value: str) -> str:
    return f"<code>{_text(value)}</code>"


def _words(value: str) -> str:
    """A sentence, in which what stands between backticks is code."""
    return _CODE.sub(r"<code>\1</code>", _text(value))


def _text(value: object) -> str:
    return escape(str(value))
