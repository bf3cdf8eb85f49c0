"""The OpenAPI document, generated from the route table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from ingot.http.attribute_docs import field_descriptions
from ingot.http.cookies import SESSION_COOKIE
from ingot.http.examples import EXAMPLES
from ingot.http.parameter_docs import (
    FORM_FIELD_DOCS,
    HEADER_DOCS,
    PATH_PARAMETER_DOCS,
    REST_PARAMETER_NOTE,
    SIGNATURE_PARAMETER_DOCS,
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
SEGMENT_SCHEMA: Final = {"minLength": 1, "pattern": r"^[^/]+$"}  # A parameter that is one segment of the path.
REST_SCHEMA: Final = {"minLength": 1}  # A parameter that is the rest of the path, with slashes.
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
        "description": "Session of a person who has signed in.",
    },
}

_MODULE_PREFIX = re.compile(r"(?<=_)ingot(?:\.\w+)*\.(?=\w)")


def openapi_document(routes: Iterable[Route], *, version: str) -> dict[str, Any]:
    """Return the document of these routes, without HTML pages."""
    api_routes = [route for route in routes if not route.is_page]
    types = [*(type for route in api_routes for type in _json_types(route)), Problem]
    schemas, components = _strip_module_names(msgspec.json.schema_components(types, ref_template=REFERENCE_TEMPLATE))
    _describe_fields(components, types)
    schema_by_type = dict(zip(map(_type_key, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in api_routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, schema_by_type, components)
    # The fields of a query are documented as parameters, so its schema is not a component.
    handler_types = [route.handler_types() for route in api_routes]
    for query in {_type_key(types["query"]) for types in handler_types if "query" in types}:
        del components[_schema_name(schema_by_type[query])]
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "Ingot", "version": version, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in api_routes)],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SECURITY_SCHEMES},
    }


def _strip_module_names(schemas_and_components: tuple[Any, dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
    """Remove modules from the names of components: a page of secrets is `Page_Record_Secret_`."""
    text = _MODULE_PREFIX.sub("", msgspec.json.encode(schemas_and_components).decode())
    schemas, components = msgspec.json.decode(text)
    return schemas, components


def _describe_fields(components: dict[str, dict[str, Any]], types: Iterable[Any]) -> None:
    """Add the descriptions of fields to the schemas of all structs that the types contain."""
    structs = _structs_in(types)
    for schema in components.values():
        if "properties" in schema:
            descriptions = field_descriptions(structs[schema["title"].partition("[")[0]])
            for name, field_schema in schema["properties"].items():
                field_schema["description"] = descriptions[name]


def _structs_in(types: Iterable[Any]) -> dict[str, type[msgspec.Struct]]:
    """Return the structs that these types contain, by name. A generic struct is listed without its parameters."""
    structs: dict[str, type[msgspec.Struct]] = {}
    seen: set[Any] = set()
    pending = [*inspect.multi_type_info(types)]
    while pending:
        match pending.pop():
            case inspect.StructType(cls=cls, fields=fields) if cls not in seen:
                seen.add(cls)
                struct: Any = get_origin(cls) or cls
                assert structs.setdefault(struct.__name__, struct) is struct, (
                    f"two structs are called {struct.__name__}"
                )
                pending += [field.type for field in fields]
            case inspect.Metadata(type=inner):
                pending.append(inner)
            case inspect.UnionType(types=members) | inspect.TupleType(item_types=members):
                pending += members
            case inspect.CollectionType(item_type=inner) | inspect.DictType(value_type=inner):
                pending.append(inner)
    return structs


def _json_types(route: Route) -> list[Any]:
    """Return the types that a route receives and sends as JSON."""
    types = route.handler_types()
    body = None if types.get("body") is RequestBody else types.get("body")
    return [type for type in (body, types.get("query"), _json_content_type(types["return"])) if type is not None]


def _json_content_type(return_type: Any) -> Any:
    """Return the type of the JSON in a response, or `None` if there is no JSON."""
    json_types = [member for member in _union_members(return_type) if member not in NON_JSON_TYPES]
    assert len(json_types) <= 1, f"{return_type} has more than one JSON type"
    return json_types[0] if json_types else None


def _union_members(return_type: Any) -> list[Any]:
    if get_origin(return_type) in (UnionType, Union):
        return [member for part in get_args(return_type) for member in _union_members(part)]
    if get_origin(return_type) is Response:
        return _union_members(get_args(return_type)[0])
    return [return_type]


def _type_key(type: Any) -> str:
    return repr(type)


def _schema_name(schema: dict[str, str]) -> str:
    return schema["$ref"].rpartition("/")[2]


def _operation(route: Route, schema_by_type: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    types = route.handler_types()
    content_type = _json_content_type(types["return"])
    responses: dict[str, Any] = {}
    for status in (route.status, *route.other_statuses):
        response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        content: dict[str, Any] = {}
        if content_type is not None and status != HTTPStatus.NO_CONTENT:
            content[JSON] = {"schema": schema_by_type[_type_key(content_type)]}
        if StreamResponse in _union_members(types["return"]):
            content[EVENT_STREAM] = {"schema": {"type": "string"}}
        if BytesResponse in _union_members(types["return"]) and status in BYTES_STATUSES:
            content[route.response_content_type or "*/*"] = {"schema": {}}
        elif route.response_content_type is not None:
            content[route.response_content_type] = {"schema": {"type": "string"}}
        if content:
            response["content"] = content
        responses[str(status)] = response
    responses["default"] = {
        "description": "A problem. Its `code` is stable; `detail` and `hint` are for people.",
        "content": {PROBLEM: {"schema": schema_by_type[_type_key(Problem)]}},
    }
    operation: dict[str, Any] = {
        "operationId": f"{route.tag}_{route.handler.__name__}",
        "summary": route.title,
        "tags": [route.tag],
        "parameters": [
            *_path_parameters(route),
            *_query_parameters(types.get("query"), schema_by_type, components),
            *_signature_parameters(route),
            *_header_parameters(route),
        ],
        "responses": responses,
        "security": [] if isinstance(route.needs, Open | Signed) else SECURITY,
    }
    if isinstance(route.needs, Granted):
        operation["description"] = f"Needs a grant for {route.needs.description}."
    elif isinstance(route.needs, Signed):
        operation["description"] = "Needs a URL signed by the server, unchanged."
    if types.get("body") is RequestBody:
        operation["requestBody"] = {"required": True, "content": {route.body_content_type: _bytes_content(route)}}
    elif "body" in types:
        body = {
            "schema": schema_by_type[_type_key(types["body"])],
            "example": route.example or EXAMPLES[operation["operationId"]],
        }
        operation["requestBody"] = {"required": True, "content": {JSON: body}}
    return operation


def _bytes_content(route: Route) -> dict[str, Any]:
    """Describe a body of bytes, or a form whose last field is a file."""
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
    previous_segment = {name: segments[segments.index(f"{{{name}}}") - 1] for name in route.path_parameters}
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _path_parameter_description(route, previous_segment[name])
            + (REST_PARAMETER_NOTE if f"{{{name}*}}" in route.path else ""),
            "schema": {"type": "string", **(REST_SCHEMA if f"{{{name}*}}" in route.path else SEGMENT_SCHEMA)},
        }
        for name in route.path_parameters
    ]


def _path_parameter_description(route: Route, previous_segment: str) -> str:
    return PATH_PARAMETER_DOCS.get(f"{route.tag}/{previous_segment}") or PATH_PARAMETER_DOCS[previous_segment]


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


def _query_parameters(type: Any, schema_by_type: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    if type is None:
        return []
    schema = components[_schema_name(schema_by_type[_type_key(type)])]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "description": field_schema["description"],
            "schema": {key: value for key, value in field_schema.items() if key != "description"},
        }
        for name, field_schema in schema["properties"].items()
    ]
