"""`veil live`: what is shown is anonymized, in order, and not behind, whatever the source and the method do."""

import base64
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

import av
import cv2
import numpy as np
import pytest

import clips
from errors import refuses
from veil.apps.demo import sample
from veil.apps.live import display, threads
from veil.apps.live import window as live_window
from veil.apps.live.display import placeholder_frame
from veil.apps.live.mjpeg import MJPEGSink
from veil.apps.live.outputs import open_live_sink
from veil.apps.live.run import LiveSummary, live
from veil.apps.live.sinks import FileSink
from veil.core import Anonymizer, Frames, Veiled, VeilError
from veil.media.video import FrameTime, FrameWindow, VideoInfo
from veil.methods import make

WIDTH, HEIGHT = 64, 48
INFO = VideoInfo(WIDTH, HEIGHT, Fraction(30), time_base=Fraction(1, 30))


def raw(number: int, width: int = WIDTH, height: int = HEIGHT) -> Frames:
    """A raw frame: it has no blue, and its red and green encode its number."""
    frame = np.zeros((height, width, 3), np.uint8)
    frame[..., 0], frame[..., 1] = number // 200, number % 200
    return frame


class Marker(Anonymizer):
    """Makes frames blue, which no raw frame is; may be slow, look ahead, and fail."""

    def __init__(self, slow: float = 0.0, ahead: int = 0, fail: Callable[[int], bool] = lambda number: False):
        self.slow, self._ahead, self.fail = slow, ahead, fail
        self.videos = self.seen = 0

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        self.videos += 1
        held: list[Frames] = []
        for window in windows:
            for frame in window:
                self.seen += 1
                if self.fail(self.seen):
                    raise RuntimeError("broken")
                time.sleep(self.slow)
                made = frame.copy()
                made[..., 2] = 255
                held.append(made)
                if len(held) > self._ahead:
                    yield Veiled(held.pop(0)[None], None)
        for made in held:
            yield Veiled(made[None], None)

    def ahead(self) -> int:
        return self._ahead


Act = range | list[int] | threading.Event


class Script:
    """A live source that sends numbered frames, waits for events, and ends.

    With `taken`, the number of frames that the method has taken so far, none is sent before the method has the one before: none
    is dropped then, however busy the machine is.
    """

    live, undecodable = True, 0

    def __init__(
        self,
        *acts: Act,
        info: VideoInfo = INFO,
        gap: float = 0.004,
        taken: Callable[[], int] | None = None,
    ):
        self.info, self._acts, self._gap, self._taken = info, acts, gap, taken
        self._over, self._sent = threading.Event(), 0

    def windows(self) -> Iterator[FrameWindow]:
        for act in self._acts:
            if isinstance(act, threading.Event):
                act.wait(60)
                continue
            for number in act:
                if self._over.wait(self._gap):
                    return
                while self._taken and self._taken() < self._sent and not self._over.wait(0.001):
                    pass
                self._sent += 1
                yield FrameWindow(
                    raw(number, self.info.width, self.info.height)[None], [FrameTime(number, 1)]
                )

    def stop(self) -> None:
        self._over.set()

    def close(self) -> None:
        self._over.set()


class Kept:
    """A sink that keeps what is shown; after some placeholders in a row it sets an event."""

    def __init__(
        self, enough: int | None = None, after: int = 0, resume: threading.Event | None = None
    ) -> None:
        self.frames: list[Frames] = []
        self.ticks: list[int] = []
        self.placeholders: list[int] = []  # their places among the frames
        self._enough, self._after, self._resume = enough, after, resume
        self.closed, self._in_a_row = False, 0

    def show(self, frame: Frames, tick: int, *, placeholder: bool) -> bool:
        if placeholder:
            self.placeholders.append(len(self.frames))
            self._in_a_row += 1
            if self._resume and self.made() and self._in_a_row >= self._after:
                self._resume.set()
        else:
            self._in_a_row = 0
        self.frames.append(frame.copy())
        self.ticks.append(tick)
        return self._enough is None or len(self.made()) < self._enough

    def poll(self) -> bool:
        return True

    def describe(self) -> str:
        return ""

    def close(self) -> None:
        self.closed = True

    def numbers(self) -> list[int]:
        """Of the frames, each of which must be one that the method made."""
        found = []
        for frame in self.made():
            assert (frame[..., 2] == 255).all(), "a frame that the method has not made was shown"
            found.append(int(frame[0, 0, 0]) * 200 + int(frame[0, 0, 1]))
        return found

    def made(self) -> list[Frames]:
        return [frame for index, frame in enumerate(self.frames) if index not in self.placeholders]

    def reasons(self) -> set[str]:
        """The text of the placeholders."""
        texts = ("no signal", "starting", "the method failed", "waiting for the method")
        found = set()
        for index in self.placeholders:
            height, width = self.frames[index].shape[:2]
            (which,) = [
                text
                for text in texts
                if np.array_equal(self.frames[index], placeholder_frame(width, height, text))
            ]
            found.add(which)
        return found


