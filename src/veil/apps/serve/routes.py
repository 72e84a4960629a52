"""The addresses of the web app and what answers them.

Every answer carries a policy that forbids the browser to load anything from elsewhere, and a video is sent to nobody but the
visitor who brought it. An error becomes one sentence.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from veil.apps.serve.sessions import COOKIE, HEADERS, POLICY, REPORT_POLICY, Visitor, refusal
from veil.apps.serve.site import Site
from veil.core import VeilError

HERE = Path(__file__).parent
STATIC = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
MAX_FORM, MAX_JSON = 4096, 64 * 1024  # bytes
Handler = Callable[[Request, Visitor], Awaitable[Response]]


def create_app(site: Site) -> Starlette:
    """The application that answers for a site."""
    pages = Pages(site)

    def route(path: str, handler: Handler, method: str = "GET", *, public: bool = False) -> Route:
        return Route(path, _guarded(site, handler, public=public), methods=[method])

    async def not_found(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return _secured(JSONResponse({"error": "There is nothing here."}, status))

    return Starlette(
        routes=[
            route("/", pages.home, public=True),
            *(route(f"/{name}", pages.static, public=True) for name in STATIC),
            route("/enter", pages.log_in, "POST", public=True),
            route("/choices", pages.options),
            route("/sample.mp4", pages.sample),
            route("/videos", pages.upload, "POST"),
            route("/videos/{video}/still-{number:int}.png", pages.still),
            route("/videos/{video}/heat.png", pages.template_heat),
            route("/templates", pages.template, "POST"),
            route("/jobs", pages.start_job, "POST"),
            route("/jobs/{job}", pages.job_status),
            route("/jobs/{job}", pages.end_job, "DELETE"),
            route("/jobs/{job}/{kind}-{number:int}.jpg", pages.preview),
            route("/jobs/{job}/{file}", pages.result),
            route("/forget", pages.forget, "POST"),
        ],
        exception_handlers={HTTPException: not_found},
    )


def _secured(response: Response) -> Response:
    """The response with the headers that every answer carries."""
    response.headers.setdefault("Content-Security-Policy", POLICY)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.update(HEADERS)
    return response


def _guarded(site: Site, handler: Handler, *, public: bool) -> Callable[[Request], Awaitable[Response]]:
    """A handler behind the checks of host, origin, cookie and password; `public` ones need no password."""
    settings = site.settings

    async def answer(request: Request) -> Response:
        cookie = None
        try:
            if refused := refusal(request.headers, settings.password is not None):
                response: Response = JSONResponse({"error": refused}, 403)
            else:
                visitor = site.sessions.get(request.cookies.get(COOKIE))
                if visitor is None:
                    if request.method != "GET":
                        raise VeilError(
                            "this page was open for too long: load it again.", code="session-expired"
                        )
                    cookie, visitor = site.new_visitor()
                if visitor.logged_in or public:
                    response = await handler(request, visitor)
                else:
                    response = JSONResponse(
                        {"error": "The password is needed first: load the page again."}, 401
                    )
        except VeilError as error:
            response = JSONResponse({"error": _sentence(error)}, 404 if error.code == "gone" else 400)
        except HTTPException as error:
            response = JSONResponse({"error": "There is nothing here."}, error.status_code)
        except Exception as error:  # its text may name files, so only its type is logged
            print(f"veil: a request failed with {type(error).__name__}", file=sys.stderr)
            response = JSONResponse({"error": "Something went wrong here. Try again."}, 500)
        if cookie:
            response.set_cookie(
                COOKIE, cookie, httponly=True, samesite="strict", secure=settings.secure, path="/"
            )
        return _secured(response)

    return answer


class Pages:
    """The handlers, one for each address."""

    def __init__(self, site: Site) -> None:
        self.site = site

    async def home(self, request: Request, visitor: Visitor) -> Response:
        """The page, or the form for the password."""
        return FileResponse(
            HERE / ("page.html" if visitor.logged_in else "password.html"), media_type="text/html"
        )

    async def static(self, request: Request, visitor: Visitor) -> Response:
        """Style, script and icon."""
        name = request.url.path.rsplit("/", 1)[-1]
        return FileResponse(HERE / name, media_type=STATIC[name])

    async def log_in(self, request: Request, visitor: Visitor) -> Response:
        """Check the password that the form sent."""
        form = (await _body(request, MAX_FORM)).decode("utf-8", "replace")
        given = re.fullmatch(r"password=([^&]*)", form)
        try:
            self.site.sessions.log_in(visitor, unquote(given[1].replace("+", " ")) if given else "")
        except VeilError as error:
            text = (HERE / "password.html").read_text(encoding="utf-8")
            return Response(text.replace("<!-- message -->", _sentence(error)), 403, media_type="text/html")
        return RedirectResponse("/", 303)

    async def options(self, request: Request, visitor: Visitor) -> Response:
        """What the page offers."""
        return JSONResponse(self.site.options(visitor))

    async def sample(self, request: Request, visitor: Visitor) -> Response:
        """The built-in sample."""
        return Response(await asyncio.to_thread(self.site.sample), media_type="video/mp4")

    async def upload(self, request: Request, visitor: Visitor) -> Response:
        """Receive a video and inspect it."""
        uploads, limit = self.site.uploads, self.site.settings.limits.bytes
        stated = request.headers.get("content-length", "")
        name = unquote(request.headers.get("x-name", ""))[:500]
        incoming, refused = None, None
        try:
            incoming = uploads.begin(visitor.id, name, int(stated) if stated.isdecimal() else None)
        except VeilError as error:
            refused = error
        received = 0
        try:
            async for chunk in request.stream():
                # A refused upload is read on for a while, because a browser reads no answer before it has sent all.
                received += len(chunk)
                if received > limit + 2**20:
                    break
                if incoming and not refused:
                    try:
                        incoming.write(chunk)
                    except VeilError as error:
                        refused = error
            if refused or not incoming:
                raise refused or VeilError("no video was received: try again.", code="upload-empty")
            upload = incoming.finish()
        except BaseException:
            if incoming:
                incoming.discard()
            raise
        return JSONResponse(await asyncio.to_thread(self.site.inspect, visitor, upload.id))

    async def still(self, request: Request, visitor: Visitor) -> Response:
        """A still of an upload."""
        upload = self.site.uploads.get(visitor.id, request.path_params["video"])
        return _file(upload.folder / f"still-{request.path_params['number']}.png")

    async def template_heat(self, request: Request, visitor: Visitor) -> Response:
        """What the newest template matches in a still."""
        return _file(self.site.uploads.get(visitor.id, request.path_params["video"]).folder / "heat.png")

    async def template(self, request: Request, visitor: Visitor) -> Response:
        """Make a template."""
        return JSONResponse(await asyncio.to_thread(self.site.template, visitor, await _json(request)))

    async def start_job(self, request: Request, visitor: Visitor) -> Response:
        """Queue a video or an audit."""
        wanted = await _json(request)
        start = self.site.audit if wanted.get("task") == "audit" else self.site.anonymize
        return JSONResponse(self.site.status(await asyncio.to_thread(start, visitor, wanted)), 201)

    async def job_status(self, request: Request, visitor: Visitor) -> Response:
        """A job's state."""
        return JSONResponse(self.site.status(self.site.jobs.get(visitor.id, request.path_params["job"])))

    async def end_job(self, request: Request, visitor: Visitor) -> Response:
        """Cancel a job, or delete the results of a finished one."""
        jobs = self.site.jobs
        job = jobs.get(visitor.id, request.path_params["job"])
        await asyncio.to_thread(jobs.discard if job.over.is_set() else jobs.cancel, job)
        return JSONResponse({})

    async def preview(self, request: Request, visitor: Visitor) -> Response:
        """A frame of a running job, before or after."""
        job = self.site.jobs.get(visitor.id, request.path_params["job"])
        kind, number = request.path_params["kind"], request.path_params["number"]
        if job.state != "running" or kind not in ("before", "after", "heat"):
            raise HTTPException(404)
        return _file(job.raw / f"{kind}-{number}.jpg")

    async def result(self, request: Request, visitor: Visitor) -> Response:
        """A file that a finished job made."""
        job = self.site.jobs.get(visitor.id, request.path_params["job"])
        if job.state != "done":
            raise HTTPException(404)
        name, stem = request.path_params["file"], job.task.get("name", "audit")
        download_names = {
            "anonymized.mp4": f"{stem}-veiled.mp4",
            "report.json": f"{stem}-veiled.json",
            "preview.jpg": f"{stem}-veiled.jpg",
            "audit.html": "audit.html",
            "audit.json": "audit.json",
        }
        if name in job.result.get("why", ()):
            return _file(job.folder / "why" / name)
        if name not in download_names:
            raise HTTPException(404)
        path = job.folder / name
        if not path.is_file():
            raise HTTPException(404)
        if "save" in request.query_params:
            return FileResponse(path, filename=download_names[name])
        response = FileResponse(path)
        if name == "audit.html":
            response.headers["Content-Security-Policy"] = REPORT_POLICY
        return response

    async def forget(self, request: Request, visitor: Visitor) -> Response:
        """Delete everything of the visitor."""
        await asyncio.to_thread(self.site.forget, visitor)
        return JSONResponse({})


async def _json(request: Request) -> dict[str, Any]:
    try:
        content = json.loads(await _body(request, MAX_JSON))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise VeilError("this request was not understood: load the page again.", code="request-invalid")
    return content


async def _body(request: Request, limit: int) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise VeilError("this request is too large: load the page again.", code="request-too-large")
    return body


def _file(path: Path) -> Response:
    if not path.is_file():
        raise HTTPException(404)
    return FileResponse(path)


def _sentence(error: VeilError) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]
