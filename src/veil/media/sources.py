"""Open a video to read: a file, a still, a camera or a stream."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from veil.core import VeilError
from veil.media.decoding import LibavSource
from veil.media.inputs import is_image
from veil.media.libav import reading
from veil.media.stills import StillSource
from veil.media.video import VideoSource

_CAMERAS = {"darwin": ("avfoundation", "{}"), "win32": ("dshow", "video={}")}


def open_source(spec: str | Path, *, salvage: bool = False, audio: bool = False) -> VideoSource:
    """Open a video or a still by its path, a camera by its number, or a stream by its URL.

    ``salvage`` goes on past damage, which else is a VeilError; ``audio`` keeps the sound for `open_sink`.
    """
    text = str(spec)
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        name = re.sub(r"//[^/@]*@", "//", text).split("?")[0]  # messages hold no password
        return LibavSource(name, text, live=True, audio=audio)
    if text.isdecimal() and not Path(text).exists():
        driver, device = _CAMERAS.get(sys.platform, ("v4l2", "/dev/video{}"))
        return LibavSource(f"camera {text}", device.format(text), driver=driver, live=True)
    path = Path(text)
    with reading(text):
        if path.is_dir():
            raise VeilError(f"{path} is a folder, not a video: name a file in it.", code="input-is-folder")
        with path.open("rb") as file:  # libav reports a forbidden file as an invalid one
            if not file.read(1):
                raise VeilError(f"{path} is empty (0 bytes): copy or record it again.", code="input-empty")
    return StillSource(path) if is_image(path) else LibavSource(text, "", salvage=salvage, audio=audio)
