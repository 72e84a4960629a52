"""The page: what visitors bring, the processes that work on it, what the server answers, and the page in a real browser."""

from __future__ import annotations

import http.client
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

import clips
from veil.apps.serve import work
from veil.apps.serve.jobs import Job, Jobs
from veil.apps.serve.uploads import Limits, Uploads, container, plain_name
from veil.core import Anonymizer, Explained, Frames, Veiled, VeilError
from veil.media.video import open_source

QUIET = work.Tell(io.StringIO())
MP4 = b"\x00\x00\x00\x18ftypmp42" + bytes(100)

WORK = """
import json, os, pathlib, signal, subprocess, sys, time
task = json.loads(sys.stdin.readline())
folder = pathlib.Path(task["folder"])
say = lambda **told: print(json.dumps(told), flush=True)
print("a library says something about /secret.mp4", flush=True)
(folder / "result").write_text("r")
if task.get("child"):
    child = subprocess.Popen(["sleep", "60"])
    say(done=child.pid, total=None)
say(done=1, total=4, words="working")
if task["task"] == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
if task["task"] == "raise":
    raise ValueError(str(folder))
if task["task"] == "sleep":
    say(pair=3, heat=False)
    time.sleep(60)
if task["task"] == "refuse":
    say(error="this is no good: try another.")
say(result={"told": task.get("told")})
"""


