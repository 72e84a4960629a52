"""Where a live picture is shown: a window, a file, MJPEG over HTTP on this machine, or an RTSP server.

An outlet gets frames that are anonymized already, and cards. It may leave frames out, but holds nobody up for long.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import av
import cv2
import numpy as np
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from veil.core import Frames, VeilError
from veil.media.video import Time, VideoInfo, VideoSink, open_sink

TICKS = 90_000  # in a second
PORT = 8090
VIEWERS = 8  # of one page at once
PATIENCE = 10.0  # seconds that a viewer or a server may be silent
SHORTEST = 8  # characters of a token
QUALITY = 85  # of JPEG
LARGEST = 1280, 720  # pixels of a window when it opens; it can be made larger


class Outlet(Protocol):
    """Shows frames, one after the other."""

    def show(self, frame: Frames, tick: int, *, card: bool) -> bool:
        """Show a frame ``(H, W, 3)`` that belongs to that tick, of which there are `TICKS` in a second; False: no more."""
        ...

    def idle(self) -> bool:
        """Called while there is nothing to show; False: no more is wanted."""
        ...

    def words(self) -> str:
        """What a user has to know to see it; nothing, where that is clear."""
        ...

    def close(self) -> None:
        """Finish what was begun."""
        ...


def open_outlet(place: str, info: VideoInfo, *, share: bool, token: str | None, overwrite: bool) -> Outlet:
    """The outlet that ``window``, a URL or the name of a file means.

    Without `share`, nothing is shown to other machines; with it, who wants to see it must give a token.
    """
    if place == "window":
        return Window(info)
    scheme, found, _ = place.partition("://")
    if not found:
        return File(Path(place), info, overwrite=overwrite)
    if scheme == "http":
        host, port = _address(place, PORT)
        if not local(host):
            if not share:
                raise VeilError(
                    f"{place} could be seen by other machines: show it at http://127.0.0.1:{port}, or pass --share-on-network "
                    "and a --token."
                )
            if not token:
                raise VeilError(
                    f"{place} could be seen by anybody: give viewers a --token of {SHORTEST} characters."
                )
        if token is not None and len(token) < SHORTEST:
            raise VeilError(
                f"the token has {len(token)} characters and is soon guessed: take {SHORTEST} or more."
            )
        return Page(host, port, token)
    if scheme in ("rtsp", "rtsps"):
        host, _ = _address(place, 554)
        if not local(host) and not share:
            raise VeilError(
                f"the RTSP server at {host} is another machine: pass --share-on-network to send it the picture."
            )
        return Push(place, info)
    raise VeilError(
        f"{scheme}:// is no place to show it: take window, a file, http://127.0.0.1:{PORT} or rtsp://…"
    )


def local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _address(place: str, port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(place)
        return parts.hostname or "", parts.port if parts.port is not None else port
    except ValueError as error:
        raise VeilError(
            f"{place.split('?')[0]} is no address ({error}): write http://127.0.0.1:{PORT}."
        ) from error


class Window:
    """A window on this screen; q, Esc or its cross end it."""

    NAME = "Veil"

    def __init__(self, info: VideoInfo) -> None:
        os.environ.setdefault("QT_LOGGING_RULES", "default.warning=false")  # of fonts that nothing needs
        try:
            if not _screen():
                raise VeilError("")
            cv2.namedWindow(self.NAME, cv2.WINDOW_NORMAL | cv2.WINDOW_GUI_NORMAL)
            scale = min(1.0, LARGEST[0] / info.width, LARGEST[1] / info.height)
            cv2.resizeWindow(self.NAME, max(1, round(info.width * scale)), max(1, round(info.height * scale)))
        except (VeilError, cv2.error) as error:
            raise VeilError(
                f"there is no screen for a window here: show it with --to http://127.0.0.1:{PORT}, or in a file."
            ) from error
        self._open = True

    def show(self, frame: Frames, tick: int, *, card: bool) -> bool:
        """See `Outlet`."""
        if self._open:  # or OpenCV would open another
            cv2.imshow(self.NAME, frame[..., ::-1])
        return self.idle()

    def idle(self) -> bool:
        """See `Outlet`."""
        if self._open:
            pressed = cv2.waitKey(1) & 0xFF
            self._open = pressed not in (27, ord("q")) and self._visible()
        return self._open

    def _visible(self) -> bool:
        try:
            return cv2.getWindowProperty(self.NAME, cv2.WND_PROP_VISIBLE) >= 1
        except cv2.error:  # what Qt says of a window that its cross has closed
            return False

    def words(self) -> str:
        """See `Outlet`."""
        return "in a window: q ends it."

    def close(self) -> None:
        """See `Outlet`."""
        with suppress(cv2.error):
            cv2.destroyWindow(self.NAME)


def _screen() -> bool:
    """Whether a window can be opened here.

    Another process tries it where that may fail: at a screen that does not answer, or without a library of it, Qt ends the
    whole program.
    """
    if sys.platform in ("darwin", "win32"):
        return True
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        return False
    attempt = [sys.executable, "-c", "import cv2; cv2.namedWindow('Veil')"]
    try:
        tried = subprocess.run(
            attempt, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=3 * PATIENCE
        )
    except subprocess.TimeoutExpired:
        return False
    return tried.returncode == 0


class File:
    """A video file: it takes its name when the picture ends, and holds what was shown until then."""

    def __init__(self, path: Path, info: VideoInfo, *, overwrite: bool) -> None:
        self._step = max(1, round(TICKS / info.fps))
        self._sink: VideoSink = open_sink(path, info, overwrite=overwrite)
        self._sink.__enter__()
        self._held: tuple[Frames, int] | None = (
            None  # how long a frame lasts is known when the next one comes
        )
        self._zero: int | None = None

    def show(self, frame: Frames, tick: int, *, card: bool) -> bool:
        """See `Outlet`. A file begins with a frame, not with a card."""
        if card and self._zero is None:
            return True
        self._zero = tick if self._zero is None else self._zero
        self._write(tick)
        self._held = frame, tick
        return True

    def _write(self, until: int) -> None:
        if self._held is not None and self._zero is not None:
            frame, tick = self._held
            try:
                self._sink.write(frame[None], [Time(tick - self._zero, max(1, until - tick))])
            except BaseException as error:
                self._held = None
                self._sink.__exit__(type(error), error, None)
                raise

    def idle(self) -> bool:
        """See `Outlet`."""
        return True

    def words(self) -> str:
        """See `Outlet`."""
        return ""

    def close(self) -> None:
        """See `Outlet`."""
        if self._held is None:  # nothing was shown: nothing is left
            gone = VeilError("nothing was shown")
            self._sink.__exit__(VeilError, gone, None)
            return
        self._write(self._held[1] + self._step)
        self._held = None
        self._sink.__exit__(None, None, None)


class Page:
    """MJPEG over HTTP: a page at /, the picture at /stream, one of its frames at /frame.jpg."""

    def __init__(self, host: str, port: int, token: str | None) -> None:
        self._host, self.token = host, token
        self._frame: Frames | None = None
        self._jpeg: tuple[int, bytes] = (0, b"")
        self._number, self._over = 0, False
        self._moved = threading.Condition()
        self._coding = threading.Lock()
        self.room = threading.BoundedSemaphore(VIEWERS)
        try:
            self._server = _server(host, port, self)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise VeilError(f"http://{host}:{port} cannot be served ({why}): choose another port.") from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def show(self, frame: Frames, tick: int, *, card: bool) -> bool:
        """See `Outlet`. It is coded only where somebody looks, and who is slow misses frames."""
        with self._moved:
            self._frame, self._number = frame, self._number + 1
            self._moved.notify_all()
        return True

    def next(self, seen: int) -> tuple[int, bytes] | None:
        """A newer frame than the one of that number, as JPEG; None: there are no more."""
        with self._moved:
            if not self._moved.wait_for(lambda: self._over or self._number > seen, PATIENCE) or self._over:
                return None
            number, frame = self._number, self._frame
        assert frame is not None
        with self._coding:  # once for all viewers
            if self._jpeg[0] < number:
                good, coded = cv2.imencode(
                    ".jpg", np.ascontiguousarray(frame[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, QUALITY]
                )
                if not good:
                    raise RuntimeError("a frame could not be coded as JPEG")
                self._jpeg = number, coded.tobytes()
            return self._jpeg

    def admits(self, host: str, path: str, authorization: str) -> bool:
        """Whether a request may see the picture: by its token, and by the name that it calls this machine."""
        if local(self._host):
            # Or any page in the browser could read it, by a name of its own that it lets point here.
            name = urlsplit(f"//{host}").hostname or ""
            if not local(name):
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

    def idle(self) -> bool:
        """See `Outlet`."""
        return True

    def words(self) -> str:
        """See `Outlet`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"to be seen at http://{host}:{self.port}/" + (" (with the token)." if self.token else ".")

    def close(self) -> None:
        """See `Outlet`."""
        with self._moved:
            self._over = True
            self._moved.notify_all()
        self._server.shutdown()
        self._server.server_close()


