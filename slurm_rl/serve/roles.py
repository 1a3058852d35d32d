"""Four roles, each with all rights of the roles below it."""

from __future__ import annotations

import enum
import hmac
from collections.abc import Mapping


class Role(enum.IntEnum):
    """USER: own jobs. READER: everything there is to see. OPERATOR: mode and reload. ADMIN: the plugin's advice too."""

    USER = 0
    READER = 1
    OPERATOR = 2
    ADMIN = 3


# Who may ask for what; a route that is not here is open to everybody, also without a token. A test holds this against
# the application's routes and docs/service.md.
NEEDED: Mapping[tuple[str, str], Role] = {
    ("POST", "/v1/submit"): Role.ADMIN,
    ("POST", "/v1/rank"): Role.USER,
    ("GET", "/v1/queue"): Role.USER,
    ("GET", "/v1/jobs/{job_id}/explain"): Role.USER,
    ("GET", "/v1/measured"): Role.USER,
    ("GET", "/v1/pressure"): Role.USER,
    ("GET", "/v1/auto"): Role.USER,
    ("POST", "/v1/auto"): Role.OPERATOR,
    ("GET", "/v1/when"): Role.USER,
    ("GET", "/v1/forecasts"): Role.USER,
    ("GET", "/v1/overview"): Role.USER,
    ("GET", "/v1/nodes"): Role.USER,
    ("GET", "/v1/decisions"): Role.READER,
    ("GET", "/v1/models"): Role.USER,
    ("GET", "/v1/events"): Role.USER,
    ("GET", "/v1/mode"): Role.USER,
    ("PUT", "/v1/mode"): Role.OPERATOR,
    ("POST", "/v1/reload"): Role.OPERATOR,
    ("GET", "/metrics"): Role.USER,
}
OPEN = frozenset(
    {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/openapi.json"), ("GET", "/"), ("GET", "/ui/{file}")}
)


class Tokens:
    """The bearer tokens of the roles that have one."""

    def __init__(self, tokens: Mapping[Role, str]) -> None:
        self._tokens = {role: f"Bearer {token}".encode() for role, token in tokens.items()}

    def role(self, authorization: str) -> Role | None:
        """The role of a header; every token is compared, in constant time."""
        given = authorization.encode()
        found = [role for role, token in self._tokens.items() if hmac.compare_digest(given, token)]
        return max(found, default=None)