def until(true, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to that in time"
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


def over(job: Job) -> Job:
    assert job.over.wait(20)
    return job


@pytest.fixture
def jobs(tmp_path) -> Iterator[Jobs]:
    made = Jobs(tmp_path / "jobs", Limits(waiting=2, each=2), [sys.executable, "-S", "-c", WORK])
    yield made
    made.close()
    assert not [*(tmp_path / "jobs").iterdir()]


@pytest.fixture
def uploads(tmp_path) -> Uploads:
    return Uploads(tmp_path / "uploads", Limits(bytes=1000))


def brought(uploads: Uploads, owner: str = "a", name: str = "clip.mp4"):
    receiving = uploads.begin(owner, name)
    receiving.write(MP4)
    return receiving.finish()


# Uploads.


@pytest.mark.parametrize(
    ("name", "plain"),
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
def test_names_are_made_plain(name, plain):
    assert plain_name(name) == plain


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
def test_videos_are_known_by_their_first_bytes(head, suffix):
    assert container(head) == suffix


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
def test_what_is_no_video_is_refused_and_leaves_nothing(uploads, head):
    receiving = uploads.begin("a", "clip.mp4")
    with pytest.raises(VeilError, match="no video that is known"):
        receiving.write(head)
        receiving.finish()
    receiving.discard()
    assert not [*uploads.root.iterdir()]


def test_an_upload_is_refused_as_soon_as_it_is_too_large(uploads):
    with pytest.raises(VeilError, match="larger than"):
        uploads.begin("a", "clip.mp4", 1001)
    receiving = uploads.begin("a", "clip.mp4", None)  # whose size is not said, or is a lie
    receiving.write(MP4)
    with pytest.raises(VeilError, match="larger than"):
        receiving.write(bytes(1000))
    receiving.discard()
    assert not [*uploads.root.iterdir()]


def test_an_upload_is_its_visitors_alone(uploads):
    upload = brought(uploads)
    assert uploads.get("a", upload.id).path.read_bytes() == MP4
    assert upload.path.stat().st_mode & 0o777 and uploads.root.stat().st_mode & 0o077 == 0
    assert "clip" not in str(upload.path)
    for what in (uploads.get, uploads.take):
        with pytest.raises(VeilError, match="not here any more"):
            what("b", upload.id)
    uploads.take("a", upload.id)
    with pytest.raises(VeilError, match="not here any more"):
        uploads.take("a", upload.id)


def test_uploads_that_nobody_uses_are_deleted(uploads):
    kept = [brought(uploads) for _ in range(4)]
    assert not kept[0].folder.exists() and kept[3].folder.exists()  # three wait at most
    uploads.sweep(time.monotonic() + uploads.limits.keep + 1)
    assert not [*uploads.root.iterdir()]


# Jobs.


def test_a_job_keeps_its_results_and_loses_the_video(jobs, tmp_path):
    raw = tmp_path / "upload"
    raw.mkdir()
    (raw / "video.mp4").write_bytes(MP4)
    job = over(jobs.submit("a", {"task": "do", "told": "x"}, raw=raw))
    assert (job.state, job.result, job.done, job.total, job.words) == ("done", {"told": "x"}, 1, 4, "working")
    assert not raw.exists() and not job.raw.exists()
    assert (job.folder / "result").read_text() == "r"
    assert jobs.get("a", job.id) is job
    with pytest.raises(VeilError, match="not here any more"):
        jobs.get("b", job.id)
    jobs.sweep(job.ended + jobs.limits.keep - 1)
    assert job.folder.exists()
    jobs.sweep(job.ended + jobs.limits.keep + 1)
    assert not job.folder.exists()
    with pytest.raises(VeilError, match="deleted after a while"):
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
    assert not bad.folder.exists() and not raw.exists() and bad.pair is None
    assert over(good).state == "done"


def test_a_job_that_cannot_be_started_is_told(tmp_path):
    jobs = Jobs(tmp_path / "jobs", Limits(), [str(tmp_path / "nothing")])
    assert "could not be started" in over(jobs.submit("a", {"task": "do"})).error


def test_the_queue_is_bounded_and_in_order(jobs):
    first = jobs.submit("a", {"task": "sleep"})
    waiting = [jobs.submit("b", {"task": "do"}), jobs.submit("c", {"task": "do"})]
    assert [job.state for job in waiting] == ["waiting"] * 2
    assert [jobs.place(job) for job in (first, *waiting)] == [0, 1, 2]
    with pytest.raises(VeilError, match="too many jobs are waiting"):
        jobs.submit("d", {"task": "do"})
    for lane in ("short", "audit"):  # others do not wait for videos
        assert over(jobs.submit("d", {"task": "do"}, lane=lane)).state == "done"
    assert waiting[0].state == "waiting"
    jobs.cancel(first)
    assert [over(job).state for job in waiting] == ["done"] * 2
    assert waiting[0].begun <= waiting[1].begun


def test_one_visitor_has_a_bound_of_his_own(jobs):
    jobs.submit("a", {"task": "sleep"})
    jobs.submit("a", {"task": "do"})
    with pytest.raises(VeilError, match="as many jobs as you may"):
        jobs.submit("a", {"task": "do"})
    assert jobs.submit("b", {"task": "do"}).state == "waiting"


def test_cancelling_ends_the_process_with_all_it_has_started(jobs):
    job, next_ = jobs.submit("a", {"task": "sleep", "child": True}), jobs.submit("a", {"task": "do"})
    until(lambda: job.pair == 3)
    assert job.process
    jobs.cancel(job)
    assert job.state == "cancelled" and not job.folder.exists() and job.pair is None
    assert job.process.wait(5) == -signal.SIGKILL
    until(lambda: not members(job.process.pid))
    assert over(next_).state == "done"
    jobs.cancel(next_)  # too late
    assert next_.state == "done" and next_.folder.exists()


def test_a_job_that_takes_too_long_is_stopped(jobs):
    job = jobs.submit("a", {"task": "sleep"})
    until(lambda: job.pair == 3)
    jobs.sweep(time.monotonic() + jobs.limits.patience + 1)
    assert job.state == "failed" and "longer than 240 minutes" in job.error and not job.folder.exists()


def test_time_left():
    def left(done: int, total: int | None, latest: float, now: float) -> float | None:
        job = Job(
            "i", "a", {}, Path(), "audit", state="running", done=done, total=total, moved=100, latest=latest
        )
        return job.left(now)

    assert left(10, 100, 105, 105) == pytest.approx(45)
    assert left(10, 100, 105, 105.25) == pytest.approx(44.75)
    assert left(2, 7, 140, 150) == pytest.approx(90)  # 20 seconds each, and half of one is over
    assert left(2, 7, 140, 300) == pytest.approx(80)  # a slow one: it does not grow
    assert left(6, 7, 220, 300) is None  # and the last is not said to be over
    assert left(1, 7, 140, 140) is None and left(10, None, 105, 105) is None and left(7, 7, 240, 240) is None


def test_time_left_is_counted_from_the_last_piece(jobs):
    job = Job("i", "a", {}, Path(), "audit", state="running")

    def hear(done: int, words: str) -> float:
        jobs._hear(job, json.dumps({"done": done, "total": 9, "words": words}))
        return job.latest

    for done, words in ((0, "reading"), (9, "reading"), (0, "training")):
        hear(done, words)
    piece = hear(1, "training")
    assert hear(1, "training") == piece and job.left() is None  # told again, but no further
    assert hear(3, "training") > piece
    assert job.left(job.latest) == pytest.approx(2 * (job.latest - job.moved))


def test_a_job_ends_with_its_server():
    code = "from veil.apps.serve import work; work._end_with_server()"
    orphan = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)
    assert orphan.stdin and orphan.poll() is None
    orphan.stdin.close()
    assert orphan.wait(20) == -signal.SIGKILL


class Late(Anonymizer):
    """Gives frames inverted, two windows later and one by one."""

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        return self.explained(windows, lambda _: None)

    def explained(self, windows: Iterable[Frames], tell) -> Iterator[Veiled]:
        for frame in np.concatenate([*windows]):
            tell(Explained(255 - frame, np.full((4, 4), frame[0, 0, 0] / 255, np.float32), None))
            yield Veiled(255 - frame[None], None)

    def params(self):
        return {"a": 1}


def test_what_is_watched_is_the_same_frame_before_and_after(monkeypatch):
    monkeypatch.setattr(work, "OFTEN", -1.0)
    seen: dict[int, dict[str, Frames]] = {}
    frames = np.arange(12, dtype=np.uint8)[:, None, None, None].repeat(8, 1).repeat(8, 2).repeat(3, 3)
    watched = work.watched(Late(), lambda at, pictures: seen.update({at: pictures}))
    assert type(watched).__name__ == "Late" and watched.params() == {"a": 1}
    out = np.concatenate(
        [v.frames for v in watched.explained(iter([frames[:5], frames[5:]]), lambda _: None)]
    )
    assert (out == 255 - frames).all()
    assert sorted(seen) == [0, 5]
    for at, pictures in seen.items():
        assert (pictures["before"] == at).all() and (pictures["after"] == 255 - at).all()
        assert pictures["heat"].shape == (8, 8, 3)
    short = work.watched(Late(), lambda *_: None, most=11)
    with pytest.raises(VeilError, match="longer than"):
        list(short.stream(iter([frames[:5], frames[5:]])))


def test_a_broken_video_is_told_without_its_place(tmp_path):
    """The real process, up to its sentence."""
    jobs = Jobs(tmp_path / "jobs", Limits())
    path = tmp_path / "video.mp4"
    path.write_bytes(MP4)
    task = {"task": "look", "video": str(path), "stills": str(tmp_path), "pixels": 1e6, "seconds": 9}
    job = over(jobs.submit("a", task))
    assert job.state == "failed" and "this video" in job.error and str(tmp_path) not in job.error
    jobs.close()


def test_what_a_look_tells_and_refuses(tmp_path):
    path = clips.video(tmp_path / "video.mp4", clips.pictures(10), rate=10)
    task = {"video": str(path), "stills": str(tmp_path), "pixels": 64 * 48, "seconds": 2}
    told = work.look(task, QUIET)
    assert (told["width"], told["height"], told["frames"], told["seconds"]) == (
        64,
        48,
        10,
        pytest.approx(1.0),
    )
    assert told["stills"] == pytest.approx([0, 0.2, 0.4, 0.5, 0.7, 0.9], abs=0.11)
    for at, second in enumerate(told["stills"]):
        seen = np.array(Image.open(tmp_path / f"still-{at}.png")).astype(int)
        assert abs(seen - clips.picture(round(10 * second)).astype(int)).mean() < 6
    with pytest.raises(VeilError, match="minutes long"):
        work.look({**task, "seconds": 0.5}, QUIET)
    with pytest.raises(VeilError, match="64 x 48 pixels"):
        work.look({**task, "pixels": 1000}, QUIET)


# The server.

LESS = """if True:
    from dataclasses import replace
    from veil.audit.suites import SUITES
    suite = SUITES["quick"]
    efforts = {sees: replace(effort, steps=2, batch=4) for sees, effort in suite.efforts.items()}
    restoring = replace(suite.restoring, steps=2, batch=4)
    fewer = dict(size=32, frames=4, videos=40, attackers=suite.attackers[2:3], knows=("adapted",))
    SUITES["quick"] = replace(suite, efforts=efforts, restoring=restoring, **fewer)
"""
ONE = """if True:
    import json, os
    os.cpu_count = lambda: 1  # to start others takes longer than what they would do
    from veil.apps.serve import work
    if {crash!r}:
        work.TASKS["anonymize"] = lambda task, tell: os.abort()
"""
SERVER = """if True:
    import signal, sys
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # as the command line does
    from veil.apps.serve.app import serve
    from veil.apps.serve.uploads import Limits
    command = [sys.executable, "-c", sys.argv[1]]
    limits = Limits(bytes=2**20, running=2, spare=0)
    password = sys.argv[2] or None
    serve(port=0, command=command, limits=limits, share_on_network=bool(password), password=password,
          say=lambda words: print(words, flush=True))
"""


@contextmanager
def started(folder: Path, *, crash: bool = False, password: str = "") -> Iterator[SimpleNamespace]:
    """A server in a process of its own, whose files are in `folder`; it leaves none."""
    pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'veil-video[ui]'")
    lazy = "import sys, json\n" + ONE.format(crash=crash)
    # Only an audit loads torch and what it takes to make it small.
    task = "import io\nline = sys.stdin.readline(); sys.stdin = io.StringIO(line)\n"
    worker = lazy + task + f"if json.loads(line)['task'] == 'audit': exec({LESS!r})\nwork.main()"
    places = {
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_DATA_HOME": str(folder / "data"),
    }
    log = folder / "log"
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, worker, password],
        env={**os.environ, **places},
        stdout=subprocess.PIPE,
        stderr=log.open("w"),
        text=True,
    )
    assert server.stdout
    said = server.stdout.readline()
    assert said.startswith("Veil is at http://"), log.read_text()
    port = urlsplit(said.split()[3]).port
    yield SimpleNamespace(url=f"http://127.0.0.1:{port}", port=port, folder=folder, process=server)
    server.terminate()
    said = server.stdout.read()
    server.wait(20)
    assert not [*folder.glob("veil-serve-*")], "it left something behind"
    told = said + log.read_text()
    assert "clip" not in told and "videos/" not in told, told


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with started(tmp_path_factory.mktemp("serve")) as server:
        yield server