def _server(host: str, port: int, page: Page) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE
        server_version, sys_version = "veil", ""

        def do_GET(self) -> None:
            admitted = page.admits(
                self.headers.get("Host", ""), self.path, self.headers.get("Authorization", "")
            )
            path = urlsplit(self.path).path
            if not admitted:
                self._answer(401 if page.token else 403, "text/plain", b"no")
            elif path == "/":
                query = urlsplit(self.path).query
                source = ("/stream?" + query.replace('"', "%22")) if query else "/stream"
                self._answer(200, "text/html; charset=utf-8", _PAGE.replace("SOURCE", source).encode())
            elif path == "/frame.jpg":
                made = page.next(0)
                self._answer(200 if made else 503, "image/jpeg", made[1] if made else b"")
            elif path == "/stream":
                self._stream()
            else:
                self._answer(404, "text/plain", b"nothing is here")

        def _stream(self) -> None:
            if not page.room.acquire(blocking=False):
                self._answer(503, "text/plain", b"too many viewers")
                return
            try:
                self._head(200, "multipart/x-mixed-replace; boundary=frame")
                seen = 0
                while (made := page.next(seen)) is not None:
                    seen, jpeg = made
                    head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                    self.wfile.write(head.encode() + jpeg + b"\r\n")
            except OSError:
                pass  # the viewer is gone
            finally:
                page.room.release()

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
            """Who looked when is nobody's business."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A viewer that breaks off is no error."""

    return Server((host, port), Handler)


