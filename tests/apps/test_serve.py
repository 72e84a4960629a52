"""The web app: uploads, jobs, the server's answers, the catalogue of methods, and the page in a real browser."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

import clips
from conftest import ROOT
from errors import refuses
from veil.apps.serve import catalogue, preview, server, tasks
from veil.apps.serve.jobs import JobQueue, ServerJob
from veil.apps.serve.sessions import refusal
from veil.apps.serve.site import ServerSettings, Site
from veil.apps.serve.uploads import Limits, Uploads, clean_name, container_suffix
from veil.core import Anonymizer, FrameExplanation, Frames, Veiled
from veil.media.sources import open_source
from veil.methods import make

QUIET = tasks.ProgressWriter(io.StringIO())
MP4 = b"\x00\x00\x00\x18ftypmp42" + bytes(100)

WORKER = """
import json, os, pathlib, signal, subprocess, sys, time
task = json.loads(sys.stdin.readline())
folder = pathlib.Path(task["folder"])
report = lambda **line: print(json.dumps(line), flush=True)
print("a library prints /secret.mp4", flush=True)
(folder / "result").write_text("r")
if task.get("child"):
    child = subprocess.Popen(["sleep", "60"])
    report(done=child.pid, total=None)
report(done=1, total=4, message="working")
if task["task"] == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
if task["task"] == "raise":
    raise ValueError(str(folder))
if task["task"] == "sleep":
    report(preview=3, heat=False)
    time.sleep(60)
if task["task"] == "refuse":
    report(error="this is no good: try another.")
report(result={"echo": task.get("echo")})
"""


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.01)


def members(group: int) -> list[int]:
    """The processes of a group that still live."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its, *_ = place.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        found += [int(place.parent.name)] if int(its) == group and state != "Z" else []
    return found


def over(job: ServerJob) -> ServerJob:
    assert job.over.wait(60)
    return job


@pytest.fixture
def jobs(tmp_path) -> Iterator[JobQueue]:
    made = JobQueue(tmp_path / "jobs", Limits(waiting=2, per_visitor=2), [sys.executable, "-S", "-c", WORKER])
    yield made
    made.close()
    assert not [*(tmp_path / "jobs").iterdir()]


@pytest.fixture
def uploads(tmp_path) -> Uploads:
    return Uploads(tmp_path / "uploads", Limits(bytes=1000))


def uploaded(uploads: Uploads, owner: str = "a", name: str = "clip.mp4"):
    incoming = uploads.begin(owner, name)
    incoming.write(MP4)
    return incoming.finish()


# Uploads.


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("holiday.mp4", "holiday"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\Ann\\my film.mov", "my-film"),
        ("<script>alert(1)</script>.mp4", "script"),
        ("a\r\nSet-Cookie: x=1.mp4", "a-Set-Cookie-x-1"),
        ("Übung 1 (neu).mp4", "Übung-1-neu"),
        ("..", "video"),
        ("", "video"),
        (".hidden", "hidden"),
        ("x" * 300 + ".mp4", "x" * 60),
        ("\u202egpj.mp4", "gpj"),
    ],
)
def test_file_names_are_cleaned(name, cleaned):
    assert clean_name(name) == cleaned


@pytest.mark.parametrize(
    ("head", "suffix"),
    [
        (MP4, ".mp4"),
        (b"\x00\x00\x00\x14ftypqt  ", ".mov"),
        (b"\x1a\x45\xdf\xa3" + bytes(20), ".mkv"),
        (b"RIFF\x00\x00\x00\x00AVI LIST", ".avi"),
        (b"\x00\x00\x01\xba" + bytes(20), ".mpg"),
        (b"\x47" + bytes(187) + b"\x47", ".ts"),
    ],
)
def test_containers_are_recognized_by_their_first_bytes(head, suffix):
    assert container_suffix(head) == suffix


@pytest.mark.parametrize(
    "head",
    [
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",  # lists, by which libav would read other files
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"<?xml version='1.0'?><MPD>",
        b"\x89PNG\r\n\x1a\n" + bytes(20),
        b"\x47" + bytes(300),
        b"garbage" * 10,
        b"",
    ],
)
def test_other_files_are_refused_and_leave_nothing(uploads, head):
    incoming = uploads.begin("a", "clip.mp4")
    with refuses("not-a-video"):
        incoming.write(head)
        incoming.finish()
    incoming.discard()
    assert not [*uploads.root.iterdir()]


