"""libav and OpenCV as Veil uses them: silent, one thread for OpenCV, and their errors as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import av.logging
import cv2
from av.error import FFmpegError

from veil.core import VeilError, io_errors
from veil.media.draft import Draft

# Decoder, encoder and detector share the cores already; OpenCV's waiting threads would only spin.
cv2.setNumThreads(1)
av.logging.set_level(None)  # libav's own messages name files; what a user needs to know is in the VeilError


@contextmanager
def reading(name: str, *, live: bool = False) -> Iterator[None]:
    """Turn what libav and the system raise while an input is read into one sentence."""
    try:
        yield
    except (FFmpegError, OSError) as error:
        if live:
            message, code = (
                f"{name} sends no video ({error.strerror}): check that it is on, and its address.",
                "no-stream",
            )
        elif type(error) is FileNotFoundError:
            message, code = f"{name} does not exist: check the name.", "input-missing"
        elif type(error) is PermissionError:  # libav's own class of this name means something else
            message, code = f"{name} may not be read: check its permissions.", "unreadable"
        else:
            message, code = (
                f"{name} is not a readable video, or is truncated: check that it plays in a video player.",
                "not-a-video",
            )
        raise VeilError(message, code=code) from error


def writing(draft: Draft) -> AbstractContextManager[None]:
    """Turn what libav and the system raise while an output is written into one sentence."""
    return io_errors(draft.place, "written", errors=(FFmpegError, OSError))
