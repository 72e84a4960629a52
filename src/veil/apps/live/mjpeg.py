"""MJPEG over HTTP: a page at /, the video at /stream, one of its frames at /frame.jpg."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import cv2
import numpy as np

from veil.apps.live.sinks import TIMEOUT
from veil.core import Frames, VeilError

MAX_VIEWERS = 8  # at once
QUALITY = 85  # of JPEG
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Veil, live</title><style>html,body{margin:0;height:100%;background:#111}img{display:block;width:100%;height:100%;object-fit:contain}</style>
<img src="SOURCE" alt="the anonymized video"></html>
"""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class MJPEGSink:
    """Serves the video to browsers; a slow viewer misses frames and delays nobody."""

    def __init__(self, host: str, port: int, token: str | None) -> None:
        self._host, self.token = host, token
        self._frame: Frames | None = None
        self._jpeg: tuple[int, bytes] = (0, b"")
        self._number, self._ended = 0, False
        self._changed = threading.Condition()
        self._encoding = threading.Lock()
        self.viewers = threading.BoundedSemaphore(MAX_VIEWERS)
        try:
            self._server = _server(host, port, self)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise VeilError(
                f"http://{host}:{port} cannot be served ({why}): choose another port.", code="port-unusable"
            ) from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def show(self, frame: Frames, tick: int, *, placeholder: bool) -> bool:
        """See `LiveSink`. A frame is encoded only where somebody watches."""
        with self._changed:
            self._frame, self._number = frame, self._number + 1
            self._changed.notify_all()
        return True

    def next(self, after: int) -> tuple[int, bytes] | None:
        """The number and JPEG of a newer frame than number `after`; None: there are no more."""
        with self._changed:
            if (
                not self._changed.wait_for(lambda: self._ended or self._number > after, TIMEOUT)
                or self._ended
            ):
                return None
            number, frame = self._number, self._frame
        assert frame is not None
        with self._encoding:  # once for all viewers
            if self._jpeg[0] < number:
                encoded, data = cv2.imencode(
                    ".jpg", np.ascontiguousarray(frame[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, QUALITY]
                )
                if not encoded:
                    raise RuntimeError("a frame could not be encoded as JPEG")
                self._jpeg = number, data.tobytes()
            return self._jpeg

    def admits(self, host: str, path: str, authorization: str) -> bool:
        """Whether a request may see the video: by its token, and by the host name it was sent to."""
        if is_loopback(self._host):
            # Or any web page could read it by a name of its own that points to this machine.
            name = urlsplit(f"//{host}").hostname or ""
            if not is_loopback(name):
                return False
        if self.token is None:
            return True
        given = parse_qs(urlsplit(path).query).get("token", [""])[0]
        kind, _, value = authorization.partition(" ")
        if kind.lower() == "bearer":
            given = value.strip()
        elif kind.lower() == "basic":
            with suppress(ValueError):
                given = base64.b64decode(value).decode().partition(":")[2]
        return hmac.compare_digest(given.encode(), self.token.encode())

    def poll(self) -> bool:
        """See `LiveSink`."""
        return True

    def describe(self) -> str:
        """See `LiveSink`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"shown at http://{host}:{self.port}/" + (" (with the token)." if self.token else ".")

    def close(self) -> None:
        """See `LiveSink`."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()


def _server(host: str, port: int, sink: MJPEGSink) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT
        server_version, sys_version = "veil", ""

        def do_GET(self) -> None:
            admitted = sink.admits(
                self.headers.get("Host", ""), self.path, self.headers.get("Authorization", "")
            )
            path = urlsplit(self.path).path
            if not admitted:
                self._answer(401 if sink.token else 403, "text/plain", b"no")
            elif path == "/":
                query = urlsplit(self.path).query
                source = ("/stream?" + query.replace('"', "%22")) if query else "/stream"
                self._answer(200, "text/html; charset=utf-8", _PAGE.replace("SOURCE", source).encode())
            elif path == "/frame.jpg":
                newest = sink.next(0)
                self._answer(200 if newest else 503, "image/jpeg", newest[1] if newest else b"")
            elif path == "/stream":
                self._stream()
            else:
                self._answer(404, "text/plain", b"nothing is here")

        def _stream(self) -> None:
            if not sink.viewers.acquire(blocking=False):
                self._answer(503, "text/plain", b"too many viewers")
                return
            try:
                self._head(200, "multipart/x-mixed-replace; boundary=frame")
                number = 0
                while (newest := sink.next(number)) is not None:
                    number, jpeg = newest
                    head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                    self.wfile.write(head.encode() + jpeg + b"\r\n")
            except OSError:
                pass  # the viewer is gone
            finally:
                sink.viewers.release()

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            with suppress(OSError):
                self._head(code, kind, len(body))
                self.wfile.write(body)

        def _head(self, code: int, kind: str, length: int | None = None) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            if code == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="veil"')
            if length is not None:
                self.send_header("Content-Length", str(length))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Requests are not logged."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A viewer that disconnects is not an error."""

    return Server((host, port), Handler)
