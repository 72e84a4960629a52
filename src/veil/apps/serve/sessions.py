"""The senders of requests: visitors by their cookie, the password, and requests that are refused.

Each visitor has one cookie and one folder, which is deleted with the visitor. Where the web app is for this machine alone,
requests under another host name are refused, because a foreign page could let such a name point here; where it is shared on
the network, nothing is answered without the password.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from veil.core import VeilError

COOKIE = "veil-visitor"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
MIN_PASSWORD = 8  # characters
MAX_ATTEMPTS, ATTEMPT_SECONDS = 8, 60.0  # wrong passwords in this time, after which none is accepted
MAX_VISITORS = 200  # that are remembered at once
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=()",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"
)


@dataclass
class Visitor:
    """The holder of one cookie."""

    id: str
    folder: Path
    last_seen: float
    logged_in: bool  # always true where there is no password


class Sessions:
    """The visitors, by cookie."""

    def __init__(self, root: Path, password: str | None) -> None:
        self._root, self._password = root, password
        self._visitors: dict[str, Visitor] = {}
        self._wrong: deque[float] = deque(maxlen=MAX_ATTEMPTS)
        self._lock = threading.Lock()

    def get(self, cookie: str | None) -> Visitor | None:
        """The visitor with this cookie, if there is one."""
        with self._lock:
            visitor = self._visitors.get(cookie or "")
            if visitor:
                visitor.last_seen = time.monotonic()
            return visitor

    def create(self, active: Callable[[str], bool]) -> tuple[str, Visitor, Visitor | None]:
        """A new visitor's cookie, the visitor, and the one who was removed to make room; `active` visitors stay."""
        cookie, id_ = secrets.token_urlsafe(32), secrets.token_urlsafe(16)
        visitor = Visitor(id_, self._root / id_, time.monotonic(), logged_in=self._password is None)
        removed = None
        with self._lock:
            idle = [c for c, v in self._visitors.items() if not active(v.id)]
            if len(self._visitors) >= MAX_VISITORS and idle:
                removed = self._visitors.pop(min(idle, key=lambda c: self._visitors[c].last_seen))
            self._visitors[cookie] = visitor
        return cookie, visitor, removed

    def log_in(self, visitor: Visitor, password: str) -> None:
        """Check the password; after several wrong ones, none is accepted for a while."""
        now = time.monotonic()
        with self._lock:
            if len(self._wrong) == MAX_ATTEMPTS and now - self._wrong[0] < ATTEMPT_SECONDS:
                raise VeilError(
                    "too many wrong passwords: wait a minute, then try again.", code="password-locked"
                )
            if not hmac.compare_digest(password.encode(), (self._password or "").encode()):
                self._wrong.append(now)
                raise VeilError("this is not the password: try again.", code="password-wrong")
            visitor.logged_in = True

    def expire(self, now: float, seconds: float, active: Callable[[str], bool]) -> list[Visitor]:
        """Remove and return the visitors that were away for longer than this; `active` ones stay."""
        with self._lock:
            gone = [c for c, v in self._visitors.items() if now - v.last_seen > seconds and not active(v.id)]
            return [self._visitors.pop(cookie) for cookie in gone]


def refusal(headers: Mapping[str, str], shared: bool) -> str:
    """Why a request is refused (it came under a foreign host name, or from a foreign page); empty: it is not."""
    host = headers.get("host", "")
    if not shared and urlsplit(f"//{host}").hostname not in LOOPBACK:
        return "This web app is for this machine alone: open it as http://127.0.0.1."
    origin = headers.get("origin")
    if origin and urlsplit(origin).netloc != host:
        return "This request came from another site: open the web app itself."
    return ""