def test_an_upload_is_refused_as_soon_as_it_is_too_large(uploads):
    with refuses("upload-too-large"):
        uploads.begin("a", "clip.mp4", 1001)
    incoming = uploads.begin("a", "clip.mp4", None)  # no size stated, or a wrong one
    incoming.write(MP4)
    with refuses("upload-too-large"):
        incoming.write(bytes(1000))
    incoming.discard()
    assert not [*uploads.root.iterdir()]


def test_an_upload_is_visible_to_its_owner_alone(uploads):
    upload = uploaded(uploads)
    assert uploads.get("a", upload.id).path.read_bytes() == MP4
    assert upload.path.stat().st_mode & 0o777 and uploads.root.stat().st_mode & 0o077 == 0
    assert "clip" not in str(upload.path)
    for what in (uploads.get, uploads.take):
        with refuses("gone"):
            what("b", upload.id)
    uploads.take("a", upload.id)
    with refuses("gone"):
        uploads.take("a", upload.id)


def test_unused_uploads_are_deleted(uploads):
    kept = [uploaded(uploads) for _ in range(4)]
    assert not kept[0].folder.exists() and kept[3].folder.exists()  # three wait at most
    uploads.sweep(time.monotonic() + uploads.limits.keep + 1)
    assert not [*uploads.root.iterdir()]


# JobQueue.


def test_a_finished_job_keeps_its_results_and_not_the_video(jobs, tmp_path):
    raw = tmp_path / "upload"
    raw.mkdir()
    (raw / "video.mp4").write_bytes(MP4)
    job = over(jobs.submit("a", {"task": "do", "echo": "x"}, raw=raw))
    assert (job.state, job.result, job.done, job.total, job.message) == (
        "done",
        {"echo": "x"},
        1,
        4,
        "working",
    )
    assert not raw.exists() and not job.raw.exists()
    assert (job.folder / "result").read_text() == "r"
    assert jobs.get("a", job.id) is job
    with refuses("gone"):
        jobs.get("b", job.id)
    jobs.sweep(job.ended_at + jobs.limits.keep - 1)
    assert job.folder.exists()
    jobs.sweep(job.ended_at + jobs.limits.keep + 1)
    assert not job.folder.exists()
    with refuses("gone"):
        jobs.get("a", job.id)


@pytest.mark.parametrize(
    ("task", "sentence"),
    [("crash", "signal 11"), ("raise", "code 1"), ("refuse", "this is no good: try another.")],
)
def test_a_broken_job_leaves_nothing_and_the_next_one_runs(jobs, tmp_path, task, sentence):
    raw = tmp_path / "upload"
    raw.mkdir()
    (raw / "video.mp4").write_bytes(MP4)
    bad, good = jobs.submit("a", {"task": task}, raw=raw), jobs.submit("a", {"task": "do"})
    assert over(bad).state == "failed" and sentence in bad.error
    assert str(tmp_path) not in bad.error and "secret" not in bad.error
    assert not bad.folder.exists() and not raw.exists() and bad.preview is None
    assert over(good).state == "done"


def test_a_job_that_cannot_be_started_has_an_error(tmp_path):
    jobs = JobQueue(tmp_path / "jobs", Limits(), [str(tmp_path / "nothing")])
    assert "could not be started" in over(jobs.submit("a", {"task": "do"})).error


def test_the_queue_is_bounded_and_in_order(jobs):
    first = jobs.submit("a", {"task": "sleep"})
    waiting = [jobs.submit("b", {"task": "do"}), jobs.submit("c", {"task": "do"})]
    assert [job.state for job in waiting] == ["waiting"] * 2
    assert [jobs.position(job) for job in (first, *waiting)] == [0, 1, 2]
    with refuses("queue-full"):
        jobs.submit("d", {"task": "do"})
    for lane in ("short", "audit"):  # others do not wait for videos
        assert over(jobs.submit("d", {"task": "do"}, lane=lane)).state == "done"
    assert waiting[0].state == "waiting"
    jobs.cancel(first)
    assert [over(job).state for job in waiting] == ["done"] * 2
    assert waiting[0].started_at <= waiting[1].started_at


