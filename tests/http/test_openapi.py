"""The OpenAPI document: valid, and the same as what is served."""

from __future__ import annotations

from typing import Any

from openapi_spec_validator import OpenAPIV31SpecValidator

from ingot.http.examples import EXAMPLES
from ingot.http.openapi import document_of
from ingot.http.table import Open
from ingot.http.words import FIELDS
from tests.http.serving import Served
from tests.http.test_routes import table


async def test_the_document_is_valid_and_names_every_route(served: Served) -> None:
    answer = await served.client.get("/openapi.json", headers={"authorization": f"Bearer {served.operator}"})
    document = answer.json()
    OpenAPIV31SpecValidator(document).validate()
    named = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert named == {(route.method, route.path) for route in table(served).routes if not route.is_page}
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    claim = document["paths"]["/api/v1/jobs/claim"]["post"]
    assert set(claim["responses"]) == {"200", "204", "default"}
    assert claim["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/Claimed")
    assert document["paths"]["/healthz"]["get"]["security"] == []


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["operationId"]: one for methods in document["paths"].values() for one in methods.values()}


def test_every_field_and_every_parameter_is_explained(served: Served) -> None:
    routes = table(served).routes
    document = document_of(routes, version="1")
    shapes = document["components"]["schemas"]
    of_fields = {name: of for shape in shapes.values() for name, of in shape.get("properties", {}).items()}
    of_parameters = [one for operation in operations(document).values() for one in operation["parameters"]]
    for told in (*of_fields.values(), *of_parameters):
        assert told["description"].endswith("."), told
    assert "revoked" in shapes["Token"]["properties"]["id"]["description"]
    known = {*of_fields, *(one["name"] for one in of_parameters)}
    assert {name.rpartition(".")[2] for name in FIELDS} <= known
    queries = {route.types()["query"].__name__ for route in routes if "query" in route.types()}
    assert {name.partition(".")[0] for name in FIELDS if "." in name} <= {*shapes, *queries}


def test_headers_are_told_where_they_are_taken(served: Served) -> None:
    routes = {f"{route.room}_{route.handler.__name__}": route for route in table(served).routes}
    document = document_of(routes.values(), version="1")
    for name, operation in operations(document).items():
        headers = {one["name"] for one in operation["parameters"] if one["in"] == "header"}
        assert ("Ingot-Tenant" in headers) != isinstance(routes[name].needs, Open)
        assert ("Idempotency-Key" in headers) == (name in ("jobs_create", "events_publish"))


async def test_every_example_is_taken(served: Served) -> None:
    routes = {f"{route.room}_{route.handler.__name__}": route for route in table(served).routes}
    assert EXAMPLES.keys() == {name for name, route in routes.items() if "body" in route.types()}
    job = await served.make_job()
    member = (await served.call("POST", "/admin/members", json=EXAMPLES["people_put_member"])).json()
    ids = {"workers": "press%2Fhost-1", "people": member["id"]}
    me = await served.link()
    for name, body in EXAMPLES.items():
        route = routes[name]
        path = route.path.format(id=ids.get(route.room, job["id"]), slug="default", type="greet")
        if route.room == "me":
            answer = await served.client.request(route.method, path, headers=me, json=body)
        else:
            answer = await served.call(route.method, path, json=body)
        assert answer.status_code in (200, 201, 409), f"{name}: {answer.text}"


async def test_a_body_of_several_kinds_is_told_as_it_is(served: Served) -> None:
    document = document_of(table(served).routes, version="1")
    schema = operations(document)["jobs_act"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["discriminator"]["propertyName"] == "action"
    assert set(schema["discriminator"]["mapping"]) == {"cancel", "retry", "change"}
