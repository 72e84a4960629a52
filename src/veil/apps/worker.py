"""One video of a batch: the task, the worker that does it, and its outcome.

A `VideoWorker` makes its anonymizer once, takes one `VideoTask` after the other and returns a `VideoOutcome` for each, also
for an error. It writes into a folder of its own below ``OUT/.veil-batch``, and a whole video gets its place by being
renamed, so that a worker may be killed at any moment. The folder of a dead one stays until the batch ends: after three of
them for the same video, it is given up.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from veil.apps.cluster import TRIES
from veil.apps.pipeline import anonymize_video
from veil.core import Anonymizer, VeilError
from veil.media import storage
from veil.media.processes import WorkerSlot
from veil.media.storage import is_url
from veil.media.video import Codec
from veil.methods import ANONYMIZERS, DEFAULT, make

WORK_FOLDER = ".veil-batch"  # below the output folder: what is being written


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """What is done to every video; a worker builds its anonymizer from it."""

    method: str = DEFAULT
    region: str | None = None
    hide: str | None = None
    also: str | None = None
    audio: Literal["drop", "keep"] = "drop"
    codec: Codec = "h264"
    quality: int | None = None
    require_match: bool = False
    salvage: bool = False

    def make(self, device: str | None = None) -> Anonymizer:
        """The anonymizer; on this device, if it takes one."""
        made = make(self.method, region=self.region, hide=self.hide, also=self.also)
        if device is None or "device" not in made.params():
            return made
        return type(made)(**(made.params() | {"device": device}))

    def recorded(self) -> dict[str, Any]:
        """As a manifest records them: without the seed, which would undo the noise; with a checksum of the weights, which may change."""
        recorded = asdict(self) | {"method": re.sub(r"\bseed=[^,]*,?", "", self.method).rstrip(",:")}
        if self.learned:
            folder = self.learned.is_dir()
            recorded["weights"] = storage.sha256(
                self.learned / "weights.safetensors" if folder else self.learned
            )
        return recorded

    @property
    def learned(self) -> Path | None:
        """The run or the exported model that the method is, if it is one."""
        path = Path(self.method)
        return path if self.method.partition(":")[0] not in ANONYMIZERS and path.exists() else None


class VideoTask(NamedTuple):
    """One video: where it is, its place below the output folder, and that folder."""

    source: str
    target: str
    output: str

    @property
    def place(self) -> str:
        """The file that is to be written."""
        return storage.join(self.output, Path(self.target))


class FileContent(NamedTuple):
    """A file as it was, to find out later whether it is still the same."""

    sha256: str
    bytes: int
    changed: str

    def same(self, name: str, *, verify: bool = False) -> bool:
        """Whether a file has this content still; it is read only where size and time do not decide."""
        now = storage.stamp(name)
        if now is None or now.bytes != self.bytes:
            return False
        if now.changed and now.changed == self.changed and not verify:
            return True
        return storage.sha256(name) == self.sha256


@dataclass(frozen=True)
class VideoOutcome:
    """The outcome of one video: a line of the manifest."""

    state: Literal["begun", "done", "failed", "refused"]
    target: str
    source: str
    why: str | None = None
    input: FileContent | None = None
    output: FileContent | None = None
    seconds: float | None = None
    frames: int | None = None
    hidden: float | None = None  # mean share of a frame that was changed
    frames_without: int | None = None  # in how many frames nothing was found
    tries: int = 1
    options: Mapping[str, Any] | None = None

    def line(self) -> str:
        """As JSON, without what is not known."""
        recorded = {key: value for key, value in asdict(self).items() if value is not None}
        for key in ("input", "output"):
            if (content := getattr(self, key)) is not None:
                recorded[key] = content._asdict()
        return json.dumps(recorded, ensure_ascii=False)

    @classmethod
    def read(cls, line: str) -> Self:
        """Parse its line; another line raises ValueError, KeyError or TypeError."""
        recorded = json.loads(line)
        for key in ("input", "output"):
            if key in recorded:
                recorded[key] = FileContent(**recorded[key])
        if recorded["state"] not in ("begun", "done", "failed", "refused"):
            raise ValueError(recorded["state"])
        return cls(**recorded)


class VideoWorker:
    """Anonymizes one video after the other by a method that it makes once."""

    def __init__(self, options: BatchOptions, share: int | None = None, device: str | None = None) -> None:
        """``share``: how many of the machine's cores are for it [all]; ``device``: for methods that need one."""
        self.options, self._device = options, device
        self._slot = WorkerSlot()
        if share:
            self._slot.take_cores(share)
        self._anonymizer: Anonymizer | None = None

    def __call__(self, task: VideoTask) -> VideoOutcome:
        """The outcome of a video; this never raises, else one bad file would end the batch."""
        begun, tries = time.monotonic(), 1
        try:
            work = storage.join(task.output, Path(WORK_FOLDER))
            with storage.attempt(work, hashlib.sha256(task.target.encode()).hexdigest()[:16]) as attempt:
                tries += attempt.others
                if tries > TRIES:
                    raise VeilError(
                        f"{task.source} was given up: {TRIES} workers died of it.", code="given-up"
                    )
                outcome = self._anonymized(task, attempt.folder or self._slot.folder)
        except VeilError as error:
            outcome = VideoOutcome("failed", task.target, task.source, str(error))
        except OSError as error:
            why = f"{error.filename or task.source} cannot be used: {error.strerror or error}."
            outcome = VideoOutcome("failed", task.target, task.source, why)
        except Exception as error:
            why = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            outcome = VideoOutcome(
                "failed", task.target, task.source, f"this is a defect of Veil ({why}): please report it."
            )
        return replace(outcome, seconds=round(time.monotonic() - begun, 3), tries=min(tries, TRIES))

    def _anonymized(self, task: VideoTask, folder: Path) -> VideoOutcome:
        if self._anonymizer is None:
            self._anonymizer = self.options.make(self._device)
        before = storage.stamp(task.source)
        if before is None:
            raise VeilError(
                f"{task.source} does not exist: check the name; all machines of a cluster must see it.",
                code="input-missing",
            )
        options, draft = self.options, folder / f"video{Path(task.target).suffix}"
        reading = storage.local_copy(task.source, self._slot.folder)
        try:
            content = FileContent(storage.sha256(reading), *before)
            report = anonymize_video(
                reading,
                draft,
                self._anonymizer,
                audio=options.audio,
                codec=options.codec,
                quality=options.quality,
                require_match=options.require_match,
                salvage=options.salvage,
                overwrite=True,
            )
            if storage.stamp(task.source) != before:
                raise VeilError(
                    f"{task.source} changed while it was read: run the batch again when it is complete.",
                    code="input-changed",
                )
            checksum = storage.sha256(draft)
            storage.publish(draft, task.place)
        except VeilError as error:
            # The user gave the names of the video and its place, not of copies and drafts.
            message = str(error).replace(str(reading), task.source).replace(str(draft), task.place)
            raise VeilError(message, code=error.code) from error
        finally:
            draft.unlink(missing_ok=True)
            if is_url(task.source):
                reading.unlink(missing_ok=True)  # raw pixels
        written = storage.stamp(task.place)
        if written is None:
            raise VeilError(
                f"{task.place} was written and is gone: check what else writes there.", code="output-gone"
            )
        return VideoOutcome(
            "done",
            task.target,
            task.source,
            input=content,
            output=FileContent(checksum, *written),
            frames=report.frames,
            hidden=round(report.hidden, 4),
            frames_without=report.frames_without,
        )