def test_one_visitor_has_a_limit_of_jobs(jobs):
    jobs.submit("a", {"task": "sleep"})
    jobs.submit("a", {"task": "do"})
    with refuses("visitor-queue-full"):
        jobs.submit("a", {"task": "do"})
    assert jobs.submit("b", {"task": "do"}).state == "waiting"


def test_cancelling_kills_the_process_and_its_children(jobs):
    job, next_ = jobs.submit("a", {"task": "sleep", "child": True}), jobs.submit("a", {"task": "do"})
    until(lambda: job.preview == 3)
    assert job.process
    jobs.cancel(job)
    assert job.state == "cancelled" and not job.folder.exists() and job.preview is None
    assert job.process.wait(5) == -signal.SIGKILL
    until(lambda: not members(job.process.pid))
    assert over(next_).state == "done"
    jobs.cancel(next_)  # too late
    assert next_.state == "done" and next_.folder.exists()


def test_a_job_that_takes_too_long_is_stopped(jobs):
    job = jobs.submit("a", {"task": "sleep"})
    until(lambda: job.preview == 3)
    jobs.sweep(time.monotonic() + jobs.limits.job_seconds + 1)
    assert job.state == "failed" and "240 minutes" in job.error and not job.folder.exists()


def test_time_left():
    def left(done: int, total: int | None, latest: float, now: float) -> float | None:
        job = ServerJob(
            "i",
            "a",
            {},
            Path(),
            "audit",
            state="running",
            done=done,
            total=total,
            counted_from=100,
            last_progress=latest,
        )
        return job.seconds_left(now)

    assert left(10, 100, 105, 105) == pytest.approx(45)
    assert left(10, 100, 105, 105.25) == pytest.approx(44.75)
    assert left(2, 7, 140, 150) == pytest.approx(90)  # 20 seconds each, and half of one is over
    assert left(2, 7, 140, 300) == pytest.approx(80)  # a slow one: it does not grow
    assert left(6, 7, 220, 300) is None  # and the last one does not count as done
    assert left(1, 7, 140, 140) is None and left(10, None, 105, 105) is None and left(7, 7, 240, 240) is None


def test_time_left_is_counted_from_the_last_unit(jobs):
    job = ServerJob("i", "a", {}, Path(), "audit", state="running")

    def receive(done: int, message: str) -> float:
        jobs._receive(job, json.dumps({"done": done, "total": 9, "message": message}))
        return job.last_progress

    for done, message in ((0, "reading"), (9, "reading"), (0, "training")):
        receive(done, message)
    unit = receive(1, "training")
    assert receive(1, "training") == unit and job.seconds_left() is None  # reported again, but no further
    assert receive(3, "training") > unit
    assert job.seconds_left(job.last_progress) == pytest.approx(2 * (job.last_progress - job.counted_from))


def test_a_job_ends_with_its_server():
    code = "import time; from veil.media.processes import end_with_parent; end_with_parent(0, group=True); time.sleep(60)"
    orphan = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)
    assert orphan.stdin and orphan.poll() is None
    orphan.stdin.close()
    assert orphan.wait(60) == -signal.SIGKILL


class Late(Anonymizer):
    """Inverts frames; they come out one by one, after the last window."""

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        return self.explain(windows, lambda _: None)

    def explain(self, windows: Iterable[Frames], on_frame) -> Iterator[Veiled]:
        for frame in np.concatenate([*windows]):
            on_frame(FrameExplanation(255 - frame, np.full((4, 4), frame[0, 0, 0] / 255, np.float32), None))
            yield Veiled(255 - frame[None], None)

    def params(self):
        return {"a": 1}


def test_a_preview_is_the_same_frame_before_and_after(monkeypatch):
    monkeypatch.setattr(preview, "INTERVAL", -1.0)
    seen: dict[int, dict[str, Frames]] = {}
    frames = np.arange(12, dtype=np.uint8)[:, None, None, None].repeat(8, 1).repeat(8, 2).repeat(3, 3)
    previewed = preview.previewed(Late(), lambda at, pictures: seen.update({at: pictures}))
    assert type(previewed).__name__ == "Late" and previewed.params() == {"a": 1}
    out = np.concatenate(
        [v.frames for v in previewed.explain(iter([frames[:5], frames[5:]]), lambda _: None)]
    )
    assert (out == 255 - frames).all()
    assert sorted(seen) == [0, 5]
    for at, pictures in seen.items():
        assert (pictures["before"] == at).all() and (pictures["after"] == 255 - at).all()
        assert pictures["heat"].shape == (8, 8, 3)
    short = preview.previewed(Late(), lambda *_: None, max_frames=11)
    with refuses("video-too-long"):
        list(short.stream(iter([frames[:5], frames[5:]])))


