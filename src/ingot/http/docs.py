"""The API documentation page: the OpenAPI document as HTML, without scripts."""

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
# Base classes of other errors, and errors that keep a server from starting.
UNDOCUMENTED_ERRORS: Final = frozenset(
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
EVENT_STREAM: Final = "text/event-stream"
FORM: Final = "multipart/form-data"
ANY_CONTENT_TYPE: Final = "*/*"
FILE_VARIABLE: Final = '"$FILE"'
_CODE = re.compile(r"`([^`]+)`")
Schema = dict[str, Any]


def render_docs_page(document: dict[str, Any]) -> bytes:
    """Render an OpenAPI document as an HTML page."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - most servers never render the page

    schemas = document["components"]["schemas"]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    filters: dict[str, Callable[..., Any]] = {
        "bounds": _bounds_html,
        "default_value": _default_html,
        "display_name": _display_name,
        "examples": _examples,
        "field_rows": _field_rows,
        "parameter_rows": _parameter_rows,
        "prose": _prose_html,
        "requirement": _requirement,
        "resolved": lambda schema: schemas[_schema_name(schema)] if "$ref" in schema else schema,
        "type": _type_html,
    }
    environment.filters.update(filters)
    template = environment.from_string(files("ingot.http").joinpath("docs.html").read_text(encoding="utf-8"))
    operations = {tag["name"]: list(_operations_of_tag(document, tag["name"])) for tag in document["tags"]}
    version, style = document["info"]["version"], Markup(STYLE)
    html = template.render(
        operations=operations, schemas=schemas, errors=documented_errors(), version=version, style=style
    )
    return html.lstrip().encode()


def documented_errors() -> list[type[IngotError]]:
    """Return every class of error that a response can report, ordered by status and code."""
    errors: dict[str, type[IngotError]] = {}
    classes: list[type[IngotError]] = [IngotError]
    while classes:
        error = classes.pop()
        classes.extend(error.__subclasses__())
        is_of_server = error.__module__.startswith("ingot.") and not error.__module__.startswith("ingot.client.")
        if is_of_server and error.code not in UNDOCUMENTED_ERRORS:
            errors[error.code] = error
    return sorted(errors.values(), key=lambda error: (error.status, error.code))


# -- operations and their tables -------------------------------------------------------------------------------


def _operations_of_tag(document: dict[str, Any], tag: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation["tags"]:
                yield method.upper(), path, operation


def _requirement(operation: dict[str, Any]) -> str:
    if not operation["security"] and "description" not in operation:
        return "Needs no credential."
    return str(operation.get("description", "Needs a credential. No grant is required."))


def _parameter_rows(parameters: list[dict[str, Any]]) -> list[tuple[str, Schema, bool, str]]:
    return [
        (
            parameter["name"],
            {**parameter["schema"], "description": parameter.get("description", "")},
            parameter["required"],
            parameter["in"],
        )
        for parameter in parameters
    ]


def _field_rows(schema: Schema) -> list[tuple[str, Schema, bool, str]]:
    required = schema.get("required", ())
    return [(name, field, name in required, "") for name, field in schema.get("properties", {}).items()]


# -- examples -------------------------------------------------------------------------------------------------


def _examples(operation: dict[str, Any], method: str, path: str) -> Iterator[str]:
    """Yield curl commands: one for JSON, one for a stream, or both if the route supports both."""
    content_types = [name for response in operation["responses"].values() for name in response.get("content", {})]
    if EVENT_STREAM not in content_types:
        yield _example(method, path, operation, ["curl"])
    elif JSON not in content_types:
        yield _example(method, path, operation, ["curl", "-N"])
    else:
        yield _example(method, path, operation, ["curl"])
        yield _example(method, path, operation, ["curl", "-N", f"-H 'Accept: {EVENT_STREAM}'"])


def _example(method: str, path: str, operation: dict[str, Any], command: list[str]) -> str:
    if method != "GET":
        command = [*command, "-X", method]
    path = re.sub(r"\{(\w+)\}", lambda match: f"${match[1].upper()}", path)
    command = [*command, f'"http://127.0.0.1:8080{path}"']
    if operation["security"]:
        command.append('-H "Authorization: Bearer $TOKEN"')
    return " ".join([*command, *_curl_body_options(operation)])


def _curl_body_options(operation: dict[str, Any]) -> Iterator[str]:
    """Yield the curl options that send a request body, and that save a response that is a file."""
    request_body = operation.get("requestBody", {"content": {}})
    content_type, body = next(iter(request_body["content"].items()), (None, Schema()))
    if content_type == JSON:
        example = msgspec.json.encode(body.get("example", {})).decode()
        yield f"-H 'Content-Type: application/json' -d '{example}'"
    elif content_type == FORM:
        fields = body["schema"]["properties"]
        yield from (
            f"-F {name}={f'@{FILE_VARIABLE}' if 'type' not in field else f'${name.upper()}'}"
            for name, field in fields.items()
        )
    elif content_type is not None:
        yield f"--data-binary @{FILE_VARIABLE}"
    if ANY_CONTENT_TYPE in operation["responses"].get("200", {}).get("content", {}):
        yield f"-o {FILE_VARIABLE}"


# -- schemas as text -------------------------------------------------------------------------------------------


def _type_html(schema: Schema) -> Markup:
    if "$ref" in schema:
        name = _schema_name(schema)
        return Markup('<a href="#schema-{}">{}</a>').format(name, _display_name(name))
    if "anyOf" in schema:
        return Markup(" or ").join(_type_html(option) for option in schema["anyOf"])
    if "enum" in schema:
        return Markup(" or ").join(_code_html(value) for value in schema["enum"])
    if "const" in schema:
        return _code_html(schema["const"])
    json_type = schema.get("type")
    if json_type == "array":
        items = schema.get("items") or {}
        return Markup("list of {}{}").format(_type_html(items), _bounds_html(items))
    if json_type == "object" and "additionalProperties" in schema:
        return Markup("map of {}").format(_type_html(schema["additionalProperties"]))
    return escape(schema.get("format") or json_type or "any JSON")


def _bounds_html(schema: Schema) -> Markup:
    """Describe the limits of a value, as a continuation of the description of its type."""
    parts = [_bounds_html(option) for option in schema.get("anyOf", ())]
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        parts.append(escape(f", {low:g} to {high:,}"))
    if (length_max := schema.get("maxLength")) is not None:
        parts.append(escape(f", up to {length_max:,} characters"))
    if (items_max := schema.get("maxItems")) is not None:
        parts.append(escape(f"; up to {items_max:,} items"))
    if "pattern" in schema:
        parts.append(Markup(", pattern {}").format(_code_html(schema["pattern"])))
    return Markup().join(parts)


def _default_html(schema: Schema) -> Markup:
    """Describe the default of a field, if it has one."""
    value = schema.get("default")
    if value is None or value in ([], {}):
        return Markup()
    return Markup(", default {}").format(_code_html(msgspec.json.encode(value).decode()))


def _schema_name(schema: Schema) -> str:
    """Return the name of the schema that a reference points to."""
    return str(schema["$ref"].rpartition("/")[2])


def _display_name(name: str) -> str:
    """Return a readable name of a schema: `Page of Job` for `Page_Job_`."""
    return re.sub(r"_(\w+)_$", r" of \1", name)


def _code_html(value: object) -> Markup:
    return Markup("<code>{}</code>").format(value)


def _prose_html(value: str) -> Markup:
    """Escape a sentence and turn text between backticks into code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(value))))
