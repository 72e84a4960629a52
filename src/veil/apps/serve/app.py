"""The server of the page, and what visitors may ask it for.

Gradio's server runs it, with a page and routes of Veil's own: Gradio's routes for files know no visitors, and a video
must be seen by none but whoever brought it. Every answer forbids the browser to ask anybody else for anything.

A visitor is known by a cookie. All that is his (uploads, jobs, templates) lies under one folder that is deleted with him. Where the
page is for this machine alone, requests under another name are refused (a page elsewhere could have such a name point
here); where it is for the network, nothing is answered without the password.
"""

from __future__ import annotations

import asyncio
import hmac
import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from veil.apps.serve.jobs import COMMAND, Job, Jobs
from veil.apps.serve.uploads import Limits, Uploads
from veil.core import VeilError
from veil.nn import weights
from veil.people import detectors as people
from veil.people import parts, templates

HERE = Path(__file__).parent
LOOPBACK = ("localhost", "127.0.0.1", "::1")
STATIC = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
SHORTEST = 8  # letters of a password
TRIES, PAUSE = 8, 60.0  # wrong passwords in so many seconds, from which on none is taken
VISITORS = 200  # that are remembered at once
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
AUDIT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"


@dataclass(frozen=True)
class Choice:
    """A method by what it protects."""

    key: str
    title: str
    hides: str
    keeps: str
    caution: str
    method: str
    picks: bool = False  # whether what is hidden can be named
    needs: str | None = None  # weights without which it is not offered


CHOICES = (
    Choice(
        "people",
        "Everyone in it",
        "Faces, hair, skin and clothes, under noise that moves as they move.",
        "The place, and how people move.",
        "Outline and gait are still to be seen.",
        "selective",
    ),
    Choice(
        "chosen",
        "Only what I choose",
        "What you name or point at, such as hair, hands or a badge.",
        "All the rest.",
        "All the rest can tell who it is.",
        "selective",
        picks=True,
    ),
    Choice(
        "action",
        "Everything but the action",
        "People, clothes and the place: large grey cells are all that is left.",
        "What is being done.",
        "Made for machines that recognise actions; people see little in it.",
        "prototypes",
    ),
    Choice(
        "black-people",
        "Everyone, blacked out",
        "All of every person that is found, under a black box.",
        "The place.",
        "What people do is lost, too.",
        "blacken:region=person",
        needs=people.DEFAULT["person"],
    ),
    Choice(
        "faces",
        "Faces, blacked out",
        "Every face that is found, under black.",
        "Bodies, clothes, the place, all movement.",
        "Clothes, hair and gait can tell who it is.",
        "blacken:region=face",
    ),
    Choice(
        "soft-faces",
        "Faces, blurred",
        "Faces, gently.",
        "Bodies, clothes, the place, all movement.",
        "For looks: machines often recognise a blurred face.",
        "blur:strong,region=face",
    ),
)


@dataclass(frozen=True)
class Settings:
    """How the page is served."""

    limits: Limits = field(default_factory=Limits)
    password: str | None = None  # asked of everybody; None: the page is for this machine alone
    secure: bool = False  # whether it is served by HTTPS
    command: Sequence[str] = COMMAND  # what a job runs


@dataclass
class Visitor:
    """Whoever has this cookie."""

    id: str
    folder: Path
    seen: float
    inside: bool  # has told the password, where there is one