def test_the_error_of_a_broken_video_has_no_path(tmp_path):
    """The real process, up to its sentence."""
    jobs = JobQueue(tmp_path / "jobs", Limits())
    path = tmp_path / "video.mp4"
    path.write_bytes(MP4)
    task = {"task": "inspect", "video": str(path), "stills": str(tmp_path), "pixels": 1e6, "seconds": 9}
    job = over(jobs.submit("a", task))
    assert job.state == "failed" and "this video" in job.error and str(tmp_path) not in job.error
    jobs.close()


def test_what_an_inspection_finds_and_refuses(tmp_path):
    path = clips.video(tmp_path / "video.mp4", clips.pictures(10), rate=10)
    task = {"video": str(path), "stills": str(tmp_path), "pixels": 64 * 48, "seconds": 2}
    found = tasks.inspect(task, QUIET)
    assert (found["width"], found["height"], found["frames"], found["seconds"]) == (
        64,
        48,
        10,
        pytest.approx(1.0),
    )
    assert found["stills"] == pytest.approx([0, 0.2, 0.4, 0.5, 0.7, 0.9], abs=0.11)
    for at, second in enumerate(found["stills"]):
        seen = np.array(Image.open(tmp_path / f"still-{at}.png")).astype(int)
        assert abs(seen - clips.picture(round(10 * second)).astype(int)).mean() < 6
    with refuses("video-too-long"):
        tasks.inspect({**task, "seconds": 0.5}, QUIET)
    with refuses("video-too-large"):
        tasks.inspect({**task, "pixels": 1000}, QUIET)


# The server.

SMALL_AUDIT = """if True:
    from dataclasses import replace
    from veil.audit.suites import SUITES
    suite = SUITES["quick"]
    budgets = {key: replace(budget, steps=2, batch=4) for key, budget in suite.budgets.items()}
    reconstruction = replace(suite.reconstruction, steps=2, batch=4)
    fewer = dict(size=32, frames=4, videos=40, attackers=suite.attackers[2:3], knowledge=("adaptive",))
    SUITES["quick"] = replace(suite, budgets=budgets, reconstruction=reconstruction, **fewer)
"""
ONE_CORE = """if True:
    import json, os
    os.cpu_count = lambda: 1  # starting more processes would take longer than the work
    from veil.apps.serve import tasks
    if {crash!r}:
        tasks.TASKS["anonymize"] = lambda task, progress: os.abort()
"""
SERVER = """if True:
    import signal, sys
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # as the command line does
    from veil.apps.serve.server import serve
    from veil.apps.serve.uploads import Limits
    command = [sys.executable, "-c", sys.argv[1]]
    limits = Limits(bytes=2**20, running=2, reserve=0)
    password = sys.argv[2] or None
    serve(port=0, command=command, limits=limits, share_on_network=bool(password), password=password,
          log=lambda message: print(message, flush=True))
"""


@contextmanager
def started(folder: Path, *, crash: bool = False, password: str = "") -> Iterator[SimpleNamespace]:
    """A server in a process of its own, whose files are in `folder`; it leaves none."""
    for package in server.PACKAGES:
        pytest.importorskip(package, reason="the web app needs it: pip install '.[ui]'")
    lazy = "import sys, json\n" + ONE_CORE.format(crash=crash)
    # Only an audit loads torch and what it takes to make it small.
    task = "import io\nline = sys.stdin.readline(); sys.stdin = io.StringIO(line)\n"
    worker = lazy + task + f"if json.loads(line)['task'] == 'audit': exec({SMALL_AUDIT!r})\ntasks.main()"
    places = {
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_DATA_HOME": str(folder / "data"),
    }
    log = folder / "log"
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, worker, password],
        env={**os.environ, **places},
        stdout=subprocess.PIPE,
        stderr=log.open("w"),
        text=True,
    )
    assert process.stdout
    printed = process.stdout.readline()
    assert printed.startswith("Veil is at http://"), log.read_text()
    port = urlsplit(printed.split()[3]).port
    yield SimpleNamespace(url=f"http://127.0.0.1:{port}", port=port, folder=folder, process=process)
    process.terminate()
    printed = process.stdout.read()
    process.wait(60)
    assert not [*folder.glob("veil-serve-*")], "it left something behind"
    printed += log.read_text()
    assert "clip" not in printed and "videos/" not in printed, printed