def asked(server, path: str, method: str = "GET", body: bytes | None = None, **headers: str):
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    line.request(method, path, body, {key.replace("_", "-"): value for key, value in headers.items()})
    answer = line.getresponse()
    text = answer.read()
    cookie = (answer.headers.get("Set-Cookie") or "").split(";")[0]
    line.close()
    return SimpleNamespace(status=answer.status, headers=answer.headers, body=text, cookie=cookie)


def test_requests_that_are_refused(server, tmp_path):
    page = asked(server, "/")
    assert page.status == 200 and "HttpOnly" in page.headers["Set-Cookie"]
    assert "SameSite=strict" in page.headers["Set-Cookie"]
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["Cache-Control"] == "no-store"
    me, other = page.cookie, asked(server, "/").cookie
    assert me != other
    assert asked(server, "/", Host="evil.example").status == 403  # a name that points here
    from_elsewhere = asked(server, "/videos", "POST", MP4, Cookie=me, Origin="http://evil.example")
    assert from_elsewhere.status == 403
    for path in (
        "/docs",
        "/openapi.json",
        "/gradio_api/upload",
        "/config",
        "/jobs/../../etc/passwd",
        "/app.py",
    ):
        assert asked(server, path, Cookie=me).status == 404, path
    assert asked(server, "/videos", "POST", MP4).status == 400  # nobody's
    too_large = asked(server, "/videos", "POST", MP4 + bytes(2**20), Cookie=me)
    assert too_large.status == 400 and b"larger than the 1 MB" in too_large.body
    for body in (
        b"",
        b"[]",
        b"{",
        json.dumps({"task": "audit", "choices": ["/etc"]}).encode(),
        b"x" * 100_000,
    ):
        assert asked(server, "/jobs", "POST", body, Cookie=me).status == 400
    clip = clips.video(tmp_path / "clip.mp4", clips.pictures(12, 96, 72)).read_bytes()
    told = json.loads(asked(server, "/videos", "POST", clip, Cookie=me, X_Name="..%2Fmy%20clip.mp4").body)
    assert (told["name"], told["frames"], told["width"]) == ("my-clip", 12, 96)
    still = f"/videos/{told['video']}/still-0.png"
    assert asked(server, still, Cookie=me).status == 200
    assert asked(server, still, Cookie=other).status == 404
    assert asked(server, still).status == 404
    for choice in ("blur", "/tmp", None, ["people"]):
        body = json.dumps({"video": told["video"], "choice": choice}).encode()
        assert asked(server, "/jobs", "POST", body, Cookie=me).status == 400
    body = json.dumps({"video": told["video"], "choice": "chosen", "hide": ["hair,seed=1"]}).encode()
    assert b"not here any more" in asked(server, "/jobs", "POST", body, Cookie=me).body
    stolen = json.dumps({"video": told["video"], "choice": "faces"}).encode()
    assert asked(server, "/jobs", "POST", stolen, Cookie=other).status == 404
    assert asked(server, "/forget", "POST", b"", Cookie=me).status == 200
    assert asked(server, still, Cookie=me).status == 404


