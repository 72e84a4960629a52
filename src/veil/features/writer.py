"""Adding videos to a store as they are extracted or anonymized, many at a time."""

from __future__ import annotations

import time

from veil.core import VeilError
from veil.features.bank import VideoFeatures, Vocabulary
from veil.features.store import Store

_MAX_BYTES = 48 << 20  # bytes of features that wait to be written: what a kill may lose,
_MAX_SECONDS = 20.0  # and for how many seconds


class StoreWriter:
    """Adds videos to a store, many at a time; what is open is written at the end, also after an error."""

    def __init__(self, store: Store, vocabulary: Vocabulary, *, skip: bool = False) -> None:
        self._store, self._vocabulary, self._skip = store, vocabulary, skip
        self._open: list[VideoFeatures] = []
        self._bytes, self._since = 0, time.monotonic()
        self.written = 0

    def add(self, video: VideoFeatures) -> VeilError | None:
        """Take a video; returns the error that prevents it."""
        try:
            self._store.check([video])
        except VeilError as error:
            return error
        self._open.append(video)
        self._bytes += 4 * (video.clips.numel() + video.stills.numel())
        if self._bytes > _MAX_BYTES or time.monotonic() - self._since > _MAX_SECONDS:
            self.flush()
        return None

    def flush(self) -> None:
        """Write what is open."""
        waiting, self._open = self._open, []
        if waiting:
            self.written += self._store.append(waiting, self._vocabulary, skip=self._skip)
        self._bytes, self._since = 0, time.monotonic()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
