"""The route table: paths are parted before they are decoded."""

from __future__ import annotations

import pytest

from ingot.http.problems import MethodNotAllowed, NoSuchRoute
from ingot.http.table import Open, Route, Table, Undeclared


async def handler(call: object) -> None:
    """Answers nothing."""


def route(path: str, method: str = "GET") -> Route:
    return Route(method=method, path=path, handler=handler, needs=Open(), room="test")


TABLE = Table([route("/w"), route("/w/all"), route("/w/{id}"), route("/w/{id}/do", "POST"), route("/{a}/x/{b}")])


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
        ("GET", "/1/x/2%2F3", "/{a}/x/{b}", {"a": "1", "b": "2/3"}),
    ],
)
def test_a_path_is_found_by_its_segments(method: str, sent: str, path: str, values: dict[str, str]) -> None:
    found, named = TABLE.find(method, sent)
    assert (found.path, named) == (path, values)


@pytest.mark.parametrize("sent", ["", "/", "/w/", "/w//do", "/w/a/b", "/w%2Fall", "/w/press/host-1", "/w/a/do/"])
def test_what_is_no_path_of_ours_is_not_found(sent: str) -> None:
    with pytest.raises(NoSuchRoute):
        TABLE.find("GET", sent)


def test_another_method_is_told_from_another_path() -> None:
    with pytest.raises(MethodNotAllowed):
        TABLE.find("GET", "/w/press%2F1/do")


def test_a_name_is_a_whole_segment() -> None:
    with pytest.raises(Undeclared):
        Table([route("/w/{id}.json")])