def test_a_password_and_a_crash(tmp_path):
    """A server for the network, whose jobs all break down."""
    with started(tmp_path, crash=True, password="open sesame") as server:
        cookie = asked(server, "/").cookie
        assert b'type="password"' in asked(server, "/", Cookie=cookie).body
        for path in ("/choices", "/sample.mp4", "/jobs/x"):
            assert asked(server, path, Cookie=cookie).status == 401
        assert asked(server, "/videos", "POST", MP4, Cookie=cookie).status == 401
        assert asked(server, "/enter", "POST", b"password=open", Cookie=cookie).status == 403
        assert asked(server, "/choices", Cookie=cookie).status == 401
        assert asked(server, "/enter", "POST", b"password=open+sesame", Cookie=cookie).status == 303
        assert asked(server, "/choices", Cookie=cookie).status == 200
        clip = clips.video(tmp_path / "clip.mp4", clips.pictures(12, 96, 72)).read_bytes()
        video = json.loads(asked(server, "/videos", "POST", clip, Cookie=cookie).body)["video"]
        body = json.dumps({"video": video, "choice": "faces"}).encode()
        job = json.loads(asked(server, "/jobs", "POST", body, Cookie=cookie).body)["job"]
        told: dict = {}

        def failed() -> bool:
            told.update(json.loads(asked(server, f"/jobs/{job}", Cookie=cookie).body))
            return told["state"] == "failed"

        until(failed)
        assert "broke down" in told["error"] and "signal 6" in told["error"]
        for name in ("before-0.jpg", "after-0.jpg", "anonymized.mp4", "video.mp4", "raw"):
            assert asked(server, f"/jobs/{job}/{name}", Cookie=cookie).status == 404
        root = next(tmp_path.glob("veil-serve-*"))
        assert not [*(root / "jobs").iterdir()] and not [*(root / "uploads").iterdir()]
        tries = [
            asked(server, "/enter", "POST", b"password=guess", Cookie=asked(server, "/").cookie)
            for _ in range(10)
        ]
        assert b"not the password" in tries[0].body and b"Too many wrong passwords" in tries[-1].body


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--share-on-network"], "needs a password"),
        (["--port", "99999"], "port 99999 cannot be used"),
        (["--key", "k.pem"], "go together"),
        (["--most-megabytes", "0"], "not above 0"),
    ],
)
def test_the_command_refuses(words, sentence, capsys, monkeypatch):
    from veil.cli import main

    monkeypatch.delenv("VEIL_PASSWORD", raising=False)
    with pytest.raises(SystemExit) as stop:
        main(["serve", *words])
    assert stop.value.code == 2 and sentence in capsys.readouterr().err