def play(source: Script, to: list, method: Anonymizer, **more) -> LiveSummary:
    """Show a source until it is gone."""
    left, stop = iter([source]), threading.Event()

    def opened() -> Script:
        if (found := next(left, None)) is None:
            stop.set()
            raise VeilError("it is gone")
        return found

    return live(opened, to, method, stop=stop, **more)


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(display, "REPEAT", 0.05)
    monkeypatch.setattr(threads, "BACK_OFF", (0.02, 0.1))


@pytest.fixture
def stalls_soon(monkeypatch):
    """A source counts as stalled after a quarter of a second."""
    monkeypatch.setattr(display, "STALL", 0.25)


def test_every_frame_is_shown_once_and_in_order():
    kept, method = Kept(), Marker()
    result = play(Script(range(60), taken=lambda: method.seen), [kept], method)
    assert kept.numbers() == sorted(set(kept.numbers())) and kept.numbers()[-1] == 59
    assert result.captured == 60 == result.shown + result.dropped + result.late
    assert kept.closed and all(a < b for a, b in zip(kept.ticks, kept.ticks[1:], strict=False))


def _gone_after(source: Script) -> Callable[[], Script]:
    left = iter([source])

    def opened() -> Script:
        if (found := next(left, None)) is None:
            raise VeilError("it is gone")
        return found

    return opened


def test_a_source_that_stays_away_ends_it():
    kept = Kept()
    with refuses("source-gone"):
        live(_gone_after(Script(range(5))), [kept], Marker(), reconnect_timeout=0.1)
    assert kept.numbers() and kept.closed


def test_a_slow_method_drops_frames_and_is_not_behind():
    kept = Kept()
    result = play(Script(range(120), gap=0.01), [kept], Marker(slow=0.05))
    numbers = kept.numbers()
    assert numbers == sorted(set(numbers)) and 0 < len(numbers) < 100
    assert result.dropped > 20 and result.captured == result.shown + result.dropped + result.late
    assert numbers[-1] >= 117  # it is at the newest frame, not at an old one
    assert (
        result.delay[1] < 1500
    )  # two frames wait, and one is processed; a queue of all would be seconds behind


@pytest.mark.parametrize("ahead", [0, 7])
def test_the_delay_is_what_the_method_looks_ahead(ahead):
    log: list[str] = []
    kept, method = Kept(), Marker(ahead=ahead)
    script = Script(range(60), gap=1 / 60, taken=lambda: method.seen)
    result = play(script, [kept], method, log=log.append)
    assert any("233 ms" in message for message in log) == bool(ahead)  # 7 frames at 30 a second
    assert kept.numbers() and 1000 * ahead / 60 - 5 <= result.delay[0] < 1000 * ahead / 60 + 1000


@pytest.mark.parametrize(
    ("method", "exact"),
    [("downsample", True), ("blacken", True), ("prototypes", True), ("selective:every=3", False)],
)
def test_no_method_looks_further_ahead_than_stated(method, exact):
    anonymizer, given, longest = make(method), 0, 0
    frames = sample(45, (48, 32))

    def windows() -> Iterator[Frames]:
        nonlocal given
        for frame in frames:
            given += 1
            yield frame[None]

    out, stated = 0, anonymizer.ahead()
    assert stated is not None
    for veiled in anonymizer.stream(windows()):
        longest = max(longest, given - 1 - out) if given < len(frames) else longest
        out += len(veiled.frames)
    assert out == len(frames) and longest <= stated
    assert longest == stated or not exact


@pytest.mark.usefixtures("stalls_soon")
def test_a_stalled_source_shows_a_placeholder_and_goes_on():
    resume, method = threading.Event(), Marker()
    kept = Kept(after=4, resume=resume)
    script = Script(range(20), resume, range(20, 40), taken=lambda: method.seen)
    result = play(script, [kept], method)
    assert "no signal" in kept.reasons() and result.placeholders >= 4
    assert 39 in kept.numbers() and kept.numbers() == sorted(set(kept.numbers()))


