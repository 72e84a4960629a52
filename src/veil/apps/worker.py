"""One video of a batch: what is done to it, by whom, and what came of it.

A `Worker` makes its method once, from its name, takes one `Task` after the other and answers each with an `Outcome`, be
it an error. It writes into a folder of its own below ``OUT/.veil-batch``, and a whole video gets its place by being
renamed, so that a worker may be killed at any moment. The folder of a dead one stays until the batch ends: three of them
for the same video, and it is given up.
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
from veil.media.storage import Slot, is_url
from veil.media.video import Codec
from veil.methods import ANONYMIZERS, DEFAULT, make

STAGE = ".veil-batch"  # below the output folder: what is being written


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is done to every video; a worker makes its method of it."""

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
        """The anonymizer; on another device, if it is one that asks for a device."""
        made = make(self.method, region=self.region, hide=self.hide, also=self.also)
        if device is None or "device" not in made.params():
            return made
        return type(made)(**(made.params() | {"device": device}))

    def told(self) -> dict[str, Any]:
        """As a manifest tells them: a seed would undo the noise, so it is left out; weights may change, so they count."""
        told = asdict(self) | {"method": re.sub(r"\bseed=[^,]*,?", "", self.method).rstrip(",:")}
        if self.learned:
            folder = self.learned.is_dir()
            told["weights"] = storage.sha256(self.learned / "weights.safetensors" if folder else self.learned)
        return told

    @property
    def learned(self) -> Path | None:
        """The run or the exported model that the method is, if it is one."""
        path = Path(self.method)
        return path if self.method.partition(":")[0] not in ANONYMIZERS and path.exists() else None


class Task(NamedTuple):
    """One video: where it is, its place below the output folder, and that folder."""

    source: str
    target: str
    output: str

    @property
    def place(self) -> str:
        """The file that is to be written."""
        return storage.joined(self.output, Path(self.target))


class Content(NamedTuple):
    """A file as it was: to tell later whether it still is the same."""

    sha256: str
    bytes: int
    changed: str

    def same(self, name: str, *, verify: bool = False) -> bool:
        """Whether a file has this content still; it is read only where its size and time do not tell."""
        now = storage.stamp(name)
        if now is None or now.bytes != self.bytes:
            return False
        if now.changed and now.changed == self.changed and not verify:
            return True
        return storage.sha256(name) == self.sha256


@dataclass(frozen=True)
class Outcome:
    """What came of one video: a line of the manifest."""

    state: Literal["begun", "done", "failed", "refused"]
    target: str
    source: str
    why: str | None = None
    input: Content | None = None
    output: Content | None = None
    seconds: float | None = None
    frames: int | None = None
    hidden: float | None = None  # mean share of a frame that was changed
    frames_without: int | None = None  # in how many frames nothing was found
    tries: int = 1
    options: Mapping[str, Any] | None = None

    def line(self) -> str:
        """As JSON, without what is not known."""
        told = {key: value for key, value in asdict(self).items() if value is not None}
        for key in ("input", "output"):
            if (content := getattr(self, key)) is not None:
                told[key] = content._asdict()
        return json.dumps(told, ensure_ascii=False)

    @classmethod
    def read(cls, line: str) -> Self:
        """Of its line; a line that is none raises ValueError, KeyError or TypeError."""
        told = json.loads(line)
        for key in ("input", "output"):
            if key in told:
                told[key] = Content(**told[key])
        if told["state"] not in ("begun", "done", "failed", "refused"):
            raise ValueError(told["state"])
        return cls(**told)


class Worker:
    """Anonymizes one video after the other by a method that it makes once."""

    def __init__(self, options: Options, share: int | None = None, device: str | None = None) -> None:
        """``share``: how many of the machine's cores are for it [all]; ``device``: for methods that ask for one."""
        self.options, self._device = options, device
        self._slot = Slot()
        if share:
            self._slot.take_cores(share)
        self._anonymizer: Anonymizer | None = None

    def __call__(self, task: Task) -> Outcome:
        """What came of a video; this never raises, else one bad file would end the batch."""
        begun, tries = time.monotonic(), 1
        try:
            stage = storage.joined(task.output, Path(STAGE))
            with storage.trace(stage, hashlib.sha256(task.target.encode()).hexdigest()[:16]) as trace:
                tries += trace.others
                if tries > TRIES:
                    raise VeilError(f"{task.source} was given up: {TRIES} workers died of it.")
                outcome = self._anonymized(task, trace.folder or self._slot.folder)
        except VeilError as error:
            outcome = Outcome("failed", task.target, task.source, str(error))
        except OSError as error:
            why = f"{error.filename or task.source} cannot be used: {error.strerror or error}."
            outcome = Outcome("failed", task.target, task.source, why)
        except Exception as error:
            why = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            outcome = Outcome("failed", task.target, task.source, f"this is a mistake of Veil's ({why}).")
        return replace(outcome, seconds=round(time.monotonic() - begun, 3), tries=min(tries, TRIES))

    def _anonymized(self, task: Task, folder: Path) -> Outcome:
        if self._anonymizer is None:
            self._anonymizer = self.options.make(self._device)
        before = storage.stamp(task.source)
        if before is None:
            raise VeilError(
                f"{task.source} is not there: check the name; machines of a cluster must all see it."
            )
        options, draft = self.options, folder / f"video{Path(task.target).suffix}"
        reading = storage.at_hand(task.source, self._slot.folder)
        try:
            content = Content(storage.sha256(reading), *before)
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
                    f"{task.source} changed while it was read: run the batch again when it is whole."
                )
            checksum = storage.sha256(draft)
            storage.publish(draft, task.place)
        except VeilError as error:
            # What the user knows are the names of the video and its place, not of copies and drafts.
            said = str(error).replace(str(reading), task.source).replace(str(draft), task.place)
            raise VeilError(said) from error
        finally:
            draft.unlink(missing_ok=True)
            if is_url(task.source):
                reading.unlink(missing_ok=True)  # pixels that nobody has anonymized
        written = storage.stamp(task.place)
        if written is None:
            raise VeilError(f"{task.place} was written and is gone: who else writes there?")
        return Outcome(
            "done",
            task.target,
            task.source,
            input=content,
            output=Content(checksum, *written),
            frames=report.frames,
            hidden=round(report.hidden, 4),
            frames_without=report.frames_without,
        )