def test_the_page_says_what_it_needs(tmp_path, monkeypatch):
    from veil.apps.serve import app

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    site = app.Site(app.Settings(), tmp_path / "site")
    with pytest.raises(VeilError, match=r"veil-video\[ui\]"):
        app.create(site)
    site.close()
    assert not (tmp_path / "site").exists()


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
def test_which_requests_are_strange(headers, shared, fine):
    from veil.apps.serve.app import _strange

    assert (not _strange(headers, shared)) == fine


def test_visitors_that_do_not_come_back_are_forgotten(tmp_path):
    from veil.apps.serve import app

    site = app.Site(app.Settings(), tmp_path / "site")
    cookie, visitor = site.welcome()
    assert site.visitor(cookie) is visitor and site.visitor("other") is None and site.visitor(None) is None
    assert site.home(visitor).is_dir()
    site.sweep(time.monotonic() + 5 * site.settings.limits.keep)
    assert site.visitor(cookie) is None and not visitor.folder.exists()
    site.close()


# The page, in a browser.


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="there is no Playwright to drive a browser")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with api.sync_playwright() as playwright:
        path = found or playwright.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("there is no Chromium here: apt-get install chromium")
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
def visit(browser, server):
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
        page.goto(server.url)
        page.wait_for_selector(".choice")
        contexts.append(context)
        return page

    yield come
    for context in contexts:
        context.close()
    assert requests
    away = {url for url in requests if not url.startswith((server.url + "/", f"blob:{server.url}", "data:"))}
    assert not away and not troubles


