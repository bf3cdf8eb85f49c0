"""The OpenAPI document is valid and describes every route that is served."""

from __future__ import annotations

from typing import Any

import msgspec
from openapi_spec_validator import OpenAPIV31SpecValidator

from ingot.http.docs import render_docs_page
from ingot.http.examples import EXAMPLES
from ingot.http.openapi import openapi_document
from ingot.http.request import RequestBody
from ingot.http.routes import Open, Signed
from tests.http.byte_routes import ByteRoutes
from tests.http.route_table import route_table_of
from tests.http.serving import Served


async def test_the_document_is_valid_and_names_every_route(served: Served) -> None:
    response = await served.client.get("/openapi.json", headers={"authorization": f"Bearer {served.operator}"})
    document = response.json()
    OpenAPIV31SpecValidator(document).validate()
    named = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert named == {(route.method, route.template) for route in route_table_of(served).routes if not route.is_page}
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    claim = document["paths"]["/api/v1/jobs/claim"]["post"]
    assert set(claim["responses"]) == {"200", "204", "default"}
    assert claim["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/ClaimResponse")
    assert document["paths"]["/healthz"]["get"]["security"] == []


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["operationId"]: each for methods in document["paths"].values() for each in methods.values()}


def test_every_field_and_every_parameter_has_a_description(served: Served) -> None:
    document = openapi_document(route_table_of(served).routes, version="1")
    schemas = document["components"]["schemas"]
    fields = [field for schema in schemas.values() for field in schema.get("properties", {}).values()]
    parameters = [each for operation in operations(document).values() for each in operation["parameters"]]
    for described in (*fields, *parameters):
        assert described["description"].endswith("."), described
    assert schemas["CreatedToken"]["properties"]["id"] == schemas["Token"]["properties"]["id"]


def test_request_headers_are_documented_for_routes_that_read_them(served: Served) -> None:
    routes = {f"{route.tag}_{route.handler.__name__}": route for route in route_table_of(served).routes}
    document = openapi_document(routes.values(), version="1")
    for name, operation in operations(document).items():
        headers = {each["name"] for each in operation["parameters"] if each["in"] == "header"}
        assert ("Ingot-Tenant" in headers) != isinstance(routes[name].needs, Open | Signed)
        assert ("Idempotency-Key" in headers) == (name in ("jobs_create", "events_publish"))


async def test_every_example_is_accepted(served: Served) -> None:
    routes = {f"{route.tag}_{route.handler.__name__}": route for route in route_table_of(served).routes}
    routes_with_body = {
        name: route
        for name, route in routes.items()
        if route.handler_types().get("body", RequestBody) is not RequestBody
    }
    examples = {name: route.example or EXAMPLES[name] for name, route in routes_with_body.items()}
    assert EXAMPLES.keys() <= examples.keys()
    job = await served.make_job()
    member = (await served.call("POST", "/admin/members", json=EXAMPLES["people_put_member"])).json()
    upload = (await served.call("POST", "/blobs/uploads", json={"size": 1})).json()["upload"]
    ids = {"workers": "press%2Fhost-1", "people": member["id"], "blobs": upload["id"]}
    me = await served.link()
    for name, body in examples.items():
        route = routes[name]
        path_parameters = {
            "id": ids.get(route.tag, job["id"]),
            "slug": "default",
            "type": "greet",
            "upload": upload["id"],
            "name": "mail",
        }
        path = route.template.format(**path_parameters)
        if route.tag == "me":
            response = await served.client.request(route.method, path, headers=me, json=body)
        else:
            response = await served.call(route.method, path, json=body)
        accepted = (422,) if name == "blobs_sign_parts" else (200, 201, 409)  # This upload has no parts.
        assert response.status_code in accepted, f"{name}: {response.text}"


async def test_a_body_with_alternatives_has_a_discriminator(served: Served) -> None:
    document = openapi_document(route_table_of(served).routes, version="1")
    schema = operations(document)["jobs_act"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["discriminator"]["propertyName"] == "action"
    assert set(schema["discriminator"]["mapping"]) == {"cancel", "retry", "change"}


def test_byte_bodies_forms_signed_urls_and_path_rests_are_documented(served: Served) -> None:
    routes = [*route_table_of(served).routes, *ByteRoutes().routes()]
    document = msgspec.json.decode(msgspec.json.encode(openapi_document(routes, version="1")))
    OpenAPIV31SpecValidator(document).validate()
    described = operations(document)
    assert described["bytes_take"]["requestBody"]["content"] == {"application/octet-stream": {"schema": {}}}
    form = described["bytes_form"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert (list(form["properties"]), form["required"]) == (["key", "blob"], ["blob"])
    responses = described["bytes_file"]["responses"]
    assert {status: list(response.get("content", {})) for status, response in responses.items()} == {
        "200": ["*/*"],
        "206": ["*/*"],
        "304": [],
        "default": ["application/problem+json"],
    }
    (rest,) = document["paths"]["/bytes/rest/jobs/{key}"]["get"]["parameters"]
    assert (rest["name"], rest["in"], rest["schema"]) == ("key", "path", {"type": "string", "minLength": 1})
    assert "%2F" in rest["description"]
    signed = described["bytes_signed"]
    assert [(each["name"], each["required"]) for each in signed["parameters"]] == [
        ("name", False),
        ("number", False),
        ("expires", True),
        ("signature", True),
    ]
    assert signed["security"] == []
    page = render_docs_page(document).decode()
    assert "--data-binary @&#34;$FILE&#34;" in page
    assert "-F key=$KEY -F blob=@&#34;$FILE&#34;" in page
    assert described["bytes_signed"]["description"] in page
