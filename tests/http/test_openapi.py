"""The OpenAPI document: valid, and the same as what is served."""

from __future__ import annotations

from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.http.serving import Served
from tests.http.test_routes import table


async def test_the_document_is_valid_and_names_every_route(served: Served) -> None:
    answer = await served.client.get("/openapi.json", headers={"authorization": f"Bearer {served.operator}"})
    document = answer.json()
    OpenAPIV31SpecValidator(document).validate()
    named = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert named == {(route.method, route.path) for route in table(served).routes}
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    claim = document["paths"]["/api/v1/jobs/claim"]["post"]
    assert set(claim["responses"]) == {"200", "204", "default"}
    assert claim["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/Claimed")
    assert document["paths"]["/healthz"]["get"]["security"] == []