def clip(path: Path, frames: int = 24) -> Path:
    return clips.video(path, clips.noise(frames, 128, 96))


@pytest.mark.slow
def test_upload_anonymize_play_download_audit(visit, server, tmp_path):
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
    root = next(server.folder.glob("veil-serve-*"))
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
    told = json.loads((tmp_path / "My-clip-veiled.json").read_text())
    assert len(told["frames"]) == 24 and told["summary"]["method"] == "blacken"
    page.locator("#audit-choices").get_by_text("Everything but the action").click()
    page.click("#audit")
    page.wait_for_selector("#audited:not([hidden])")
    assert "Everything but the action." in page.inner_text("#verdicts")
    report = page.frame_locator("#audit-page")
    report.locator("#trade-off svg").first.wait_for()
    assert "Audit of" in report.locator("h1").inner_text()
    page.click("#forget")
    until(lambda: not [*root.glob("jobs/*/anonymized.mp4")])


@pytest.mark.slow
def test_garbage_and_what_one_points_at_on_a_phone(visit, tmp_path):
    page = visit(360, 740, "dark")
    garbage = tmp_path / "clip.mp4"
    garbage.write_bytes(b"#EXTM3U\nfile:///etc/passwd\n" * 20)
    page.set_input_files("#file", garbage)
    page.wait_for_selector("#video-error:not(:empty)")
    assert "no video that is known here" in page.inner_text("#video-error")
    garbage.write_bytes(clip(tmp_path / "good.mp4").read_bytes()[:300])
    page.set_input_files("#file", garbage)
    page.wait_for_selector("#video-error:not(:empty):not(:has-text('known here'))")
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
    page.wait_for_selector("#point-said:has-text('the-badge')")
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
def test_how_far_a_step_of_an_audit_is_is_not_said_of_the_audit(visit):
    page = visit()

    def shown(**told):
        job = {"state": "running", "task": "audit", "words": "anonymizing", "left": None} | told
        page.evaluate("(job) => progress(job, 'audit-words', 'audit-left', 'audit-bar')", job)
        return page.text_content("#audit-left"), page.evaluate("$('audit-bar').position")

    assert shown(done=3, total=12, left=20.0) == ("This step: 25 %, about 20 seconds left", 0.25)
    assert shown(done=3, total=12, left=20.0, task="anonymize")[0] == "25 %, about 20 seconds left"
    assert shown(done=0, total=1) == (
        "",
        -1,
    )  # one piece: the bar says that it works, not that it stands at nothing


@pytest.mark.slow
def test_two_visitors_one_of_whom_cancels(visit, server, tmp_path):
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
    assert not [*server.folder.glob("veil-serve-*/jobs/*/raw")]
    assert first.locator("#go").is_enabled()  # it is brought again when it is needed
