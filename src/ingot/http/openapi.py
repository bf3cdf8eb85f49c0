"""The OpenAPI document, made of the route table: what is declared is what is documented."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from ingot.http.call import Answer, Body, Bytes, Stream
from ingot.http.cookies import SESSION
from ingot.http.examples import EXAMPLES
from ingot.http.problems import PROBLEM, Problem
from ingot.http.signing import EXPIRES, SIGNATURE
from ingot.http.table import Granted, Open, Route, Signed
from ingot.http.words import FORM_FIELDS, HEADERS, PLACES, REST, SIGNED, describe
from ingot.kernel.content_types import BINARY

VERSION: Final = "3.1.0"
REFERENCE: Final = "#/components/schemas/{name}"
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
NAMES: Final = {"minLength": 1, "pattern": r"^[^/]+$"}  # What a place in a path can hold.
RESTS: Final = {"minLength": 1}  # And the last one, which takes the rest.
NO_JSON: Final = (NoneType, bytes, Stream, Bytes)
WITH_BYTES: Final = (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT)
SECURITY: Final[list[dict[str, list[str]]]] = [{"token": []}, {"worker": [], "secret": []}, {"session": []}]
SCHEMES: Final = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token, `ingot_…`."},
    "worker": {"type": "apiKey", "in": "header", "name": "X-Worker-ID"},
    "secret": {"type": "apiKey", "in": "header", "name": "X-Worker-Secret"},
    "session": {"type": "apiKey", "in": "cookie", "name": SESSION, "description": "Of a person who has signed in."},
}

_MODULES = re.compile(r"(?<=_)ingot(?:\.\w+)*\.(?=\w)")


def document_of(routes: Iterable[Route], *, version: str) -> dict[str, Any]:
    """The document of these routes. Pages are for people, and stand in no document for programs."""
    known = [route for route in routes if not route.is_page]
    types = [type for route in known for type in _types(route)]
    schemas, components = _plain(msgspec.json.schema_components([*types, Problem], ref_template=REFERENCE))
    describe(components)
    of_type = dict(zip([*map(_key, types), _key(Problem)], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in known:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, of_type, components)
    for query in {_key(taken["query"]) for route in known if "query" in (taken := route.types())}:
        del components[_name(of_type[query])]  # They stand where they are used.
    return {
        "openapi": VERSION,
        "info": {"title": "Ingot", "version": version, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "tags": [{"name": room} for room in dict.fromkeys(route.room for route in known)],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SCHEMES},
    }


def _plain(named: tuple[Any, dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
    """Schemas whose names have no modules in them: a page of records is `Page_Record_Secret_`."""
    text = _MODULES.sub("", msgspec.json.encode(named).decode())
    schemas, components = msgspec.json.decode(text)
    return schemas, components


def _types(route: Route) -> list[Any]:
    """The types that a route sends and takes as JSON."""
    types = route.types()
    body = None if types.get("body") is Body else types.get("body")
    return [type for type in (body, types.get("query"), _content(types["return"])) if type is not None]


def _content(answered: Any) -> Any:
    """What stands in the body of an answer; `None` for nothing, or for what is no JSON."""
    found = [part for part in _kinds(answered) if part not in NO_JSON]
    assert len(found) <= 1, f"{answered} is more than one thing"
    return found[0] if found else None


def _kinds(answered: Any) -> list[Any]:
    """Those of which an answer is one."""
    if get_origin(answered) in (UnionType, Union):
        return [kind for part in get_args(answered) for kind in _kinds(part)]
    if get_origin(answered) is Answer:
        return _kinds(get_args(answered)[0])
    return [answered]


def _key(type: Any) -> str:
    return repr(type)


def _name(schema: dict[str, str]) -> str:
    return schema["$ref"].rpartition("/")[2]


def _operation(route: Route, of_type: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    types = route.types()
    content = _content(types["return"])
    answers: dict[str, Any] = {}
    for status in (route.status, *route.other_statuses):
        answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        kinds: dict[str, Any] = {}
        if content is not None and status != HTTPStatus.NO_CONTENT:
            kinds[JSON] = {"schema": of_type[_key(content)]}
        if Stream in _kinds(types["return"]):
            kinds[EVENTS] = {"schema": {"type": "string"}}
        if Bytes in _kinds(types["return"]) and status in WITH_BYTES:
            kinds[route.media or "*/*"] = {"schema": {}}
        elif route.media is not None:
            kinds[route.media] = {"schema": {"type": "string"}}
        if kinds:
            answer["content"] = kinds
        answers[str(status)] = answer
    answers["default"] = {
        "description": "A problem: `code` stays the same, `detail` and `hint` are for people.",
        "content": {PROBLEM: {"schema": of_type[_key(Problem)]}},
    }
    operation: dict[str, Any] = {
        "operationId": f"{route.room}_{route.handler.__name__}",
        "summary": route.title,
        "tags": [route.room],
        "parameters": [
            *_names(route),
            *_query(types.get("query"), of_type, components),
            *_signature(route),
            *_headers(route),
        ],
        "responses": answers,
        "security": [] if isinstance(route.needs, Open | Signed) else SECURITY,
    }
    if isinstance(route.needs, Granted):
        operation["description"] = f"Needs a grant for {route.needs.words}."
    elif isinstance(route.needs, Signed):
        operation["description"] = "Needs an address that the server has signed, as it was given."
    if types.get("body") is Body:
        operation["requestBody"] = {"required": True, "content": {route.takes: _bytes(route)}}
    elif "body" in types:
        body = {"schema": of_type[_key(types["body"])], "example": route.example or EXAMPLES[operation["operationId"]]}
        operation["requestBody"] = {"required": True, "content": {JSON: body}}
    return operation


def _bytes(route: Route) -> dict[str, Any]:
    """What a body of bytes is, or a form whose last field is a file."""
    if not route.form:
        return {"schema": {}}
    *fields, file = route.form
    properties: dict[str, Any] = {name: {"type": "string", "description": FORM_FIELDS[name]} for name in fields}
    properties[file] = {"contentMediaType": BINARY, "description": FORM_FIELDS[file]}
    return {"schema": {"type": "object", "required": [file], "properties": properties}}


def _signature(route: Route) -> list[dict[str, Any]]:
    if not isinstance(route.needs, Signed):
        return []
    return [
        {"name": name, "in": "query", "required": True, "description": SIGNED[name], "schema": {"type": "string"}}
        for name in (EXPIRES, SIGNATURE)
    ]


def _names(route: Route) -> list[dict[str, Any]]:
    segments = route.template.split("/")
    before = {name: segments[segments.index(f"{{{name}}}") - 1] for name in route.parameters}
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _place(route, before[name]) + (REST if f"{{{name}*}}" in route.path else ""),
            "schema": {"type": "string", **(RESTS if f"{{{name}*}}" in route.path else NAMES)},
        }
        for name in route.parameters
    ]


def _place(route: Route, before: str) -> str:
    return PLACES.get(f"{route.room}/{before}") or PLACES[before]


def _headers(route: Route) -> list[dict[str, Any]]:
    names = route.headers if isinstance(route.needs, Open | Signed) else (*route.headers, "Ingot-Tenant")
    return [
        {"name": name, "in": "header", "required": False, "description": HEADERS[name], "schema": {"type": "string"}}
        for name in names
    ]


def _query(type: Any, of_type: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    if type is None:
        return []
    schema = components[_name(of_type[_key(type)])]
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
