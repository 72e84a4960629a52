"""Open a file to write: a video or a still."""

from __future__ import annotations

from pathlib import Path

from veil.core import VeilError
from veil.media.encoding import LibavSink
from veil.media.inputs import is_image
from veil.media.stills import StillSink
from veil.media.video import OUTPUT_SUFFIXES, Codec, VideoInfo, VideoSink, VideoSource


def open_sink(
    path: Path,
    info: VideoInfo,
    *,
    codec: Codec = "h264",
    quality: int | None = None,
    overwrite: bool = False,
    audio_from: VideoSource | None = None,
) -> VideoSink:
    """Open a file for frames of ``info``'s size and times; a name that ends as a still's makes a still.

    ``quality`` is the encoder's crf, less is better: by default 23 for h264, 28 for h265; stills have none.
    ``audio_from`` is a source, opened with ``audio=True``, whose sound is copied; nothing else of it ever is.
    """
    path = Path(path)
    if is_image(path):
        return StillSink(path, info, overwrite=overwrite)
    suffixes = OUTPUT_SUFFIXES[codec]
    if path.suffix.lower() not in suffixes:
        raise VeilError(
            f"{path} cannot hold {codec} video: name a file that ends in {' or '.join(suffixes)}.",
            code="output-suffix",
        )
    if quality is not None and codec == "ffv1":
        raise VeilError(
            f"quality {quality} has no meaning for ffv1, which is lossless: leave it out.", code="quality"
        )
    if quality is not None and not 0 <= quality <= 51:
        raise VeilError(
            f"quality {quality} is out of range: choose from 0 (best) to 51 (smallest).", code="quality"
        )
    return LibavSink(path, info, codec, quality, overwrite, audio_from)
