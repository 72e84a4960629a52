"""The sink that an argument of ``--to`` names; nothing is shown to other machines without permission and a token."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from veil.apps.live.mjpeg import MJPEGSink, is_loopback
from veil.apps.live.sinks import PORT, FileSink, LiveSink, RTSPSink
from veil.apps.live.window import WindowSink
from veil.core import VeilError
from veil.media.video import VideoInfo

MIN_TOKEN = 8  # characters


def open_live_sink(
    place: str, info: VideoInfo, *, share: bool, token: str | None, overwrite: bool
) -> LiveSink:
    """The sink for ``window``, a URL or the name of a file.

    Without `share`, other machines see nothing; with it, viewers must give the token.
    """
    if place == "window":
        return WindowSink(info)
    scheme, found, _ = place.partition("://")
    if not found:
        return FileSink(Path(place), info, overwrite=overwrite)
    if scheme == "http":
        host, port = _address(place, PORT)
        if not is_loopback(host):
            if not share:
                raise VeilError(
                    f"{place} can be seen by other machines: use http://127.0.0.1:{port}, or pass --share-on-network "
                    "and a --token.",
                    code="not-shared",
                )
            if not token:
                raise VeilError(
                    f"{place} can be seen by anybody: pass a --token of {MIN_TOKEN} characters or more.",
                    code="token-missing",
                )
        if token is not None and len(token) < MIN_TOKEN:
            raise VeilError(
                f"a token of {len(token)} characters is easy to guess: use {MIN_TOKEN} or more.",
                code="token-short",
            )
        return MJPEGSink(host, port, token)
    if scheme in ("rtsp", "rtsps"):
        host, _ = _address(place, 554)
        if not is_loopback(host) and not share:
            raise VeilError(
                f"the RTSP server {host} is another machine: pass --share-on-network to send the video there.",
                code="not-shared",
            )
        return RTSPSink(place, info)
    raise VeilError(
        f"{scheme}:// is not an output: use window, a file, http://127.0.0.1:{PORT} or rtsp://…",
        code="output-unknown",
    )


def _address(place: str, port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(place)
        return parts.hostname or "", parts.port if parts.port is not None else port
    except ValueError as error:
        raise VeilError(
            f"{place.split('?')[0]} is not an address ({error}): write http://127.0.0.1:{PORT}.",
            code="address-invalid",
        ) from error
