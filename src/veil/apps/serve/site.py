"""What the server does for a visitor: uploads, templates, jobs and their results; everything is deleted when it is closed."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veil.apps.serve import catalogue
from veil.apps.serve.jobs import COMMAND, JobQueue, ServerJob
from veil.apps.serve.sessions import Sessions, Visitor
from veil.apps.serve.uploads import Limits, Uploads
from veil.core import VeilError
from veil.people import parts, templates

MAX_TEMPLATES, MAX_CLICKS = 50, 32  # of a visitor; of a template
SWEEP_SECONDS = 5.0  # between two deletions of old files


@dataclass(frozen=True)
class ServerSettings:
    """How the web app is served."""

    limits: Limits = field(default_factory=Limits)
    password: str | None = None  # of every visitor; None: the web app is for this machine alone
    secure: bool = False  # whether it is served by HTTPS
    command: Sequence[str] = COMMAND  # what a job runs


class Site:
    """The state behind the web app."""

    def __init__(self, settings: ServerSettings, root: Path) -> None:
        self.settings, self.root = settings, root
        self.uploads = Uploads(root / "uploads", settings.limits)
        self.jobs = JobQueue(root / "jobs", settings.limits, settings.command)
        self.sessions = Sessions(root / "visitors", settings.password)
        self._sample: bytes | None = None
        self._sample_lock = threading.Lock()
        self._stop = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep_regularly, name="veil-sweep", daemon=True)
        self._sweeper.start()

    def new_visitor(self) -> tuple[str, Visitor]:
        """A new visitor's cookie, and the visitor."""
        cookie, visitor, removed = self.sessions.create(self.jobs.active)
        if removed:
            self.forget(removed)
        return cookie, visitor

    def forget(self, visitor: Visitor) -> None:
        """Delete everything of a visitor."""
        self.jobs.forget(visitor.id)
        self.uploads.forget(visitor.id)
        shutil.rmtree(visitor.folder, ignore_errors=True)

    def template_home(self, visitor: Visitor) -> Path:
        """The data folder of the visitor's templates; without a password it begins with the user's own templates."""
        folder = visitor.folder / "veil" / "templates"
        if not folder.is_dir():
            folder.mkdir(parents=True, mode=0o700)
            if self.settings.password is None:
                for file in templates.folder().glob(f"*{templates.SUFFIX}"):
                    shutil.copy(file, folder)
        return visitor.folder

    def own_templates(self, visitor: Visitor) -> list[str]:
        """The names of the visitor's templates."""
        folder = self.template_home(visitor) / "veil" / "templates"
        return sorted(file.stem for file in folder.glob(f"*{templates.SUFFIX}"))

    def sample(self) -> bytes:
        """The built-in sample, as a file."""
        with self._sample_lock:
            if self._sample is None:
                job = self.jobs.submit("", {"task": "sample"}, lane="short")
                _wait(job)
                self._sample = (job.folder / "sample.mp4").read_bytes()
                self.jobs.discard(job)
        return self._sample

    def inspect(self, visitor: Visitor, upload_id: str) -> dict[str, Any]:
        """The properties of an upload; one that cannot be used is deleted at once."""
        upload, limits = self.uploads.get(visitor.id, upload_id), self.settings.limits
        task = {
            "task": "inspect",
            "video": str(upload.path),
            "stills": str(upload.folder),
            "pixels": limits.pixels,
            "seconds": limits.seconds,
        }
        try:
            job = self.jobs.submit(visitor.id, task, lane="short")
            try:
                _wait(job)
                upload.properties = job.result
            finally:
                self.jobs.discard(job)
        except BaseException:
            self.uploads.discard(upload.id)
            raise
        return {"video": upload.id, "name": upload.name, **upload.properties}

    def template(self, visitor: Visitor, request: Mapping[str, Any]) -> dict[str, Any]:
        """Make a template from clicks in a still of an upload, and a picture of what it matches."""
        upload = self.uploads.get(visitor.id, _text(request, "video"))
        number = request.get("still")
        if not isinstance(number, int) or not 0 <= number < len(upload.properties.get("stills", ())):
            raise VeilError("this video has no such still: choose one that is shown.", code="still-unknown")
        points = request.get("points")
        if (
            not isinstance(points, list)
            or not 1 <= len(points) <= MAX_CLICKS
            or not all(map(_is_point, points))
        ):
            raise VeilError(
                "a template needs one click at least: click on what is to be hidden.", code="clicks-missing"
            )
        if len(self.own_templates(visitor)) >= MAX_TEMPLATES:
            raise VeilError(
                f"the limit of {MAX_TEMPLATES} templates is reached: choose one of them.",
                code="templates-full",
            )
        task = {
            "task": "template",
            "still": str(upload.folder / f"still-{number}.png"),
            "points": points,
            "name": _text(request, "name"),
            "home": str(self.template_home(visitor)),
        }
        job = self.jobs.submit(visitor.id, task, lane="short")
        try:
            _wait(job)
            shutil.copy(job.folder / "heat.png", upload.folder / "heat.png")
            return dict(job.result)
        finally:
            self.jobs.discard(job)

    def anonymize(self, visitor: Visitor, request: Mapping[str, Any]) -> ServerJob:
        """Queue an upload, which belongs to the job from then on."""
        choice = catalogue.find(request.get("choice"))
        task: dict[str, Any] = {
            "task": "anonymize",
            "method": choice.method,
            "home": str(self.template_home(visitor)),
        }
        if choice.picks:
            task |= {
                "hide": self._hide(visitor, request),
                "also": "face" if request.get("faces", True) else "none",
            }
        self.jobs.check(visitor.id)
        upload = self.uploads.take(visitor.id, _text(request, "video"))
        properties = upload.properties
        task |= {
            "file": upload.path.name,
            "name": upload.name,
            "frames": properties["frames"],
            "max_frames": int(self.settings.limits.seconds * properties["fps"] + 1),
        }
        try:
            return self.jobs.submit(visitor.id, task, raw=upload.folder)
        except BaseException:
            shutil.rmtree(upload.folder, ignore_errors=True)
            raise

    def audit(self, visitor: Visitor, request: Mapping[str, Any]) -> ServerJob:
        """Queue an audit of one method, or of several side by side."""
        keys = request.get("choices")
        if not isinstance(keys, list) or not keys:
            raise VeilError("no method is chosen: choose one to audit.", code="choice-missing")
        methods: list[str] = []
        for key in keys:
            choice = catalogue.find(key)
            if choice.picks:
                hide = self._hide(visitor, request)
                if own := sorted({*hide.split("+")} & {*self.own_templates(visitor)}):
                    raise VeilError(
                        f"the audit's synthetic people have no '{own[0]}': audit what comes with Veil, such as hair or hand.",
                        code="template-not-auditable",
                    )
                also = "face" if request.get("faces", True) else "none"
                methods.append(f"{choice.method}:hide={hide},also={also}")
            else:
                methods.append(choice.method)
        return self.jobs.submit(
            visitor.id, {"task": "audit", "methods": [*dict.fromkeys(methods)]}, lane="audit"
        )

    def status(self, job: ServerJob) -> dict[str, Any]:
        """A job's state, for its visitor."""
        left = job.seconds_left()
        return {
            "job": job.id,
            "task": job.task["task"],
            "state": job.state,
            "before": self.jobs.position(job),
            "done": job.done,
            "total": job.total,
            "message": job.message,
            "left": None if left is None else round(left, 1),
            "preview": job.preview,
            "heat": job.heat,
            "error": job.error,
            "result": job.result,
            "keep": self.settings.limits.keep,
        }

    def options(self, visitor: Visitor) -> dict[str, Any]:
        """What the page offers."""
        limits = self.settings.limits
        return {
            "choices": [choice.public() for choice in catalogue.available()],
            "parts": [*parts.GROUPS],
            "templates": sorted({*templates.BUILT_IN} - {*parts.GROUPS}),
            "own": self.own_templates(visitor),
            "limits": {"bytes": limits.bytes, "seconds": limits.seconds, "keep": limits.keep},
        }

    def close(self) -> None:
        """Stop and delete everything."""
        self._stop.set()
        self.jobs.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def sweep(self, now: float | None = None) -> None:
        """Delete old files."""
        now = time.monotonic() if now is None else now
        self.uploads.sweep(now)
        self.jobs.sweep(now)
        for visitor in self.sessions.expire(now, 4 * self.settings.limits.keep, self.jobs.active):
            self.forget(visitor)

    def _sweep_regularly(self) -> None:
        while not self._stop.wait(SWEEP_SECONDS):
            self.sweep()

    def _hide(self, visitor: Visitor, request: Mapping[str, Any]) -> str:
        names = request.get("hide")
        known = {*parts.GROUPS, *templates.BUILT_IN, *self.own_templates(visitor)}
        if not isinstance(names, list) or not names:
            raise VeilError(
                "nothing is chosen to be hidden: choose a part, or click on the picture.", code="hide-missing"
            )
        for name in names:
            if name not in known:
                raise VeilError("something to hide is not here any more: choose again.", code="gone")
        return "+".join(dict.fromkeys(names))


def _wait(job: ServerJob) -> None:
    """Wait for a short job, and raise its error."""
    job.over.wait()
    if job.state != "done":
        raise VeilError(job.error, code="job-failed")


def _text(request: Mapping[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or len(value) > 100:
        raise VeilError("this request was not understood: load the page again.", code="request-invalid")
    return value


def _is_point(point: Any) -> bool:
    return (
        isinstance(point, list)
        and len(point) == 2
        and all(isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < 1 for v in point)
    )