class Site:
    """All that is behind the page; it leaves nothing behind when it is closed."""

    def __init__(self, settings: Settings, root: Path) -> None:
        self.settings, self.root = settings, root
        self.uploads = Uploads(root / "uploads", settings.limits)
        self.jobs = Jobs(root / "jobs", settings.limits, settings.command)
        self._visitors: dict[str, Visitor] = {}
        self._lock = threading.Lock()
        self._wrong: deque[float] = deque(maxlen=TRIES)
        self._sample: bytes | None = None
        self._sampling = threading.Lock()
        self._stop = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep_on, name="veil-sweep", daemon=True)
        self._sweeper.start()

    def visitor(self, cookie: str | None) -> Visitor | None:
        """Whose cookie it is, if anybody's."""
        with self._lock:
            visitor = self._visitors.get(cookie or "")
            if visitor:
                visitor.seen = time.monotonic()
            return visitor

    def welcome(self) -> tuple[str, Visitor]:
        """A new visitor, and his cookie."""
        cookie, id_ = secrets.token_urlsafe(32), secrets.token_urlsafe(16)
        visitor = Visitor(
            id_, self.root / "visitors" / id_, time.monotonic(), inside=self.settings.password is None
        )
        with self._lock:
            idle = [c for c, v in self._visitors.items() if not self.jobs.active(v.id)]
            if len(self._visitors) >= VISITORS and idle:
                leaving = self._visitors.pop(min(idle, key=lambda c: self._visitors[c].seen))
            else:
                leaving = None
            self._visitors[cookie] = visitor
        if leaving:
            self.forget(leaving)
        return cookie, visitor

    def let_in(self, visitor: Visitor, password: str) -> None:
        """Check the password; after several wrong ones, none is taken for a while."""
        now = time.monotonic()
        with self._lock:
            if len(self._wrong) == TRIES and now - self._wrong[0] < PAUSE:
                raise VeilError("too many wrong passwords: wait a minute, then try again.")
            right = hmac.compare_digest(password.encode(), (self.settings.password or "").encode())
            if not right:
                self._wrong.append(now)
                raise VeilError("this is not the password: try again.")
            visitor.inside = True

    def forget(self, visitor: Visitor) -> None:
        """Delete all that is the visitor's."""
        self.jobs.forget(visitor.id)
        self.uploads.forget(visitor.id)
        shutil.rmtree(visitor.folder, ignore_errors=True)

    def home(self, visitor: Visitor) -> Path:
        """Where the visitor's templates are: on one's own machine they begin with one's own."""
        place = visitor.folder / "veil" / "templates"
        if not place.is_dir():
            place.mkdir(parents=True, mode=0o700)
            if self.settings.password is None:
                for file in templates.folder().glob(f"*{templates.SUFFIX}"):
                    shutil.copy(file, place)
        return visitor.folder

    def own(self, visitor: Visitor) -> list[str]:
        """The names of the visitor's templates."""
        place = self.home(visitor) / "veil" / "templates"
        return sorted(file.stem for file in place.glob(f"*{templates.SUFFIX}"))

    def sample(self) -> bytes:
        """The built-in sample, as a file."""
        with self._sampling:
            if self._sample is None:
                job = self.jobs.submit("", {"task": "sample"}, lane="short")
                _finished(job)
                self._sample = (job.folder / "sample.mp4").read_bytes()
                self.jobs.discard(job)
        return self._sample

    def look(self, visitor: Visitor, upload_id: str) -> dict[str, Any]:
        """What an upload is; one that cannot be used is deleted at once."""
        upload, limits = self.uploads.get(visitor.id, upload_id), self.settings.limits
        task = {
            "task": "look",
            "video": str(upload.path),
            "stills": str(upload.folder),
            "pixels": limits.pixels,
            "seconds": limits.seconds,
        }
        try:
            job = self.jobs.submit(visitor.id, task, lane="short")
            try:
                _finished(job)
                upload.about = job.result
            finally:
                self.jobs.discard(job)
        except BaseException:
            self.uploads.discard(upload.id)
            raise
        return {"video": upload.id, "name": upload.name, **upload.about}

    def template(self, visitor: Visitor, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A template of clicks in a still of an upload, and a picture of what it matches."""
        upload = self.uploads.get(visitor.id, _text(asked, "video"))
        number = asked.get("still")
        if not isinstance(number, int) or not 0 <= number < len(upload.about.get("stills", ())):
            raise VeilError("there is no such picture of this video: choose one that is shown.")
        points = asked.get("points")
        if not isinstance(points, list) or not 1 <= len(points) <= 32 or not all(map(_is_point, points)):
            raise VeilError("click on what is to be hidden first: a template needs one click at least.")
        if len(own := self.own(visitor)) >= 50:
            raise VeilError(f"{len(own)} templates are enough: choose among them.")
        task = {
            "task": "template",
            "still": str(upload.folder / f"still-{number}.png"),
            "points": points,
            "name": _text(asked, "name"),
            "home": str(self.home(visitor)),
        }
        job = self.jobs.submit(visitor.id, task, lane="short")
        try:
            _finished(job)
            shutil.copy(job.folder / "heat.png", upload.folder / "heat.png")
            return dict(job.result)
        finally:
            self.jobs.discard(job)

    def anonymize(self, visitor: Visitor, asked: Mapping[str, Any]) -> Job:
        """Queue the work on an upload, which is the job's from then on."""
        choice = _choice(asked.get("choice"))
        task: dict[str, Any] = {"task": "anonymize", "method": choice.method, "home": str(self.home(visitor))}
        if choice.picks:
            task |= {
                "hide": self._hide(visitor, asked),
                "also": "face" if asked.get("faces", True) else "none",
            }
        self.jobs.check(visitor.id)
        upload = self.uploads.take(visitor.id, _text(asked, "video"))
        about = upload.about
        most = self.settings.limits.seconds * about["fps"] + 1
        task |= {"file": upload.path.name, "name": upload.name, "frames": about["frames"], "most": int(most)}
        try:
            return self.jobs.submit(visitor.id, task, raw=upload.folder)
        except BaseException:
            shutil.rmtree(upload.folder, ignore_errors=True)
            raise

    def audit(self, visitor: Visitor, asked: Mapping[str, Any]) -> Job:
        """Queue an audit of one method, or of several side by side."""
        wanted = asked.get("choices")
        if not isinstance(wanted, list) or not wanted:
            raise VeilError("there is nothing to audit: choose one method at least.")
        methods: list[str] = []
        for key in wanted:
            choice = _choice(key)
            if choice.picks:
                hide = self._hide(visitor, asked)
                if made := sorted({*hide.split("+")} & {*self.own(visitor)}):
                    raise VeilError(
                        f"the audit's made-up people have no '{made[0]}': audit what comes with Veil, such as hair or hand."
                    )
                also = "face" if asked.get("faces", True) else "none"
                methods.append(f"{choice.method}:hide={hide},also={also}")
            else:
                methods.append(choice.method)
        return self.jobs.submit(
            visitor.id, {"task": "audit", "methods": [*dict.fromkeys(methods)]}, lane="audit"
        )

    def told(self, job: Job) -> dict[str, Any]:
        """What its visitor is told of a job."""
        left = job.left()
        return {
            "job": job.id,
            "task": job.task["task"],
            "state": job.state,
            "before": self.jobs.place(job),
            "done": job.done,
            "total": job.total,
            "words": job.words,
            "left": None if left is None else round(left, 1),
            "pair": job.pair,
            "heat": job.heat,
            "error": job.error,
            "result": job.result,
            "keep": self.settings.limits.keep,
        }

    def choices(self, visitor: Visitor) -> dict[str, Any]:
        """What the page offers."""
        limits = self.settings.limits
        return {
            "choices": [
                asdict(choice) for choice in CHOICES if not choice.needs or weights.look_up(choice.needs)
            ],
            "parts": [*parts.GROUPS],
            "templates": sorted({*templates.BUILT_IN} - {*parts.GROUPS}),
            "own": self.own(visitor),
            "limits": {"bytes": limits.bytes, "seconds": limits.seconds, "keep": limits.keep},
        }

    def close(self) -> None:
        """Stop everything, and delete it."""
        self._stop.set()
        self.jobs.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def sweep(self, now: float | None = None) -> None:
        """Delete what is old."""
        now = time.monotonic() if now is None else now
        self.uploads.sweep(now)
        self.jobs.sweep(now)
        most = 4 * self.settings.limits.keep
        with self._lock:
            gone = [
                c for c, v in self._visitors.items() if now - v.seen > most and not self.jobs.active(v.id)
            ]
            leaving = [self._visitors.pop(cookie) for cookie in gone]
        for visitor in leaving:
            self.forget(visitor)

    def _sweep_on(self) -> None:
        while not self._stop.wait(5):
            self.sweep()

    def _hide(self, visitor: Visitor, asked: Mapping[str, Any]) -> str:
        wanted = asked.get("hide")
        known = {*parts.GROUPS, *templates.BUILT_IN, *self.own(visitor)}
        if not isinstance(wanted, list) or not wanted:
            raise VeilError("nothing is chosen to be hidden: choose a part, or click on the picture.")
        for name in wanted:
            if name not in known:
                raise VeilError("one of the things to hide is not here any more: choose again.")
        return "+".join(dict.fromkeys(wanted))


def create(site: Site) -> Any:
    """The application that answers for the site."""
    if importlib.util.find_spec("gradio") is None:
        raise VeilError("the page needs Gradio: run `pip install 'veil-video[ui]'`.")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    from gradio import Server
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response

    settings, shared = site.settings, site.settings.password is not None
    app = Server(title="Veil", openapi_url=None, docs_url=None, redoc_url=None)
    cookie_name = "veil-visitor"

    def guarded(
        handler: Callable[[Request, Visitor], Awaitable[Response]], *, open_: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        """Who asks is known and let in; what goes wrong is a sentence; every answer has its policy."""

        async def answer(request: Request) -> Response:
            new = None
            try:
                if refused := _strange(request.headers, shared):
                    answered: Response = JSONResponse({"error": refused}, 403)
                else:
                    visitor = site.visitor(request.cookies.get(cookie_name))
                    if visitor is None:
                        if request.method != "GET":
                            raise VeilError("this page was open for too long: load it again.")
                        new, visitor = site.welcome()
                    if not (visitor.inside or open_):
                        answered = JSONResponse(
                            {"error": "the password is needed first: load the page again."}, 401
                        )
                    else:
                        answered = await handler(request, visitor)
            except VeilError as error:
                sentence = str(error)
                gone = "not here any more" in sentence
                answered = JSONResponse({"error": sentence[0].upper() + sentence[1:]}, 404 if gone else 400)
            except HTTPException as error:
                answered = JSONResponse({"error": "There is nothing here."}, error.status_code)
            except Exception as error:  # which names files, perhaps: its kind is all that is told
                print(f"veil: a request failed with {type(error).__name__}", file=sys.stderr)
                answered = JSONResponse({"error": "Something went wrong here. Try again."}, 500)
            if new:
                answered.set_cookie(
                    cookie_name, new, httponly=True, samesite="strict", secure=settings.secure, path="/"
                )
            answered.headers.setdefault("Content-Security-Policy", POLICY)
            answered.headers.setdefault("Cache-Control", "no-store")
            answered.headers["X-Content-Type-Options"] = "nosniff"
            answered.headers["Referrer-Policy"] = "no-referrer"
            answered.headers["Permissions-Policy"] = "camera=(self), microphone=()"
            return answered

        return answer

    async def home(request: Request, visitor: Visitor) -> Response:
        return FileResponse(
            HERE / ("page.html" if visitor.inside else "password.html"), media_type="text/html"
        )

    async def static(request: Request, visitor: Visitor) -> Response:
        name = request.url.path.rsplit("/", 1)[-1]
        return FileResponse(HERE / name, media_type=STATIC[name])

    async def enter(request: Request, visitor: Visitor) -> Response:
        form = (await _body(request, 4096)).decode("utf-8", "replace")
        given = re.fullmatch(r"password=([^&]*)", form)
        try:
            site.let_in(visitor, unquote(given[1].replace("+", " ")) if given else "")
        except VeilError as error:
            text = (HERE / "password.html").read_text(encoding="utf-8")
            said = str(error)[0].upper() + str(error)[1:]
            return Response(text.replace("<!-- said -->", said), 403, media_type="text/html")
        return RedirectResponse("/", 303)

    async def choices(request: Request, visitor: Visitor) -> Response:
        return JSONResponse(site.choices(visitor))

    async def sample(request: Request, visitor: Visitor) -> Response:
        return Response(await asyncio.to_thread(site.sample), media_type="video/mp4")

    async def bring(request: Request, visitor: Visitor) -> Response:
        said = request.headers.get("content-length", "")
        name = unquote(request.headers.get("x-name", ""))[:500]
        receiving, refusal = None, None
        try:
            receiving = site.uploads.begin(visitor.id, name, int(said) if said.isdecimal() else None)
        except VeilError as error:
            refusal = error
        taken = 0
        try:
            async for piece in request.stream():
                # What is refused is still taken from the line, up to a point: else no browser reads the answer.
                taken += len(piece)
                if taken > settings.limits.bytes + 2**20:
                    break
                if receiving and not refusal:
                    try:
                        receiving.write(piece)
                    except VeilError as error:
                        refusal = error
            if refusal or not receiving:
                raise refusal or VeilError("nothing came: try again.")
            upload = receiving.finish()
        except BaseException:
            if receiving:
                receiving.discard()
            raise
        return JSONResponse(await asyncio.to_thread(site.look, visitor, upload.id))

    async def still(request: Request, visitor: Visitor) -> Response:
        upload = site.uploads.get(visitor.id, request.path_params["video"])
        return _file(upload.folder / f"still-{request.path_params['number']}.png")

    async def heat(request: Request, visitor: Visitor) -> Response:
        return _file(site.uploads.get(visitor.id, request.path_params["video"]).folder / "heat.png")

    async def point(request: Request, visitor: Visitor) -> Response:
        return JSONResponse(await asyncio.to_thread(site.template, visitor, await asked(request)))

    async def begin(request: Request, visitor: Visitor) -> Response:
        wanted = await asked(request)
        start = site.audit if wanted.get("task") == "audit" else site.anonymize
        return JSONResponse(site.told(await asyncio.to_thread(start, visitor, wanted)), 201)

    async def tell(request: Request, visitor: Visitor) -> Response:
        return JSONResponse(site.told(site.jobs.get(visitor.id, request.path_params["job"])))

    async def cancel(request: Request, visitor: Visitor) -> Response:
        job = site.jobs.get(visitor.id, request.path_params["job"])
        if job.over.is_set():
            await asyncio.to_thread(site.jobs.discard, job)
        else:
            await asyncio.to_thread(site.jobs.cancel, job)
        return JSONResponse({})

    async def pair(request: Request, visitor: Visitor) -> Response:
        job = site.jobs.get(visitor.id, request.path_params["job"])
        kind, number = request.path_params["kind"], request.path_params["number"]
        if job.state != "running" or kind not in ("before", "after", "heat"):
            raise HTTPException(404)
        return _file(job.raw / f"{kind}-{number}.jpg")

    async def result(request: Request, visitor: Visitor) -> Response:
        job = site.jobs.get(visitor.id, request.path_params["job"])
        if job.state != "done":
            raise HTTPException(404)
        name, stem = request.path_params["file"], job.task.get("name", "audit")
        known = {
            "anonymized.mp4": f"{stem}-veiled.mp4",
            "report.json": f"{stem}-veiled.json",
            "preview.jpg": f"{stem}-veiled.jpg",
            "audit.html": "audit.html",
            "audit.json": "audit.json",
        }
        if name in job.result.get("why", ()):
            return _file(job.folder / "why" / name)
        if name not in known:
            raise HTTPException(404)
        path = job.folder / name
        if not path.is_file():
            raise HTTPException(404)
        if "save" in request.query_params:
            return FileResponse(path, filename=known[name])
        answered = FileResponse(path)
        if name == "audit.html":
            answered.headers["Content-Security-Policy"] = AUDIT_POLICY
        return answered

    async def forget(request: Request, visitor: Visitor) -> Response:
        await asyncio.to_thread(site.forget, visitor)
        return JSONResponse({})

    async def asked(request: Request) -> dict[str, Any]:
        try:
            wanted = json.loads(await _body(request, 64 * 1024))
        except ValueError:
            wanted = None
        if not isinstance(wanted, dict):
            raise VeilError("this was not understood: load the page again.")
        return wanted

    async def _body(request: Request, most: int) -> bytes:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > most:
                raise VeilError("this was too much at once: load the page again.")
        return body

    def _file(path: Path) -> Response:
        if not path.is_file():
            raise HTTPException(404)
        return FileResponse(path)

    app.add_route("/", guarded(home, open_=True), ["GET"])
    for name in STATIC:
        app.add_route(f"/{name}", guarded(static, open_=True), ["GET"])
    app.add_route("/enter", guarded(enter, open_=True), ["POST"])
    app.add_route("/choices", guarded(choices), ["GET"])
    app.add_route("/sample.mp4", guarded(sample), ["GET"])
    app.add_route("/videos", guarded(bring), ["POST"])
    app.add_route("/videos/{video}/still-{number:int}.png", guarded(still), ["GET"])
    app.add_route("/videos/{video}/heat.png", guarded(heat), ["GET"])
    app.add_route("/templates", guarded(point), ["POST"])
    app.add_route("/jobs", guarded(begin), ["POST"])
    app.add_route("/jobs/{job}", guarded(tell), ["GET"])
    app.add_route("/jobs/{job}", guarded(cancel), ["DELETE"])
    app.add_route("/jobs/{job}/{kind}-{number:int}.jpg", guarded(pair), ["GET"])
    app.add_route("/jobs/{job}/{file}", guarded(result), ["GET"])
    app.add_route("/forget", guarded(forget), ["POST"])
    return app


def serve(
    *,
    port: int = 7860,
    share_on_network: bool = False,
    password: str | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    limits: Limits | None = None,
    command: Sequence[str] = COMMAND,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the page until it is interrupted: to this machine alone, or with a password to the network."""
    if share_on_network and (password is None or len(password) < SHORTEST):
        raise VeilError(
            f"--share-on-network lets others in, so it needs a password of {SHORTEST} letters or more: set VEIL_PASSWORD, "
            "or give --password-file FILE."
        )
    limits = limits or Limits()
    if min(limits.bytes, limits.seconds, limits.keep, limits.running) <= 0:
        raise VeilError("a limit is not above 0, so nothing could be done: raise it.")
    if bool(certificate) != bool(key):
        raise VeilError("--certificate and --key go together: give both, or none.")
    for path in (certificate, key):
        if path and not path.is_file():
            raise VeilError(f"there is no file {path}: name the certificate and its key.")
    listening = _bound("0.0.0.0" if share_on_network else "127.0.0.1", port)
    clear_leftovers()
    root = Path(tempfile.mkdtemp(prefix=f"veil-serve-{os.getpid()}-"))
    settings = Settings(limits, password if share_on_network else None, bool(certificate), command)
    site = Site(settings, root)
    try:
        app = create(site)
        import uvicorn

        config = uvicorn.Config(
            app,
            access_log=False,  # addresses name jobs
            log_level="critical",
            server_header=False,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            timeout_graceful_shutdown=2,
        )
        where = socket.gethostname() if share_on_network else "127.0.0.1"
        say(
            f"Veil is at {'https' if certificate else 'http'}://{where}:{listening.getsockname()[1]}  (Ctrl-C ends it)"
        )
        if share_on_network and not certificate:
            say(
                "Without --certificate, videos and the password cross the network as they are: use it on one you trust."
            )
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        site.close()
        listening.close()


def read_password(file: str | None = None) -> str | None:
    """The password that a file's first line or the environment holds; never an argument, which others could see."""
    if file is None:
        return os.environ.get("VEIL_PASSWORD") or None
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise VeilError(f"the password file {file} cannot be read: name a text file.") from error
    return lines[0].strip() if lines else None


def clear_leftovers() -> None:
    """Delete what a server that was killed could not delete itself."""
    for folder in Path(tempfile.gettempdir()).glob("veil-serve-*-*"):
        owner = folder.name.split("-")[2]
        with suppress(OSError):
            if owner.isdecimal() and folder.stat().st_uid == os.getuid() and not folder.is_symlink():
                try:
                    os.kill(int(owner), 0)
                except ProcessLookupError:
                    shutil.rmtree(folder, ignore_errors=True)


def _bound(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # whoever comes while the server starts waits for it
    except (OSError, OverflowError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or "it is no port"
        raise VeilError(f"port {port} cannot be used ({why}): choose another with --port.") from error
    return listening


def _strange(headers: Mapping[str, str], shared: bool) -> str:
    """Why a request is refused, if it is: it came under another name, or from another page."""
    host = headers.get("host", "")
    if not shared and urlsplit(f"//{host}").hostname not in LOOPBACK:
        return "This page is for this machine alone: open it as http://127.0.0.1."
    origin = headers.get("origin")
    if origin and urlsplit(origin).netloc != host:
        return "This came from another page, and is not answered."
    return ""


def _finished(job: Job) -> None:
    """Wait for a short job, and say why where it failed."""
    job.over.wait()
    if job.state != "done":
        raise VeilError(job.error)


def _choice(key: Any) -> Choice:
    for choice in CHOICES:
        if choice.key == key:
            return choice
    raise VeilError("no method is chosen: choose what to protect.")


def _text(asked: Mapping[str, Any], key: str) -> str:
    value = asked.get(key)
    if not isinstance(value, str) or len(value) > 100:
        raise VeilError("this was not understood: load the page again.")
    return value


def _is_point(point: Any) -> bool:
    return (
        isinstance(point, list)
        and len(point) == 2
        and all(isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < 1 for v in point)
    )
