"""Who may change something: a token from a file made at the start, exchanged for a cookie. Reading needs neither.

Owns: the token file (mode 600), its comparison, sessions with an end. Refuses: users and roles; whoever can read the file is
the operator, as with the command line.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from services.console.errors import ConsoleError

FILE_NAME = "page-token"
SESSION_S_MAX = 12 * 3600.0
"""A working day; then the token is asked for again."""
SESSIONS_MAX = 100
"""Browsers logged in at a time; the oldest falls out."""
TOKEN_BYTES = 24
FAILED_WAIT_S = 1.0
"""An answer to a wrong token takes that long: guessing is hopeless anyway, and this keeps it cheap for us."""


def token_of(path: Path) -> str:
    """The token in the file, made now if there is none. ConsoleError says what is wrong with the file."""
    with contextlib.suppress(FileExistsError):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise
        except OSError as error:
            raise ConsoleError(f"The page's token can't be written to {path} ({error.strerror}).") from None
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise ConsoleError(f"The page's token can't be read from {path} ({error.strerror}).") from None
    if not token:
        raise ConsoleError(f"The token file {path} is empty: remove it, a new one is made.")
    return token


@dataclass(slots=True)
class Access:
    """Sessions by their secret, with the wall second at which each ends."""

    token: str
    _sessions: dict[str, float] = field(default_factory=dict)

    def login(self, token: str, wall_s: float) -> str | None:
        """A session's secret for the right token."""
        if not hmac.compare_digest(token.strip().encode(), self.token.encode()):
            return None
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        secret = secrets.token_urlsafe(TOKEN_BYTES)
        self._sessions[secret] = wall_s + SESSION_S_MAX
        return secret

    def logout(self, secret: str) -> None:
        self._sessions.pop(secret, None)

    def may_change(self, *, cookie: str | None, bearer: str | None, wall_s: float) -> bool:
        """Whether a request comes with a live session or the token itself."""
        if bearer is not None:
            return hmac.compare_digest(bearer.strip().encode(), self.token.encode())
        end_s = self._sessions.get(cookie or "")
        return end_s is not None and wall_s < end_s
