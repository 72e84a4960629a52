"""Uploaded videos: bounded in size, checked by content, visible to their owner alone, and deleted as soon as possible.

A file lies in a folder of its own under a random name; its original name is cleaned and shown to its owner only. The container
format is recognized by the first bytes, and nothing else reaches libav: with a list of other files (HLS, concat), a "video"
could make the server read files that are not the visitor's.
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

_NAME_LENGTH = 60  # letters of a cleaned name
_HEAD = 12  # bytes by which a container is recognized
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")  # with which MP4 and QuickTime begin


@dataclass(frozen=True)
class Limits:
    """What visitors may use."""

    bytes: int = 500 * 2**20  # of an upload
    seconds: float = 600.0  # of video
    pixels: int = 4096 * 2304  # of a frame
    uploads: int = 3  # of one visitor that wait for a job
    running: int = 1  # videos that are processed at once
    waiting: int = 8  # jobs in a queue
    per_visitor: int = 2  # jobs of one visitor that run or wait in a queue
    job_seconds: float = 14_400.0  # after which a job is stopped
    keep: float = 1800.0  # seconds that results are kept, and uploads without a job
    reserve: int = 2**30  # bytes of the disk that stay free


@dataclass
class Upload:
    """One video of one visitor."""

    id: str
    owner: str
    name: str  # cleaned, shown to its owner
    folder: Path  # video.SUFFIX, and stills of it
    suffix: str
    received_at: float
    size: int = 0
    properties: dict[str, Any] = field(default_factory=dict)  # what the inspection found

    @property
    def path(self) -> Path:
        """The video file."""
        return self.folder / f"video{self.suffix}"


class Uploads:
    """All uploads that are not deleted yet."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root, self.limits = root, limits
        self._all: dict[str, Upload] = {}
        self._lock = threading.Lock()
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)

    def begin(self, owner: str, name: str, size: int | None = None) -> IncomingUpload:
        """Start to receive a video; `size` is the number of bytes that the request states."""
        self.check_size(size or 0)
        if size is not None and shutil.disk_usage(self.root).free < size + self.limits.reserve:
            raise VeilError(
                "the server has no disk space for a video of this size: try again later, or upload a smaller one.",
                code="upload-no-space",
            )
        with self._lock:
            own = sorted((u for u in self._all.values() if u.owner == owner), key=lambda u: u.received_at)
        for oldest in own[: max(0, len(own) - self.limits.uploads + 1)]:  # replaced by the new one
            self.discard(oldest.id)
        return IncomingUpload(self, owner, name)

    def get(self, owner: str, id_: str) -> Upload:
        """One of the visitor's own."""
        with self._lock:
            upload = self._all.get(id_)
        if upload is None or upload.owner != owner:
            raise VeilError("this video is not here any more: choose it again.", code="gone")
        return upload

    def take(self, owner: str, id_: str) -> Upload:
        """The same, for a job, which deletes it from now on."""
        upload = self.get(owner, id_)
        with self._lock:
            if self._all.pop(id_, None) is None:
                raise VeilError(
                    "this video is being processed already: choose it again to process it twice.",
                    code="upload-in-use",
                )
        return upload

    def discard(self, id_: str) -> None:
        """Delete a video and everything made from it."""
        with self._lock:
            upload = self._all.pop(id_, None)
        if upload:
            shutil.rmtree(upload.folder, ignore_errors=True)

    def forget(self, owner: str) -> None:
        """Delete all uploads of one visitor."""
        with self._lock:
            own = [upload.id for upload in self._all.values() if upload.owner == owner]
        for id_ in own:
            self.discard(id_)

    def sweep(self, now: float | None = None) -> None:
        """Delete uploads that no job has taken in time."""
        now = time.monotonic() if now is None else now
        with self._lock:
            old = [upload.id for upload in self._all.values() if now - upload.received_at > self.limits.keep]
        for id_ in old:
            self.discard(id_)

    def check_size(self, size: int) -> None:
        """Refuse what is larger than the limit."""
        if size > self.limits.bytes:
            raise VeilError(
                f"this video is larger than the limit of {self.limits.bytes / 2**20:.0f} MB: cut it, or use "
                "`veil anonymize`, which has no limit.",
                code="upload-too-large",
            )

    def add(self, upload: Upload) -> None:
        """Keep a video that was received completely."""
        with self._lock:
            self._all[upload.id] = upload


class IncomingUpload:
    """A video that is being received; without `finish` nothing of it is kept."""

    def __init__(self, uploads: Uploads, owner: str, name: str) -> None:
        self._uploads = uploads
        id_ = secrets.token_urlsafe(16)
        self.upload = Upload(id_, owner, clean_name(name), uploads.root / id_, "", time.monotonic())
        self._head = b""
        self._file: BinaryIO | None = None

    def write(self, chunk: bytes) -> None:
        """The next bytes; refused as soon as they are too many, or not those of a video."""
        self.upload.size += len(chunk)
        self._uploads.check_size(self.upload.size)
        if self._file is None:
            self._head += chunk
            if len(self._head) < _HEAD:
                return
            self.upload.suffix = container_suffix(self._head)
            self.upload.folder.mkdir(mode=0o700)
            self._file, chunk = self.upload.path.open("wb"), self._head
        self._file.write(chunk)

    def finish(self) -> Upload:
        """All bytes are received."""
        if self._file is None:
            container_suffix(self._head)  # too short to be a video: raises
            raise VeilError("this file is empty: choose another one.", code="upload-empty")
        self._file.close()
        self._uploads.add(self.upload)
        return self.upload

    def discard(self) -> None:
        """Delete what was received."""
        if self._file:
            self._file.close()
        shutil.rmtree(self.upload.folder, ignore_errors=True)


def container_suffix(head: bytes) -> str:
    """The file suffix that fits the first bytes of a video; what does not begin like a video is refused."""
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
    raise VeilError(
        "this file is not a video of a known format: choose an MP4, MOV, WebM, MKV, AVI or MPEG file.",
        code="not-a-video",
    )


def clean_name(name: str) -> str:
    """A visitor's file name without folder and suffix, and without anything but letters, digits, - and _.

    >>> clean_name("../../etc/My holiday <b>.mp4")
    'My-holiday-b'
    """
    last = unicodedata.normalize("NFC", name).replace("\\", "/").rsplit("/", 1)[-1]
    stem = last.rsplit(".", 1)[0] if "." in last.strip(".") else last
    return re.sub(r"[\W_]*-[\W_]*|[^\w]+", "-", stem).strip("-_")[:_NAME_LENGTH].strip("-_") or "video"
