"""The page that people read: the OpenAPI document as HTML, without a script."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any, Final

import msgspec
from markupsafe import Markup, escape

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
UNDOCUMENTED_ERRORS: Final = (
    frozenset(  # Kinds of errors that others are kinds of, and those that keep a server from starting.
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
)
JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
FORM: Final = "multipart/form-data"
ANY_CONTENT_TYPE: Final = "*/*"
FILE_VARIABLE: Final = '"$FILE"'
_CODE = re.compile(r"`([^`]+)`")
Schema = dict[str, Any]


def render_docs_page(document: dict[str, Any]) -> bytes:
    """The page of an OpenAPI document."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - nobody may ask for the page

    shapes = document["components"]["schemas"]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    filters: dict[str, Callable[..., Any]] = {
        "bounds": _bounds_text,
        "else_value": _else_value,
        "examples": _examples,
        "fields": _field_rows,
        "needs": _needs,
        "parameters": _parameters,
        "plain": _display_name,
        "resolved": lambda schema: shapes[_name(schema)] if "$ref" in schema else schema,
        "type": _type_html,
        "words": _prose_html,
    }
    environment.filters.update(filters)
    page = environment.from_string(files("ingot.http").joinpath("docs.html").read_text(encoding="utf-8"))
    rooms = {tag["name"]: list(_operations_of_tag(document, tag["name"])) for tag in document["tags"]}
    version, style = document["info"]["version"], Markup(STYLE)
    text = page.render(rooms=rooms, shapes=shapes, errors=known_errors(), version=version, style=style)
    return text.lstrip().encode()


def known_errors() -> list[type[IngotError]]:
    """Every kind of error that a caller can be told of, by status and code."""
    found: dict[str, type[IngotError]] = {}
    waiting: list[type[IngotError]] = [IngotError]
    while waiting:
        kind = waiting.pop()
        waiting.extend(kind.__subclasses__())
        ours = kind.__module__.startswith("ingot.") and not kind.__module__.startswith("ingot.client.")
        if ours and kind.code not in UNDOCUMENTED_ERRORS:
            found[kind.code] = kind
    return sorted(found.values(), key=lambda kind: (kind.status, kind.code))


# -- what stands in it ----------------------------------------------------------------------------------------


def _operations_of_tag(document: dict[str, Any], room: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if room in operation["tags"]:
                yield method.upper(), path, operation


def _needs(operation: dict[str, Any]) -> str:
    if not operation["security"] and "description" not in operation:
        return "Open to anybody."
    return str(operation.get("description", "Needs a credential, whatever it allows."))


def _parameters(parameters: list[dict[str, Any]]) -> list[tuple[str, Schema, bool, str]]:
    return [
        (one["name"], {**one["schema"], "description": one.get("description", "")}, one["required"], one["in"])
        for one in parameters
    ]


def _field_rows(schema: Schema) -> list[tuple[str, Schema, bool, str]]:
    required = schema.get("required", ())
    return [(name, of, name in required, "") for name, of in schema.get("properties", {}).items()]


# -- examples -------------------------------------------------------------------------------------------------


def _examples(operation: dict[str, Any], method: str, path: str) -> Iterator[str]:
    """Requests that can be sent as they are: one, and where an answer can be a stream, one that follows it."""
    kinds = [kind for answer in operation["responses"].values() for kind in answer.get("content", {})]
    if EVENT_STREAM not in kinds:
        yield _example(method, path, operation, ["curl"])
    elif JSON not in kinds:
        yield _example(method, path, operation, ["curl", "-N"])
    else:
        yield _example(method, path, operation, ["curl"])
        yield _example(method, path, operation, ["curl", "-N", f"-H 'Accept: {EVENT_STREAM}'"])


def _example(method: str, path: str, operation: dict[str, Any], words: list[str]) -> str:
    if method != "GET":
        words = [*words, "-X", method]
    place = re.sub(r"\{(\w+)\}", lambda found: f"${found[1].upper()}", path)
    words = [*words, f'"http://127.0.0.1:8080{place}"']
    if operation["security"]:
        words.append('-H "Authorization: Bearer $TOKEN"')
    return " ".join([*words, *_curl_body_options(operation)])


def _curl_body_options(operation: dict[str, Any]) -> Iterator[str]:
    """How curl sends a body, and keeps an answer that is a file."""
    kind, body = next(iter(operation.get("requestBody", {"content": {}})["content"].items()), (None, Schema()))
    if kind == JSON:
        said = msgspec.json.encode(body.get("example", {})).decode()
        yield f"-H 'Content-Type: application/json' -d '{said}'"
    elif kind == FORM:
        fields = body["schema"]["properties"]
        yield from (
            f"-F {name}={f'@{FILE_VARIABLE}' if 'type' not in of else f'${name.upper()}'}"
            for name, of in fields.items()
        )
    elif kind is not None:
        yield f"--data-binary @{FILE_VARIABLE}"
    if ANY_CONTENT_TYPE in operation["responses"].get("200", {}).get("content", {}):
        yield f"-o {FILE_VARIABLE}"


# -- schemas in words -----------------------------------------------------------------------------------------


def _type_html(schema: Schema) -> Markup:
    if "$ref" in schema:
        name = _name(schema)
        return Markup('<a href="#shape-{}">{}</a>').format(name, _display_name(name))
    if "anyOf" in schema:
        return Markup(" or ").join(_type_html(one) for one in schema["anyOf"])
    if "enum" in schema:
        return Markup(" or ").join(_code_html(value) for value in schema["enum"])
    if "const" in schema:
        return _code_html(schema["const"])
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items") or {}
        return Markup("list of {}{}").format(_type_html(items), _bounds_text(items))
    if kind == "object" and "additionalProperties" in schema:
        return Markup("map of {}").format(_type_html(schema["additionalProperties"]))
    return escape(
        schema.get("format") or {"string": "text", "integer": "whole number", None: "any JSON"}.get(kind, kind)
    )


def _bounds_text(schema: Schema) -> Markup:
    """Where values begin and end, in words."""
    parts = [_bounds_text(one) for one in schema.get("anyOf", ())]
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        parts.append(escape(f", {low:g} to {high:,}"))
    if (longest := schema.get("maxLength")) is not None:
        parts.append(escape(f", up to {longest:,} characters"))
    if (most := schema.get("maxItems")) is not None:
        parts.append(escape(f"; up to {most:,} of them"))
    if "pattern" in schema:
        parts.append(Markup(", as {}").format(_code_html(schema["pattern"])))
    return Markup().join(parts)


def _else_value(schema: Schema) -> Markup:
    """What a field is that is not given."""
    value = schema.get("default")
    if value is None or value in ([], {}):
        return Markup()
    return Markup(", else {}").format(_code_html(msgspec.json.encode(value).decode()))


def _name(schema: Schema) -> str:
    """The name of the shape that a schema refers to."""
    return str(schema["$ref"].rpartition("/")[2])


def _display_name(name: str) -> str:
    """The name of a shape as people write it."""
    return re.sub(r"_(\w+)_$", r" of \1", name)


def _code_html(value: object) -> Markup:
    return Markup("<code>{}</code>").format(value)


def _prose_html(value: str) -> Markup:
    """A sentence, in which what stands between backticks is code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(value))))