@pytest.mark.usefixtures("stalls_soon")
def test_frames_held_through_a_stall_are_not_shown_after_the_placeholder():
    resume, method = threading.Event(), Marker(ahead=5)
    kept = Kept(after=10, resume=resume)
    script = Script(range(20), resume, range(20, 60), gap=0.01, taken=lambda: method.seen)
    result = play(script, [kept], method)
    numbers = kept.numbers()
    assert numbers == sorted(set(numbers)) and result.late >= 1
    assert all(a < b for a, b in zip(kept.ticks, kept.ticks[1:], strict=False))


def test_a_slow_source_is_not_a_stalled_one():
    kept = Kept()
    play(Script(range(6), gap=0.12), [kept], Marker())
    assert kept.numbers() == list(range(6)) and "no signal" not in kept.reasons()


def test_after_a_reconnection_the_source_is_a_new_video(monkeypatch):
    monkeypatch.setattr(threads, "BACK_OFF", (0.1, 10.0))
    calls, method, kept = [], Marker(ahead=2), Kept(enough=50)
    large = VideoInfo(2 * WIDTH, HEIGHT, Fraction(30), time_base=Fraction(1, 30))
    sources = iter([Script(range(30)), None, None, Script(range(100, 10_000), info=large)])

    def opened():
        calls.append(time.monotonic())
        if (source := next(sources, None)) is None:
            raise VeilError("it is gone")
        return source

    log: list[str] = []
    result = live(opened, [kept], method, log=log.append)
    assert result.reconnections == 1 and method.videos == 2 and len(calls) == 4
    first, second = np.diff(calls[1:])
    assert (
        first > 0.19 and second > 0.39
    )  # attempts become rarer; on a busy machine they may come later still
    assert any("gone" in message for message in log) and any("back" in message for message in log)
    after = kept.frames[-1]  # twice as wide as before: scaled to the size of all others, on black
    assert after.shape == (HEIGHT, WIDTH, 3)
    assert not after[0].any() and (after[HEIGHT // 2, :, 2] == 255).all()


def test_a_method_that_fails_once_is_restarted():
    method, kept = Marker(fail=lambda seen: seen == 30), Kept()
    result = play(Script(range(60), taken=lambda: method.seen), [kept], method)
    assert result.restarts == 1 and method.videos == 2 and result.failed == 1
    assert kept.numbers() == sorted(set(kept.numbers())) and kept.numbers()[-1] == 59


def test_a_method_that_always_fails_ends_it_and_shows_only_placeholders(tmp_path):
    kept = Kept()
    with refuses("method-failing"):
        play(
            Script(range(200), gap=0.01),
            [kept, str(tmp_path / "out.mp4")],
            Marker(fail=lambda seen: True),
        )
    assert kept.numbers() == [] and kept.closed
    assert not list(tmp_path.iterdir())  # no file without frames


def test_an_error_that_the_user_must_mend_ends_it_at_once():
    def missing(seen: int) -> bool:
        raise VeilError("the weights are not on this machine: fetch them.", code="weights-missing")

    method, kept = Marker(fail=missing), Kept()
    with refuses("weights-missing"):
        play(Script(range(200), gap=0.01), [kept], method)
    assert kept.numbers() == [] and method.videos == 1


def test_a_method_that_hangs_shows_a_placeholder(monkeypatch):
    """While frames come in: a frozen picture would look like the present."""
    monkeypatch.setattr(display, "STALL", 0.5)
    resume = threading.Event()

    class Hangs(Marker):
        def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
            for number, veiled in enumerate(super().stream(windows)):
                if number == 10:
                    resume.wait(60)
                yield veiled

    kept = Kept(after=2, resume=resume)
    play(Script(range(200), gap=0.01), [kept], Hangs())
    assert "waiting for the method" in kept.reasons() and "no signal" not in kept.reasons()
    assert kept.numbers() == sorted(set(kept.numbers())) and kept.numbers()[-1] > 190


class Doubling(Anonymizer):
    """Returns more frames than it was given."""

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        for window in windows:
            yield Veiled(np.concatenate([window, window]), None)


def test_a_method_that_breaks_its_contract_has_failed():
    kept = Kept()
    with refuses("method-failing"):
        play(Script(range(200), gap=0.01), [kept], Doubling())
    assert len(kept.frames) == len(kept.placeholders)


def test_a_looped_file_becomes_a_file(tmp_path):
    video = clips.video(tmp_path / "in.mp4", [raw(i) for i in range(15)], rate=30)
    result = live(str(video), [str(tmp_path / "out.mkv"), Kept(enough=25)], Marker(), loop=True, seconds=120)
    assert result.captured > 15 and result.shown and result.reconnections == 0  # more than one pass
    assert result.seconds > 24 / 30  # the speed of the source
    with av.open(str(tmp_path / "out.mkv")) as container:
        times = [frame.time for frame in container.decode(video=0)]
    assert len(times) == result.shown and times == sorted(times)
    assert times[-1] < result.seconds + 0.5
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".veil")]


