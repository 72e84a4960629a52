"""A window on this screen; it needs a build of OpenCV with a GUI, and a display."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress

import cv2

from veil.apps.live.sinks import PORT, TIMEOUT
from veil.core import Frames, VeilError
from veil.media.video import VideoInfo

# The base installation has opencv-python-headless; both packages hold the module cv2, and the last one installed is used.
GUI_REMEDY = "pip install --force-reinstall --no-deps opencv-python"
LARGEST = 1280, 720  # pixels of a window when it opens; it can be made larger


class WindowSink:
    """A window; q, Esc or its close button end the video."""

    NAME = "Veil"

    def __init__(self, info: VideoInfo) -> None:
        if not has_gui():
            raise VeilError(
                f"this build of OpenCV has no windows: run `{GUI_REMEDY}`, or use --to http://127.0.0.1:{PORT}.",
                code="window-no-gui",
            )
        os.environ.setdefault("QT_LOGGING_RULES", "default.warning=false")  # about fonts that nothing needs
        try:
            if not has_display():
                raise _no_display()
            cv2.namedWindow(self.NAME, cv2.WINDOW_NORMAL | cv2.WINDOW_GUI_NORMAL)
            scale = min(1.0, LARGEST[0] / info.width, LARGEST[1] / info.height)
            cv2.resizeWindow(self.NAME, max(1, round(info.width * scale)), max(1, round(info.height * scale)))
        except cv2.error as error:
            raise _no_display() from error
        self._open = True

    def show(self, frame: Frames, tick: int, *, placeholder: bool) -> bool:
        """See `LiveSink`."""
        if self._open:  # or OpenCV would open another
            cv2.imshow(self.NAME, frame[..., ::-1])
        return self.poll()

    def poll(self) -> bool:
        """See `LiveSink`."""
        if self._open:
            pressed = cv2.waitKey(1) & 0xFF
            self._open = pressed not in (27, ord("q")) and self._visible()
        return self._open

    def _visible(self) -> bool:
        try:
            return cv2.getWindowProperty(self.NAME, cv2.WND_PROP_VISIBLE) >= 1
        except cv2.error:  # raised by Qt for a window that was closed
            return False

    def describe(self) -> str:
        """See `LiveSink`."""
        return "in a window: q ends it."

    def close(self) -> None:
        """See `LiveSink`."""
        with suppress(cv2.error):
            cv2.destroyWindow(self.NAME)


def _no_display() -> VeilError:
    return VeilError(
        f"there is no display for a window here: use --to http://127.0.0.1:{PORT}, or a file.",
        code="window-no-display",
    )


def has_gui() -> bool:
    """Whether OpenCV was built with windows; opencv-python-headless was not."""
    return hasattr(cv2, "imshow") and re.search(r"GUI:\s+NONE", cv2.getBuildInformation()) is None


def has_display() -> bool:
    """Whether a window can be opened here.

    Another process tries it, because Qt ends the whole program where a display does not answer or one of its libraries is missing.
    """
    if sys.platform in ("darwin", "win32"):
        return True
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        return False
    attempt = [sys.executable, "-c", "import cv2; cv2.namedWindow('Veil')"]
    try:
        tried = subprocess.run(
            attempt, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=3 * TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return False
    return tried.returncode == 0
