"""The OpenAPI document, made of the route table: what is declared is what is documented."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from ingot.http.cookies import SESSION_COOKIE
from ingot.http.examples import EXAMPLES
from ingot.http.field_docs import (
    FORM_FIELD_DOCS,
    HEADER_DOCS,
    PATH_PARAMETER_DOCS,
    REST_PARAMETER_NOTE,
    SIGNATURE_PARAMETER_DOCS,
    add_descriptions,
)
from ingot.http.problems import PROBLEM, Problem
from ingot.http.request import BytesResponse, RequestBody, Response, StreamResponse
from ingot.http.routes import Granted, Open, Route, Signed
from ingot.http.signing import EXPIRES, SIGNATURE
from ingot.kernel.content_types import BINARY_CONTENT_TYPE

OPENAPI_VERSION: Final = "3.1.0"
REFERENCE_TEMPLATE: Final = "#/components/schemas/{name}"
JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
SEGMENT_SCHEMA: Final = {"minLength": 1, "pattern": r"^[^/]+$"}  # What a place in a path can hold.
REST_SCHEMA: Final = {"minLength": 1}  # And the last one, which takes the rest.
NON_JSON_TYPES: Final = (NoneType, bytes, StreamResponse, BytesResponse)
BYTES_STATUSES: Final = (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT)
SECURITY: Final[list[dict[str, list[str]]]] = [{"token": []}, {"worker": [], "secret": []}, {"session": []}]
SECURITY_SCHEMES: Final = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token, `ingot_…`."},
    "worker": {"type": "apiKey", "in": "header", "name": "X-Worker-ID"},
    "secret": {"type": "apiKey", "in": "header", "name": "X-Worker-Secret"},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION_COOKIE,
        "description": "Of a person who has signed in.",
    },
}

_MODULE_PREFIX = re.compile(r"(?<=_)ingot(?:\.\w+)*\.(?=\w)")


def openapi_document(routes: Iterable[Route], *, version: str) -> dict[str, Any]:
    """The document of these routes. Pages are for people, and stand in no document for programs."""
    known = [route for route in routes if not route.is_page]
    types = [type for route in known for type in _json_types(route)]
    schemas, components = _strip_module_names(
        msgspec.json.schema_components([*types, Problem], ref_template=REFERENCE_TEMPLATE)
    )
    add_descriptions(components)
    of_type = dict(zip([*map(_type_key, types), _type_key(Problem)], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in known:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, of_type, components)
    for query in {_type_key(taken["query"]) for route in known if "query" in (taken := route.handler_types())}:
        del components[_schema_name(of_type[query])]  # They stand where they are used.
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "Ingot", "version": version, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "tags": [{"name": room} for room in dict.fromkeys(route.tag for route in known)],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SECURITY_SCHEMES},
    }


def _strip_module_names(named: tuple[Any, dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
    """Schemas whose names have no modules in them: a page of records is `Page_Record_Secret_`."""
    text = _MODULE_PREFIX.sub("", msgspec.json.encode(named).decode())
    schemas, components = msgspec.json.decode(text)
    return schemas, components


def _json_types(route: Route) -> list[Any]:
    """The types that a route sends and takes as JSON."""
    types = route.handler_types()
    body = None if types.get("body") is RequestBody else types.get("body")
    return [type for type in (body, types.get("query"), _json_content_type(types["return"])) if type is not None]


def _json_content_type(answered: Any) -> Any:
    """What stands in the body of an answer; `None` for nothing, or for what is no JSON."""
    found = [part for part in _union_members(answered) if part not in NON_JSON_TYPES]
    assert len(found) <= 1, f"{answered} is more than one thing"
    return found[0] if found else None


def _union_members(answered: Any) -> list[Any]:
    """Those of which an answer is one."""
    if get_origin(answered) in (UnionType, Union):
        return [kind for part in get_args(answered) for kind in _union_members(part)]
    if get_origin(answered) is Response:
        return _union_members(get_args(answered)[0])
    return [answered]


def _type_key(type: Any) -> str:
    return repr(type)


def _schema_name(schema: dict[str, str]) -> str:
    return schema["$ref"].rpartition("/")[2]


def _operation(route: Route, of_type: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    types = route.handler_types()
    content = _json_content_type(types["return"])
    answers: dict[str, Any] = {}
    for status in (route.status, *route.other_statuses):
        answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        kinds: dict[str, Any] = {}
        if content is not None and status != HTTPStatus.NO_CONTENT:
            kinds[JSON] = {"schema": of_type[_type_key(content)]}
        if StreamResponse in _union_members(types["return"]):
            kinds[EVENT_STREAM] = {"schema": {"type": "string"}}
        if BytesResponse in _union_members(types["return"]) and status in BYTES_STATUSES:
            kinds[route.response_content_type or "*/*"] = {"schema": {}}
        elif route.response_content_type is not None:
            kinds[route.response_content_type] = {"schema": {"type": "string"}}
        if kinds:
            answer["content"] = kinds
        answers[str(status)] = answer
    answers["default"] = {
        "description": "A problem: `code` stays the same, `detail` and `hint` are for people.",
        "content": {PROBLEM: {"schema": of_type[_type_key(Problem)]}},
    }
    operation: dict[str, Any] = {
        "operationId": f"{route.tag}_{route.handler.__name__}",
        "summary": route.title,
        "tags": [route.tag],
        "parameters": [
            *_path_parameters(route),
            *_query_parameters(types.get("query"), of_type, components),
            *_signature_parameters(route),
            *_header_parameters(route),
        ],
        "responses": answers,
        "security": [] if isinstance(route.needs, Open | Signed) else SECURITY,
    }
    if isinstance(route.needs, Granted):
        operation["description"] = f"Needs a grant for {route.needs.description}."
    elif isinstance(route.needs, Signed):
        operation["description"] = "Needs an address that the server has signed, as it was given."
    if types.get("body") is RequestBody:
        operation["requestBody"] = {"required": True, "content": {route.body_content_type: _bytes_content(route)}}
    elif "body" in types:
        body = {
            "schema": of_type[_type_key(types["body"])],
            "example": route.example or EXAMPLES[operation["operationId"]],
        }
        operation["requestBody"] = {"required": True, "content": {JSON: body}}
    return operation


def _bytes_content(route: Route) -> dict[str, Any]:
    """What a body of bytes is, or a form whose last field is a file."""
    if not route.form_fields:
        return {"schema": {}}
    *fields, file = route.form_fields
    properties: dict[str, Any] = {name: {"type": "string", "description": FORM_FIELD_DOCS[name]} for name in fields}
    properties[file] = {"contentMediaType": BINARY_CONTENT_TYPE, "description": FORM_FIELD_DOCS[file]}
    return {"schema": {"type": "object", "required": [file], "properties": properties}}


def _signature_parameters(route: Route) -> list[dict[str, Any]]:
    if not isinstance(route.needs, Signed):
        return []
    return [
        {
            "name": name,
            "in": "query",
            "required": True,
            "description": SIGNATURE_PARAMETER_DOCS[name],
            "schema": {"type": "string"},
        }
        for name in (EXPIRES, SIGNATURE)
    ]


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    segments = route.template.split("/")
    before = {name: segments[segments.index(f"{{{name}}}") - 1] for name in route.path_parameters}
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _path_parameter_description(route, before[name])
            + (REST_PARAMETER_NOTE if f"{{{name}*}}" in route.path else ""),
            "schema": {"type": "string", **(REST_SCHEMA if f"{{{name}*}}" in route.path else SEGMENT_SCHEMA)},
        }
        for name in route.path_parameters
    ]


def _path_parameter_description(route: Route, before: str) -> str:
    return PATH_PARAMETER_DOCS.get(f"{route.tag}/{before}") or PATH_PARAMETER_DOCS[before]


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    names = route.headers if isinstance(route.needs, Open | Signed) else (*route.headers, "Ingot-Tenant")
    return [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": HEADER_DOCS[name],
            "schema": {"type": "string"},
        }
        for name in names
    ]


def _query_parameters(type: Any, of_type: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    if type is None:
        return []
    schema = components[_schema_name(of_type[_type_key(type)])]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "description": of["description"],
            "schema": {key: value for key, value in of.items() if key != "description"},
        }
        for name, of in schema["properties"].items()
    ]
