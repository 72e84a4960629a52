"""A channel between two threads: one decodes or encodes, the other works on the frames.

libav releases the interpreter while it works, so that decoding and encoding overlap with whatever lies between; a channel
holds one window, so that memory does not grow with the length of a video.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Channel(Generic[_T]):
    """Passes items from one thread to another; either side may end it, at once or with an error."""

    def __init__(self) -> None:
        self._items: deque[_T] = deque()
        self.ended = False
        self._changed = threading.Condition()
        self.error: BaseException | None = None

    def put(self, item: _T) -> bool:
        """Wait for room and add the item; False once the channel has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or not self._items)
            if not self.ended:
                self._items.append(item)
                self._changed.notify_all()
            return not self.ended

    def get(self) -> _T | None:
        """Wait for the next item; at the end None, or the error that ended the channel."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or self._items)
            if self._items:
                self._changed.notify_all()
                return self._items.popleft()
            if self.error is not None:
                raise self.error
            return None

    def end(self, error: BaseException | None = None, *, now: bool = False) -> None:
        """Take no more items, and with ``now`` discard those that wait; the first error stays."""
        with self._changed:
            if now:
                self._items.clear()
            self.ended = True
            self.error = self.error or error
            self._changed.notify_all()