_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Veil, live</title><style>html,body{margin:0;height:100%;background:#111}img{width:100%;height:100%;object-fit:contain}</style>
<img src="SOURCE" alt="the anonymized picture"></html>
"""


class Push:
    """H.264 to an RTSP server, which shows it to others; Veil is none itself."""

    def __init__(self, url: str, info: VideoInfo) -> None:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]  # without a password
        self._name = parts._replace(netloc=host, query="").geturl()
        self._size = info.width - info.width % 2, info.height - info.height % 2
        if "rtsp" not in av.formats_available or "libx264" not in av.codecs_available:
            raise VeilError("this build of PyAV cannot send RTSP: show it with --to http://127.0.0.1:8090.")
        options = {"rtsp_transport": "tcp", "timeout": str(round(PATIENCE * 1e6))}
        try:
            self._container = av.open(url, "w", format="rtsp", options=options, timeout=PATIENCE)
            stream = self._container.add_stream("libx264", rate=info.fps)
            assert isinstance(stream, VideoStream)
            self._stream, coder = stream, stream.codec_context
            coder.width, coder.height = self._size
            coder.pix_fmt = "yuv420p"
            coder.time_base = stream.time_base = Fraction(1, TICKS)
            coder.gop_size = max(1, round(2 * info.fps))
            coder.options = {"preset": "veryfast", "tune": "zerolatency"}
            self._container.start_encoding()
        except (FFmpegError, OSError) as error:
            raise VeilError(
                f"{self._name} takes no video ({error.strerror}): an RTSP server that lets one publish must run there."
            ) from error

    def show(self, frame: Frames, tick: int, *, card: bool) -> bool:
        """See `Outlet`."""
        width, height = self._size
        picture = VideoFrame.from_ndarray(np.ascontiguousarray(frame[:height, :width]), "rgb24")
        picture.pts, picture.time_base = tick, Fraction(1, TICKS)
        try:
            self._container.mux(self._stream.encode(picture.reformat(format="yuv420p")))
        except (FFmpegError, OSError) as error:
            raise VeilError(f"{self._name} takes no more video ({error.strerror}): start again.") from error
        return True

    def idle(self) -> bool:
        """See `Outlet`."""
        return True

    def words(self) -> str:
        """See `Outlet`."""
        return f"sent to {self._name}, an RTSP server (Veil itself is none)."

    def close(self) -> None:
        """See `Outlet`."""
        with suppress(FFmpegError, OSError):
            self._container.mux(self._stream.encode(None))
        with suppress(FFmpegError, OSError):
            self._container.close()