@pytest.fixture(scope="module", name="app")
def shared_app(tmp_path_factory):
    with started(tmp_path_factory.mktemp("serve")) as running:
        yield running


def send(app, path: str, method: str = "GET", body: bytes | None = None, **headers: str):
    line = http.client.HTTPConnection("127.0.0.1", app.port, timeout=120)
    line.request(method, path, body, {key.replace("_", "-"): value for key, value in headers.items()})
    answer = line.getresponse()
    text = answer.read()
    cookie = (answer.headers.get("Set-Cookie") or "").split(";")[0]
    line.close()
    return SimpleNamespace(status=answer.status, headers=answer.headers, body=text, cookie=cookie)


def test_requests_that_are_refused(app, tmp_path):
    page = send(app, "/")
    assert page.status == 200 and "HttpOnly" in page.headers["Set-Cookie"]
    assert "SameSite=strict" in page.headers["Set-Cookie"]
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["Cache-Control"] == "no-store"
    me, other = page.cookie, send(app, "/").cookie
    assert me != other
    assert send(app, "/", Host="evil.example").status == 403  # a name that points here
    from_elsewhere = send(app, "/videos", "POST", MP4, Cookie=me, Origin="http://evil.example")
    assert from_elsewhere.status == 403
    for path in (
        "/docs",
        "/openapi.json",
        "/config",
        "/jobs/../../etc/passwd",
        "/app.py",
    ):
        assert send(app, path, Cookie=me).status == 404, path
    assert send(app, "/videos", "POST", MP4).status == 400  # without a cookie
    too_large = send(app, "/videos", "POST", MP4 + bytes(2**20), Cookie=me)
    assert too_large.status == 400 and b"1 MB" in too_large.body
    for body in (
        b"",
        b"[]",
        b"{",
        json.dumps({"task": "audit", "choices": ["/etc"]}).encode(),
        b"x" * 100_000,
    ):
        assert send(app, "/jobs", "POST", body, Cookie=me).status == 400
    clip = clips.video(tmp_path / "clip.mp4", clips.pictures(12, 96, 72)).read_bytes()
    upload = json.loads(send(app, "/videos", "POST", clip, Cookie=me, X_Name="..%2Fmy%20clip.mp4").body)
    assert (upload["name"], upload["frames"], upload["width"]) == ("my-clip", 12, 96)
    still = f"/videos/{upload['video']}/still-0.png"
    assert send(app, still, Cookie=me).status == 200
    assert send(app, still, Cookie=other).status == 404
    assert send(app, still).status == 404
    for choice in ("blur", "/tmp", None, ["people"]):
        body = json.dumps({"video": upload["video"], "choice": choice}).encode()
        assert send(app, "/jobs", "POST", body, Cookie=me).status == 400
    body = json.dumps({"video": upload["video"], "choice": "chosen", "hide": ["hair,seed=1"]}).encode()
    assert send(app, "/jobs", "POST", body, Cookie=me).status == 404
    stolen = json.dumps({"video": upload["video"], "choice": "faces"}).encode()
    assert send(app, "/jobs", "POST", stolen, Cookie=other).status == 404
    assert send(app, "/forget", "POST", b"", Cookie=me).status == 200
    assert send(app, still, Cookie=me).status == 404