def test_a_file_ends_by_itself(tmp_path):
    video = clips.video(tmp_path / "in.mp4", [raw(i) for i in range(15)], rate=30)
    kept = Kept()
    result = live(str(video), [kept], Marker())
    assert result.captured == 15 == result.shown + result.dropped + result.late and kept.numbers()
    assert result.seconds > 0.4  # at its own speed


@pytest.mark.slow
def test_ctrl_c_leaves_a_whole_file(tmp_path):
    video = clips.video(tmp_path / "in.mp4", clips.noise(20, 320, 240), rate=20)
    method = "pixelate:block=2,region=frame"
    arguments = ["live", "--source", video, "--loop", "--to", tmp_path / "out.mp4", "--method", method]
    running = subprocess.Popen(
        [sys.executable, "-m", "veil", *map(str, arguments)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    assert "frames a second" in running.stderr.readline()
    end = time.monotonic() + 120
    while not any(path.stat().st_size > 4000 for path in tmp_path.iterdir() if path != video):
        assert running.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=120)
    assert running.returncode == 0 and "frames shown" in out
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.mp4", "out.mp4"]


def parts(response: http.client.HTTPResponse, count: int) -> list[Frames]:
    """The first frames of an MJPEG stream that are not placeholders, RGB."""
    found: list[Frames] = []
    while len(found) < count:
        assert response.readline().strip() == b"--frame"
        head = dict(line.split(": ") for line in iter(lambda: response.readline().decode().strip(), ""))
        jpeg = response.read(int(head["Content-Length"]))
        response.readline()
        picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
        assert picture is not None
        if picture[..., 0].mean() > 100:
            found.append(picture[..., ::-1].astype(np.uint8))
    return found


def get(port: int, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def test_mjpeg_is_read_back_by_a_client():
    page, stop = MJPEGSink("127.0.0.1", 0, None), threading.Event()
    numbers = [number // 2 for number in range(2000)]
    running = threading.Thread(
        target=live,
        args=(_gone_after(Script(numbers, gap=0.02)), [page], Marker()),
        kwargs={"stop": stop},
    )
    running.start()
    try:
        answer = get(page.port, "/stream")
        assert "multipart/x-mixed-replace" in answer.headers["Content-Type"]
        pictures = parts(answer, 10)
        greens = [float(picture[..., 1].mean()) for picture in pictures]
        assert all(picture[..., 2].mean() > 230 for picture in pictures)
        assert greens == sorted(greens) and greens[-1] > greens[0]
        assert b"/stream" in get(page.port, "/").read()
        one = get(page.port, "/frame.jpg")
        assert (
            one.status == 200 and one.headers["Cache-Control"] == "no-store" and one.read()[:2] == b"\xff\xd8"
        )
        assert get(page.port, "/../etc/passwd").status == 404
        assert (
            get(page.port, "/stream", Host="evil.example").status == 403
        )  # a name that was made to point here
    finally:
        stop.set()
        running.join(60)
    assert not running.is_alive()
    with pytest.raises(OSError):
        get(page.port, "/")


def test_a_token_is_needed():
    page = MJPEGSink("127.0.0.1", 0, "a-long-secret")
    page.show(raw(1), 0, placeholder=False)
    try:
        basic = base64.b64encode(b"me:a-long-secret").decode()
        assert get(page.port, "/frame.jpg").status == 401
        assert get(page.port, "/frame.jpg?token=a-long-secre").status == 401
        assert get(page.port, "/frame.jpg?token=a-long-secret").status == 200
        assert get(page.port, "/frame.jpg", Authorization=f"Basic {basic}").status == 200
        assert get(page.port, "/frame.jpg", Authorization="Bearer a-long-secret").status == 200
    finally:
        page.close()


@pytest.mark.parametrize(
    ("place", "more", "code"),
    [
        ("http://0.0.0.0:8090", {}, "not-shared"),
        ("http://192.168.0.5:8090", {"token": "a-long-secret"}, "not-shared"),
        ("http://0.0.0.0:8090", {"share": True}, "token-missing"),
        ("http://0.0.0.0:8090", {"share": True, "token": "short"}, "token-short"),
        ("http://127.0.0.1:99999", {}, "address-invalid"),
        ("rtsp://198.51.100.7/x", {}, "not-shared"),
        ("rtsp://me:secret@127.0.0.1:9/x?k=v", {}, "rtsp-refused"),
        ("ftp://127.0.0.1/x", {}, "output-unknown"),
    ],
)
def test_outputs_that_are_refused(place, more, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refuses(code) as refused:
        open_live_sink(place, INFO, **{"share": False, "token": None, "overwrite": False, **more})
    assert "secret" not in str(refused.value) and not list(tmp_path.iterdir())


def test_without_a_display_a_window_is_one_sentence(monkeypatch):
    if sys.platform in ("darwin", "win32"):
        pytest.skip("there is always a display on this system")
    monkeypatch.setattr(live_window, "has_gui", lambda: True)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with refuses("window-no-display"):
        open_live_sink("window", INFO, share=False, token=None, overwrite=False)


@pytest.mark.parametrize("build", ["headless", "without highgui"])
def test_an_opencv_without_windows_is_one_sentence(build, monkeypatch):
    if build == "headless":
        monkeypatch.setattr(cv2, "getBuildInformation", lambda: "  GUI:                           NONE\n")
    else:
        monkeypatch.delattr(cv2, "imshow", raising=False)
    with refuses("window-no-gui") as refused:
        open_live_sink("window", INFO, share=False, token=None, overwrite=False)
    assert "opencv-python" in str(refused.value)


def in_a_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """With a wrong display, OpenCV may end the whole program: not this one."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={name: value for name, value in os.environ.items() if name != "WAYLAND_DISPLAY"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


OPENED = """
from fractions import Fraction
import cv2, numpy as np
from veil.core import VeilError
from veil.apps.live.window import WindowSink
from veil.media.video import VideoInfo
try:
    window = WindowSink(VideoInfo(64, 48, Fraction(30), time_base=Fraction(1, 30)))
except VeilError as error:
    raise SystemExit(error.code)
"""


def test_with_a_display_that_does_not_answer_a_window_is_one_sentence():
    if sys.platform in ("darwin", "win32"):
        pytest.skip("there is always a display on this system")
    if not live_window.has_gui():
        pytest.skip("this OpenCV has no windows: pip install '.[window]'")
    ended = in_a_process(OPENED, DISPLAY=":987")
    assert ended.returncode == 1 and ended.stderr.split() == ["window-no-display"]


def test_a_window_that_is_closed_ends_it_and_is_not_opened_again():
    if not (xvfb := shutil.which("Xvfb")):
        pytest.skip("Xvfb is not installed: apt-get install xvfb")
    if not live_window.has_gui():
        pytest.skip("this OpenCV has no windows: pip install '.[window]'")
    screen = subprocess.Popen(
        [xvfb, "-displayfd", "1", "-screen", "0", "320x240x24"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert screen.stdout is not None
        ended = in_a_process(
            OPENED
            + """
frame = np.full((48, 64, 3), 200, np.uint8)
print(window.poll(), window.show(frame, 0, placeholder=False), window.poll())
cv2.destroyWindow(window.NAME)  # as its close button does
print(window.poll(), window.show(frame, 1, placeholder=False), window._visible())
window.close()
""",
            DISPLAY=f":{screen.stdout.readline().strip()}",
        )
    finally:
        screen.terminate()
        screen.wait(10)
    assert ended.stdout.splitlines() == ["True True True", "False False False"] and not ended.stderr


def test_a_port_in_use_is_one_sentence():
    page = MJPEGSink("127.0.0.1", 0, None)
    try:
        with refuses("port-unusable"):
            open_live_sink(f"http://127.0.0.1:{page.port}", INFO, share=False, token=None, overwrite=False)
    finally:
        page.close()


def test_a_file_that_exists_is_kept(tmp_path):
    path = tmp_path / "out.mp4"
    path.write_bytes(b"mine")
    with refuses("output-exists"):
        play(Script(range(5)), [str(path)], Marker())
    assert path.read_bytes() == b"mine" and len(list(tmp_path.iterdir())) == 1


def test_a_file_begins_with_a_frame_and_keeps_the_times(tmp_path):
    file = FileSink(
        tmp_path / "out.mkv",
        VideoInfo(WIDTH, HEIGHT, Fraction(30), time_base=Fraction(1, 90_000)),
        overwrite=False,
    )
    file.show(placeholder_frame(WIDTH, HEIGHT, "starting"), 5, placeholder=True)
    for tick in (9000, 12000, 90_000):
        file.show(raw(1), tick, placeholder=False)
    file.close()
    with av.open(str(tmp_path / "out.mkv")) as container:
        times = [frame.time for frame in container.decode(video=0)]
    assert times == pytest.approx([0, 1 / 30, 0.9], abs=2e-3)


@pytest.mark.usefixtures("stalls_soon")
def test_a_stream_over_http_that_vanishes_is_read_again():
    """A real server and a real client: MJPEG in, the server goes away and comes back at the same port."""
    served = MJPEGSink("127.0.0.1", 0, None)
    port, over = served.port, threading.Event()
    pages = [served]

    def serve() -> None:
        number = 0
        while not over.wait(0.03):
            number += 1
            frame = raw(number % 200)
            frame[..., 1] += 50
            pages[-1].show(frame, 0, placeholder=False)

    kept, stop = Kept(), threading.Event()
    feeding = threading.Thread(target=serve, daemon=True)
    feeding.start()
    results = []
    running = threading.Thread(
        target=lambda: results.append(live(f"http://127.0.0.1:{port}/stream", [kept], Marker(), stop=stop))
    )
    running.start()

    def until(condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + 60
        while not condition() and time.monotonic() < end:
            time.sleep(0.02)
        return condition()

    try:
        assert until(lambda: len(kept.made()) > 5)
        pages[-1].close()
        assert until(lambda: "no signal" in kept.reasons())
        before = len(kept.frames)
        pages.append(MJPEGSink("127.0.0.1", port, None))
        assert until(lambda: any(i not in kept.placeholders for i in range(before + 1, len(kept.frames))))
    finally:
        stop.set()
        over.set()
        running.join(15)
        pages[-1].close()
    assert results and results[0].reconnections >= 1
    kept.numbers()  # every one was made by the method


RECORDER = """
import json, socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
stream = server.accept()[0].makefile("rwb")
packets, methods = 0, []
def next_byte():
    try:
        return stream.read(1)
    except ConnectionResetError:
        return b""
while first := next_byte():
    if first == b"$":  # one byte of channel, two of length
        stream.read(int.from_bytes(stream.read(3)[1:], "big"))
        packets += 1
        continue
    methods.append((first + stream.readline()).decode().split()[0])
    head = dict(line.decode().lower().split(": ", 1) for line in iter(lambda: stream.readline().strip(), b""))
    stream.read(int(head.get("content-length", 0)))
    answer = f"RTSP/1.0 200 OK\\r\\nCSeq: {head['cseq']}\\r\\nSession: 1\\r\\n"
    if "transport" in head:
        answer += f"Transport: {head['transport']}\\r\\n"
    stream.write(f"{answer}\\r\\n".encode())
    stream.flush()
print(json.dumps([methods, packets]))
"""


def test_an_rtsp_server_receives_the_video():
    """As much of a server as one that publishes needs, in a process of its own: PyAV holds all threads while it connects."""
    server = subprocess.Popen([sys.executable, "-c", RECORDER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        place = f"rtsp://127.0.0.1:{int(server.stdout.readline())}/x"
        method = Marker()
        result = play(Script(range(40), gap=0.01, taken=lambda: method.seen), [place], method)
        printed, _ = server.communicate(timeout=60)
    finally:
        server.kill()
    methods, packets = json.loads(printed)
    assert {"ANNOUNCE", "RECORD"} <= set(methods) and packets >= result.shown > 0


def test_the_command_line_names_what_is_missing(tmp_path, capsys):
    from veil.cli import main

    missing = str(tmp_path / "no.mp4")
    for arguments, value in (
        (["--to", "window"], "--camera"),
        (["--source", "x", "--camera", "0", "--to", "window"], "--camera"),
        (["--source", missing, "--to", "out.mp4", "--method", "blur"], missing),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["live", *arguments])
        assert stopped.value.code == 2
        assert value in capsys.readouterr().err.replace("\n", "")
