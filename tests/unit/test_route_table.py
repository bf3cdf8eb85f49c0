"""The route table: paths are split into segments before they are decoded."""

from __future__ import annotations

import pytest

from ingot.http.problems import MethodNotAllowed, NoSuchRoute
from ingot.http.routes import InvalidRoute, Open, Route, RouteTable
from ingot.kernel.errors import InvalidInput


async def handler(call: object) -> None:
    """Do nothing."""


def route(path: str, method: str = "GET") -> Route:
    return Route(method=method, path=path, handler=handler, needs=Open(), tag="test")


TABLE = RouteTable(
    [
        route("/k"),
        route("/k/{key*}"),
        route("/{a}/keys/{key*}"),
        route("/k/all"),
        route("/w"),
        route("/w/all"),
        route("/w/{id}"),
        route("/w/{id}/do", "POST"),
        route("/{a}/x/{b}"),
    ]
)


@pytest.mark.parametrize(
    ("method", "sent", "path", "values"),
    [
        ("GET", "/w", "/w", {}),
        ("GET", "/%77", "/w", {}),
        ("GET", "/w/all", "/w/all", {}),
        ("GET", "/w/press", "/w/{id}", {"id": "press"}),
        ("GET", "/w/press%2Fhost-1", "/w/{id}", {"id": "press/host-1"}),
        ("GET", "/w/%61ll", "/w/all", {}),
        ("GET", "/w/a%20b%25", "/w/{id}", {"id": "a b%"}),
        ("POST", "/w/press%2f1/do", "/w/{id}/do", {"id": "press/1"}),
        ("GET", "/k", "/k", {}),
        ("GET", "/k/all", "/k/all", {}),
        ("GET", "/k/all/", "/k/{key*}", {"key": "all/"}),
        ("GET", "/k/a", "/k/{key*}", {"key": "a"}),
        ("HEAD", "/%6b/a", "/k/{key*}", {"key": "a"}),
        ("GET", "/k/a/b//c/", "/k/{key*}", {"key": "a/b//c/"}),
        ("GET", "/k//", "/k/{key*}", {"key": "/"}),
        ("GET", "/k/a%2Fb%2fc", "/k/{key*}", {"key": "a/b/c"}),
        ("GET", "/k/..%2F../%2e%2e", "/k/{key*}", {"key": "../../.."}),
        ("GET", "/k/%C3%BC%25+%20", "/k/{key*}", {"key": "\u00fc%+ "}),
        ("GET", "/b%2Fc/keys/x/y", "/{a}/keys/{key*}", {"a": "b/c", "key": "x/y"}),
        ("GET", "/1/x/2%2F3", "/{a}/x/{b}", {"a": "1", "b": "2/3"}),
    ],
)
def test_a_route_is_found_by_the_segments_of_the_path(
    method: str, sent: str, path: str, values: dict[str, str]
) -> None:
    matched, parameters = TABLE.find(method, sent)
    assert (matched.path, parameters) == (path, values)


@pytest.mark.parametrize("sent", ["", "/", "/w/", "/w//do", "/w/a/b", "/w%2Fall", "/w/press/host-1", "/w/a/do/"])
def test_an_unknown_path_raises_no_such_route(sent: str) -> None:
    with pytest.raises(NoSuchRoute):
        TABLE.find("GET", sent)


def test_a_wrong_method_raises_method_not_allowed() -> None:
    with pytest.raises(MethodNotAllowed):
        TABLE.find("GET", "/w/press%2F1/do")


def test_a_path_parameter_must_be_a_whole_segment() -> None:
    with pytest.raises(InvalidRoute):
        RouteTable([route("/w/{id}.json")])


@pytest.mark.parametrize(
    "sent", ["/k/", "/k/a%00b", "/k/%ff", "/k/a/%C3", "/k/%", "/k/a%2", "/k/%zz", "/k/%\u0661\u0661"]
)
def test_an_invalid_value_of_a_key_parameter_is_rejected(sent: str) -> None:
    with pytest.raises(InvalidInput):
        TABLE.find("GET", sent)


def test_a_key_parameter_must_be_the_last_segment() -> None:
    with pytest.raises(InvalidRoute):
        RouteTable([route("/k/{key*}/url")])


def test_a_route_with_an_unlimited_body_must_stream_it() -> None:
    with pytest.raises(InvalidRoute):
        RouteTable([Route(method="POST", path="/x", handler=handler, needs=Open(), tag="test", body_bytes_max=None)])