@pytest.mark.slow
def test_a_password_and_a_crash(tmp_path):
    """A server for the network, whose jobs all crash."""
    with started(tmp_path, crash=True, password="open sesame") as app:
        cookie = send(app, "/").cookie
        assert b'type="password"' in send(app, "/", Cookie=cookie).body
        for path in ("/choices", "/sample.mp4", "/jobs/x"):
            assert send(app, path, Cookie=cookie).status == 401
        assert send(app, "/videos", "POST", MP4, Cookie=cookie).status == 401
        assert send(app, "/enter", "POST", b"password=open", Cookie=cookie).status == 403
        assert send(app, "/choices", Cookie=cookie).status == 401
        assert send(app, "/enter", "POST", b"password=open+sesame", Cookie=cookie).status == 303
        assert send(app, "/choices", Cookie=cookie).status == 200
        clip = clips.video(tmp_path / "clip.mp4", clips.pictures(12, 96, 72)).read_bytes()
        video = json.loads(send(app, "/videos", "POST", clip, Cookie=cookie).body)["video"]
        body = json.dumps({"video": video, "choice": "faces"}).encode()
        job = json.loads(send(app, "/jobs", "POST", body, Cookie=cookie).body)["job"]
        status: dict = {}

        def failed() -> bool:
            status.update(json.loads(send(app, f"/jobs/{job}", Cookie=cookie).body))
            return status["state"] == "failed"

        until(failed)
        assert "signal 6" in status["error"]
        for name in ("before-0.jpg", "after-0.jpg", "anonymized.mp4", "video.mp4", "raw"):
            assert send(app, f"/jobs/{job}/{name}", Cookie=cookie).status == 404
        root = next(tmp_path.glob("veil-serve-*"))
        assert not [*(root / "jobs").iterdir()] and not [*(root / "uploads").iterdir()]
        tries = [
            send(app, "/enter", "POST", b"password=guess", Cookie=send(app, "/").cookie) for _ in range(10)
        ]
        assert {attempt.status for attempt in tries} == {403} and tries[0].body != tries[
            -1
        ].body  # locked by then


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"share_on_network": True}, "password-missing"),
        ({"share_on_network": True, "password": "short"}, "password-missing"),
        ({"port": 99999}, "port-unusable"),
        ({"key": Path("k.pem")}, "certificate-without-key"),
        ({"key": Path("k.pem"), "certificate": Path("c.pem")}, "certificate-missing"),
        ({"limits": Limits(bytes=0)}, "limit-not-positive"),
    ],
)
def test_a_server_that_cannot_start(options, code):
    with refuses(code):
        server.serve(**options)


def test_the_command_line_names_the_option(capsys, monkeypatch):
    from veil.cli import main

    monkeypatch.delenv("VEIL_PASSWORD", raising=False)
    with pytest.raises(SystemExit) as stop:
        main(["serve", "--share-on-network"])
    assert stop.value.code == 2 and "VEIL_PASSWORD" in capsys.readouterr().err


def test_without_its_packages_the_server_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refuses("extra-missing") as refused:
        server.serve(port=0)
    assert ".[ui]" in str(refused.value)


@pytest.mark.parametrize(
    ("headers", "shared", "fine"),
    [
        ({"host": "127.0.0.1:7860"}, False, True),
        ({"host": "localhost:7860", "origin": "http://localhost:7860"}, False, True),
        ({"host": "[::1]:7860"}, False, True),
        ({"host": "evil.example:7860"}, False, False),
        ({"host": ""}, False, False),
        ({}, False, False),
        ({"host": "lab:7860"}, True, True),
        ({"host": "lab:7860", "origin": "http://evil.example"}, True, False),
        ({"host": "lab:7860", "origin": "null"}, True, False),
    ],
)
def test_requests_of_other_hosts_and_origins_are_refused(headers, shared, fine):
    assert (not refusal(headers, shared)) == fine


def test_visitors_that_stay_away_are_forgotten(tmp_path):
    site = Site(ServerSettings(), tmp_path / "site")
    cookie, visitor = site.new_visitor()
    known = site.sessions.get
    assert known(cookie) is visitor and known("other") is None and known(None) is None
    assert site.template_home(visitor).is_dir()
    site.sweep(time.monotonic() + 5 * site.settings.limits.keep)
    assert known(cookie) is None and not visitor.folder.exists()
    site.close()
    assert not (tmp_path / "site").exists()


# The catalogue.


def share(figure: str) -> float:
    """The value of a figure such as ".455" or "46 %"."""
    return float(figure.strip("% ")) / (100 if "%" in figure else 1)


