"""The page that says who you are, what you may do, and where you are signed in."""

from __future__ import annotations

from typing import Final

from ingot.dashboard.pages import redirect, render_page
from ingot.http.request import Request, Response
from ingot.http.routes import HTML, Authenticated, Route, routes_of
from ingot.identity.credentials import Forbidden
from ingot.identity.grants import RECORD_RESOURCES
from ingot.identity.people import ROLE_GRANTS, User
from ingot.identity.sessions import DEFAULT_PAGE, Sessions

ACTION_DESCRIPTIONS: Final = {
    "jobs.*": "make, see and manage jobs",
    "jobs.read": "see jobs",
    "jobs.create": "make jobs",
    "workers.*": "run, see and manage workers",
    "workers.read": "see workers",
    "events.*": "publish and see events",
    "events.read": "see events",
    "blobs.*": "store, read and delete files",
    "blobs.read": "read files",
    "blobs.write": "store files",
    "blobs.delete": "delete files",
    **{f"{plural}.*": f"see and change {plural}" for plural in RECORD_RESOURCES},
    "admin.*": "manage members, tokens, worker credentials and definitions, and read the audit log",
}


class MePage:
    """One's own page."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def routes(self) -> list[Route]:
        """The routes of this room."""
        route = routes_of("sign-in", DEFAULT_PAGE, Authenticated(), response_content_type=HTML)
        return [
            route("GET", "", self.show),
            route("POST", "/sessions/{id}/end", self.end_session, status=303),
        ]

    async def show(self, call: Request) -> Response[bytes]:
        """The page that says who you are and what you may do."""
        user = _signed_in_user(call)
        return render_page(
            "me",
            user=user,
            operator=call.caller.is_operator,
            roles=[
                (role, [ACTION_DESCRIPTIONS[grant.action] for grant in ROLE_GRANTS[role.role]])
                for role in call.caller.roles
            ],
            sessions=await self._sessions.list(user.id),
            current=call.caller.session,
        )

    async def end_session(self, call: Request, id: str) -> Response[bytes]:
        """Signs you out in one of your browsers."""
        await self._sessions.end(id, user=_signed_in_user(call).id, act=call.act())
        return redirect(DEFAULT_PAGE)


def _signed_in_user(call: Request) -> User:
    if call.caller.user is None or call.caller.session is None:
        raise Forbidden("this page is for people", hint="Ask GET /api/v1/me with a token.")
    return call.caller.user
