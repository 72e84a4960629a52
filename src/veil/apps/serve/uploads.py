"""Videos that visitors bring: bounded, checked by content, each its visitor's own, and gone as soon as they can be.

A file lies in a folder of its own under a random name; what it was called is told to its visitor alone, made plain.
What a video is, is seen by its first bytes, and libav is shown nothing else: lists of other files (HLS, concat) are
how a "video" would have the server read what is not the visitor's.
"""

from __future__ import annotations

import re
import secrets
import shutil
import threading
import time
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from veil.core import VeilError

_LONGEST = 60  # letters of a name
_HEAD = 12  # bytes by which a container is told
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")  # with which MP4 and QuickTime begin


@dataclass(frozen=True)
class Limits:
    """What visitors may ask for."""

    bytes: int = 500 * 2**20  # of an upload
    seconds: float = 600.0  # of video
    pixels: int = 4096 * 2304  # of a frame
    uploads: int = 3  # of one visitor that wait for a job
    running: int = 1  # videos that are worked on at once
    waiting: int = 8  # jobs in a queue
    each: int = 2  # jobs of one visitor in a queue that run or wait
    patience: float = 14_400.0  # seconds that a job may run
    keep: float = 1800.0  # seconds that results are kept, and uploads that no job was made of
    spare: int = 2**30  # bytes of the disk that stay free


@dataclass
class Upload:
    """One video of one visitor."""

    id: str
    owner: str
    name: str  # plain, for the eyes of its owner
    folder: Path  # video.SUFFIX, and stills of it
    suffix: str
    since: float
    size: int = 0
    about: dict[str, Any] = field(default_factory=dict)  # what a look at it told

    @property
    def path(self) -> Path:
        """The video itself."""
        return self.folder / f"video{self.suffix}"


class Uploads:
    """All that was brought and is still there."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root, self.limits = root, limits
        self._all: dict[str, Upload] = {}
        self._lock = threading.Lock()
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)

    def begin(self, owner: str, name: str, size: int | None = None) -> Receiving:
        """Make room for a video that is about to come; `size` is what it is said to have."""
        self._fits(size or 0)
        if size is not None and shutil.disk_usage(self.root).free < size + self.limits.spare:
            raise VeilError(
                "there is no room left for a video of this size: try again later, or bring a smaller one."
            )
        with self._lock:
            own = sorted((u for u in self._all.values() if u.owner == owner), key=lambda upload: upload.since)
        for oldest in own[
            : max(0, len(own) - self.limits.uploads + 1)
        ]:  # the visitor has thought better of it
            self.discard(oldest.id)
        return Receiving(self, owner, name)

    def get(self, owner: str, id_: str) -> Upload:
        """One of the visitor's own."""
        with self._lock:
            upload = self._all.get(id_)
        if upload is None or upload.owner != owner:
            raise VeilError("this video is not here any more: choose it again.")
        return upload

    def take(self, owner: str, id_: str) -> Upload:
        """The same, for a job: from now on it is the job that deletes it."""
        upload = self.get(owner, id_)
        with self._lock:
            if self._all.pop(id_, None) is None:
                raise VeilError("this video is being worked on already: choose it again to work on it twice.")
        return upload

    def discard(self, id_: str) -> None:
        """Delete a video and all that was made of it."""
        with self._lock:
            upload = self._all.pop(id_, None)
        if upload:
            shutil.rmtree(upload.folder, ignore_errors=True)

    def forget(self, owner: str) -> None:
        """Delete all of one visitor's."""
        with self._lock:
            own = [upload.id for upload in self._all.values() if upload.owner == owner]
        for id_ in own:
            self.discard(id_)

    def sweep(self, now: float | None = None) -> None:
        """Delete what no job was made of in time."""
        now = time.monotonic() if now is None else now
        with self._lock:
            old = [upload.id for upload in self._all.values() if now - upload.since > self.limits.keep]
        for id_ in old:
            self.discard(id_)

    def _fits(self, size: int) -> None:
        if size > self.limits.bytes:
            raise VeilError(
                f"this video is larger than the {self.limits.bytes / 2**20:.0f} MB that are taken here: cut it, or use "
                "`veil anonymize`, which takes any."
            )

    def _keep(self, upload: Upload) -> None:
        with self._lock:
            self._all[upload.id] = upload


class Receiving:
    """A video that is on its way; without `finish` nothing of it stays."""

    def __init__(self, uploads: Uploads, owner: str, name: str) -> None:
        self._uploads = uploads
        id_ = secrets.token_urlsafe(16)
        self.upload = Upload(id_, owner, plain_name(name), uploads.root / id_, "", time.monotonic())
        self._head = b""
        self._file: BinaryIO | None = None

    def write(self, piece: bytes) -> None:
        """The next bytes; refused as soon as they are too many, or not those of a video."""
        self.upload.size += len(piece)
        self._uploads._fits(self.upload.size)
        if self._file is None:
            self._head += piece
            if len(self._head) < _HEAD:
                return
            self.upload.suffix = container(self._head)
            self.upload.folder.mkdir(mode=0o700)
            self._file, piece = self.upload.path.open("wb"), self._head
        self._file.write(piece)

    def finish(self) -> Upload:
        """All bytes are here."""
        if self._file is None:
            container(self._head)  # too short to be one: says so
            raise VeilError("this file is empty: choose another.")
        self._file.close()
        self._uploads._keep(self.upload)
        return self.upload

    def discard(self) -> None:
        """Something went wrong."""
        if self._file:
            self._file.close()
        shutil.rmtree(self.upload.folder, ignore_errors=True)


def container(head: bytes) -> str:
    """The ending that fits the first bytes of a video; what does not begin like a video is refused."""
    if head[4:8] in _BOXES:
        return ".mov" if head[4:8] != b"ftyp" or head[8:10] == b"qt" else ".mp4"
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return ".mkv"  # and WebM
    if head.startswith(b"RIFF") and head[8:12] == b"AVI ":
        return ".avi"
    if head.startswith(b"\x00\x00\x01\xba"):
        return ".mpg"
    if head.startswith(b"\x47") and (len(head) <= 188 or head[188:189] == b"\x47"):
        return ".ts"
    raise VeilError("this is no video that is known here: choose an MP4, MOV, WebM, MKV, AVI or MPEG file.")


def plain_name(name: str) -> str:
    """What a visitor's file was called, without its folder and ending, and without anything but letters, digits, - and _.

    >>> plain_name("../../etc/My holiday <b>.mp4")
    'My-holiday-b'
    """
    last = unicodedata.normalize("NFC", name).replace("\\", "/").rsplit("/", 1)[-1]
    stem = last.rsplit(".", 1)[0] if "." in last.strip(".") else last
    return re.sub(r"[\W_]*-[\W_]*|[^\w]+", "-", stem).strip("-_")[:_LONGEST].strip("-_") or "video"