@pytest.mark.parametrize("choice", catalogue.CATALOGUE, ids=lambda choice: choice.key)
def test_the_figures_of_a_method_were_published(choice):
    """The page of the documentation holds every figure, in the row of that method."""
    for measured in choice.measured:
        lines = (ROOT / "docs" / measured.source).read_text().splitlines()
        rows = [line for line in lines if line.startswith(measured.row)]
        assert any(all(figure in row for figure in measured.figures) for row in rows), measured
        stated = [share(figure) for figure in re.findall(r"\d+ %|\.\d+", measured.statement)]
        for figure in measured.figures:  # and the statement rounds it
            assert share(figure) == pytest.approx(
                min(stated, key=lambda s: abs(s - share(figure))), abs=0.0051
            )
    assert choice.public()["measured"] and choice.limitations


def test_methods_of_the_catalogue_exist():
    for choice in catalogue.available():
        assert make(choice.method)
    with refuses("choice-unknown"):
        catalogue.find(["people"])


def test_no_method_claims_to_keep_the_action_on_real_video():
    """The built-in prototypes often show a wrong action there."""
    (prototypes,) = [choice for choice in catalogue.CATALOGUE if choice.method == "prototypes"]
    assert "right or wrong" in prototypes.keeps and "real video" in prototypes.limitations
    assert all("Synthetic" in measured.statement for measured in prototypes.measured)


# The page, in a browser.


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
    )
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with api.sync_playwright() as playwright:
        path = found or playwright.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("Chromium is not installed: apt-get install chromium")
        quiet = [
            "--no-sandbox",
            "--disable-gpu",
            "--use-fake-device-for-media-stream",
            "--use-fake-ui-for-media-stream",
        ]
        chromium = playwright.chromium.launch(executable_path=path, args=quiet)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser, app):
    """Opens the page for a new visitor; that no request leaves the machine is looked at in the end."""
    requests, troubles, contexts = [], [], []

    def come(width: int = 1280, height: int = 900, scheme: str = "light"):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )
        context.set_default_timeout(120_000)  # a machine may be busy
        context.on("request", lambda request: requests.append(request.url))
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda m: troubles.append(m.text) if "Content Security Policy" in m.text else None)
        page.goto(app.url)
        page.wait_for_selector(".choice")
        contexts.append(context)
        return page

    yield come
    for context in contexts:
        context.close()
    assert requests
    away = {url for url in requests if not url.startswith((app.url + "/", f"blob:{app.url}", "data:"))}
    assert not away and not troubles


def clip(path: Path, frames: int = 24) -> Path:
    return clips.video(path, clips.noise(frames, 128, 96))


@pytest.mark.slow
def test_upload_anonymize_play_download_audit(visit, app, tmp_path):
    page = visit()
    assert page.locator("#go").is_disabled()
    page.set_input_files("#file", clip(tmp_path / "My clip.mp4"))
    page.wait_for_selector("#go:enabled")
    assert "128 × 96" in page.inner_text("#about")
    page.get_by_text("Faces, blacked out").first.click()
    page.focus("#go")
    page.keyboard.press("Enter")
    page.wait_for_selector("#done:not([hidden])")
    assert "24 frames" in page.inner_text("#sentence")
    root = next(app.folder.glob("veil-serve-*"))
    assert not [*(root / "uploads").iterdir()] and not [*root.glob("jobs/*/raw")]
    page.focus("#play")
    page.keyboard.press("Space")
    page.wait_for_timeout(400)
    both = "[...document.querySelectorAll('.screen video')].map((v) => [v.currentTime, v.duration, v.videoWidth])"
    (before, _, _), (after, length, width) = page.evaluate(both)
    assert (
        after > 0 and abs(before - after) < 0.15 and width == 128 and length == pytest.approx(0.96, abs=0.05)
    )
    for button, name in (("#save", "My-clip-veiled.mp4"), ("#save-report", "My-clip-veiled.json")):
        with page.expect_download() as download:
            page.click(button)
        assert download.value.suggested_filename == name
        download.value.save_as(tmp_path / name)
    source = open_source(tmp_path / "My-clip-veiled.mp4")
    assert sum(len(window.frames) for window in source.windows()) == 24
    source.close()
    report = json.loads((tmp_path / "My-clip-veiled.json").read_text())
    assert len(report["frames"]) == 24 and report["summary"]["method"] == "blacken"
    page.locator("#audit-choices").get_by_text("Everything, replaced by an action").click()
    page.click("#audit")
    page.wait_for_selector("#audited:not([hidden])")
    assert "Everything, replaced by an action." in page.inner_text("#verdicts")
    frame = page.frame_locator("#audit-page")
    frame.locator("#trade-off svg").first.wait_for()
    assert "Audit of" in frame.locator("h1").inner_text()
    page.click("#forget")
    until(lambda: not [*root.glob("jobs/*/anonymized.mp4")])


@pytest.mark.slow
def test_garbage_and_what_one_points_at_on_a_phone(visit, tmp_path):
    page = visit(360, 740, "dark")
    garbage = tmp_path / "clip.mp4"
    garbage.write_bytes(b"#EXTM3U\nfile:///etc/passwd\n" * 20)
    page.set_input_files("#file", garbage)
    page.wait_for_selector("#video-error:not(:empty)")
    assert "known format" in page.inner_text("#video-error")
    garbage.write_bytes(clip(tmp_path / "good.mp4").read_bytes()[:300])
    page.set_input_files("#file", garbage)
    page.wait_for_selector("#video-error:not(:empty):not(:has-text('known format'))")
    assert page.locator("#go").is_disabled() and page.locator("#drop").is_visible()
    page.set_input_files("#file", tmp_path / "good.mp4")
    page.wait_for_selector("#go:enabled")
    assert page.inner_text("#video-error") == ""
    page.get_by_text("Only what I choose").first.click()
    page.focus("#picture")
    for key in ("ArrowLeft", "ArrowUp", "Enter", "Shift+ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert page.locator(".mark").count() == 2
    page.fill("#called", "Face")  # which the part network finds
    page.click("#make")
    page.wait_for_selector("#point-error:not(:empty)")
    page.fill("#called", "The badge!")
    page.click("#make")
    page.wait_for_selector("#point-message:has-text('the-badge')")
    assert page.locator("#templates input:checked").evaluate_all("(all) => all.map((one) => one.value)") == [
        "the-badge"
    ]
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 360
    page.click("#change")
    page.click("#camera")
    page.click("#record")
    page.wait_for_timeout(900)
    page.click("#record")
    page.wait_for_selector("#go:enabled")
    assert page.inner_text("#name") == "camera.webm"


@pytest.mark.slow
def test_the_progress_of_an_audit_is_that_of_its_current_step(visit):
    page = visit()

    def shown(**status):
        job = {"state": "running", "task": "audit", "message": "anonymizing", "left": None} | status
        page.evaluate("(job) => progress(job, 'audit-message', 'audit-left', 'audit-bar')", job)
        return page.text_content("#audit-left"), page.evaluate("$('audit-bar').position")

    assert shown(done=3, total=12, left=20.0) == ("This step: 25 %, about 20 seconds left", 0.25)
    assert shown(done=3, total=12, left=20.0, task="anonymize")[0] == "25 %, about 20 seconds left"
    assert shown(done=0, total=1) == (
        "",
        -1,
    )  # one unit: an indeterminate bar


@pytest.mark.slow
def test_two_visitors_one_of_whom_cancels(visit, app, tmp_path):
    long, short = clip(tmp_path / "long.mp4", 60), clip(tmp_path / "short.mp4")
    first, second = visit(), visit()
    for page, file in ((first, long), (second, short)):
        page.set_input_files("#file", file)
        page.wait_for_selector("#go:enabled")
    second.get_by_text("Faces, blacked out").first.click()
    first.click("#go")
    second.click("#go")
    first.wait_for_selector("#after-still[src]")
    job = first.evaluate("sessionStorage.getItem('job')")
    shown = first.locator("#before-still").get_attribute("src")
    status = "(path) => fetch(path).then((answer) => answer.status)"
    for path in (shown, f"/jobs/{job}", f"/jobs/{job}/after-0.jpg"):
        assert second.evaluate(status, path) == 404
    first.click("#cancel")
    first.wait_for_selector("#after .empty:has-text('Cancelled')")
    assert first.locator("#before-still").get_attribute("src") is None
    assert first.evaluate(status, shown) == 404 and first.locator("#done").is_hidden()
    second.wait_for_selector("#done:not([hidden])")
    assert not [*app.folder.glob("veil-serve-*/jobs/*/raw")]
    assert first.locator("#go").is_enabled()  # it is uploaded again when it is needed
