"""`veil live`: what is shown was anonymized, in order, and not behind; whatever the source and the method do."""

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
from veil.apps import live as module
from veil.apps.demo import sample
from veil.apps.live import Summary, card, live
from veil.apps.live_sinks import File, Page, open_outlet
from veil.core import Anonymizer, Frames, Veiled, VeilError
from veil.media.video import Time, VideoInfo, Window
from veil.methods import make

WIDTH, HEIGHT = 64, 48
INFO = VideoInfo(WIDTH, HEIGHT, Fraction(30), time_base=Fraction(1, 30))


def raw(number: int, width: int = WIDTH, height: int = HEIGHT) -> Frames:
    """A frame as it was filmed: it has no blue, and its red and green tell its number."""
    frame = np.zeros((height, width, 3), np.uint8)
    frame[..., 0], frame[..., 1] = number // 200, number % 200
    return frame


class Marker(Anonymizer):
    """Makes frames blue, which no frame was; may be slow, look ahead, and fail."""

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


class Script:
    """A live source that sends numbered frames, sleeps for the floats, waits for events, and ends."""

    live, lost = True, 0

    def __init__(self, *acts: range | float | threading.Event, info: VideoInfo = INFO, gap: float = 0.004):
        self.info, self._acts, self._gap, self._over = info, acts, gap, threading.Event()

    def windows(self) -> Iterator[Window]:
        for act in self._acts:
            if isinstance(act, threading.Event):
                act.wait(5)
                continue
            if isinstance(act, float | int):
                self._over.wait(act)
                continue
            for number in act:
                if self._over.wait(self._gap):
                    return
                yield Window(raw(number, self.info.width, self.info.height)[None], [Time(number, 1)])

    def stop(self) -> None:
        self._over.set()

    def close(self) -> None:
        self._over.set()


class Kept:
    """An outlet that keeps what is shown."""

    def __init__(self, enough: int | None = None) -> None:
        self.frames: list[Frames] = []
        self.ticks: list[int] = []
        self.cards: list[int] = []  # at which of them
        self._enough, self.closed = enough, False

    def show(self, frame: Frames, tick: int, *, card: bool) -> bool:
        if card:
            self.cards.append(len(self.frames))
        self.frames.append(frame.copy())
        self.ticks.append(tick)
        return self._enough is None or len(self.made()) < self._enough

    def idle(self) -> bool:
        return True

    def words(self) -> str:
        return ""

    def close(self) -> None:
        self.closed = True

    def numbers(self) -> list[int]:
        """Of the frames; each is told to be one that the method made."""
        found = []
        for index, frame in enumerate(self.frames):
            if index not in self.cards:
                assert (frame[..., 2] == 255).all(), "a frame that the method has not made was shown"
                found.append(int(frame[0, 0, 0]) * 200 + int(frame[0, 0, 1]))
        return found

    def made(self) -> list[Frames]:
        return [frame for index, frame in enumerate(self.frames) if index not in self.cards]

    def words_shown(self) -> set[str]:
        words = ("no signal", "starting", "the method failed", "waiting for the method")
        found = set()
        for index in self.cards:
            height, width = self.frames[index].shape[:2]
            (which,) = [
                text for text in words if np.array_equal(self.frames[index], card(width, height, text))
            ]
            found.add(which)
        return found


def play(source: Script, to: list, method: Anonymizer, **more) -> Summary:
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
    for name, value in {"STALL": 0.25, "REPEAT": 0.05, "BACK_OFF": (0.02, 0.1)}.items():
        monkeypatch.setattr(module, name, value)


def test_every_frame_is_shown_once_and_in_order():
    kept = Kept()
    result = play(Script(range(60), gap=0.01), [kept], Marker())
    assert kept.numbers() == sorted(set(kept.numbers())) and len(kept.numbers()) > 50
    assert result.filmed == 60 == result.shown + result.dropped + result.late
    assert kept.closed and all(a < b for a, b in zip(kept.ticks, kept.ticks[1:], strict=False))


def _gone_after(source: Script) -> Callable[[], Script]:
    left = iter([source])

    def opened() -> Script:
        if (found := next(left, None)) is None:
            raise VeilError("it is gone")
        return found

    return opened


def test_a_source_that_stays_away_is_told():
    kept = Kept()
    with pytest.raises(VeilError, match=r"did not come back within 0\.1 s"):
        live(_gone_after(Script(range(5))), [kept], Marker(), give_up=0.1)
    assert kept.numbers() and kept.closed


def test_a_slow_method_drops_frames_and_is_not_behind():
    kept = Kept()
    result = play(Script(range(120), gap=0.01), [kept], Marker(slow=0.05))
    numbers = kept.numbers()
    assert numbers == sorted(set(numbers)) and 10 < len(numbers) < 60
    assert result.dropped > 50 and result.filmed == result.shown + result.dropped + result.late
    assert numbers[-1] >= 117  # it is at the newest, not at an old one
    assert result.delay[1] < 400  # two frames wait, and one is worked on


@pytest.mark.parametrize("ahead", [0, 7])
def test_the_picture_is_late_by_what_is_looked_ahead(ahead):
    said: list[str] = []
    kept = Kept()
    result = play(Script(range(90), gap=1 / 60), [kept], Marker(ahead=ahead), say=said.append)
    assert any(f"looks {ahead} frames ahead: the picture is 233 ms late" in words for words in said) == bool(
        ahead
    )
    assert len(kept.numbers()) > 75
    assert 1000 * ahead / 60 - 5 <= result.delay[0] < 1000 * ahead / 60 + 150


@pytest.mark.parametrize(
    ("method", "exact"),
    [("downsample", True), ("blacken", True), ("prototypes", True), ("selective:every=3", False)],
)
def test_no_method_looks_further_ahead_than_it_says(method, exact):
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


def test_a_stalled_source_shows_a_card_and_goes_on():
    kept, resume = Kept(), threading.Event()
    threading.Timer(0.8, resume.set).start()
    result = play(Script(range(20), resume, range(20, 40)), [kept], Marker())
    assert "no signal" in kept.words_shown() and result.cards >= 4
    assert 39 in kept.numbers() and kept.numbers() == sorted(set(kept.numbers()))
    at = kept.cards[-1]
    assert any(index > at for index in range(len(kept.frames)) if index not in kept.cards)  # it went on


def test_what_the_method_held_through_a_stall_does_not_come_after_the_card():
    kept, resume = Kept(), threading.Event()
    threading.Timer(0.8, resume.set).start()
    result = play(Script(range(20), resume, range(20, 60), gap=0.01), [kept], Marker(ahead=5))
    numbers = kept.numbers()
    assert numbers == sorted(set(numbers)) and result.late >= 1
    assert all(a < b for a, b in zip(kept.ticks, kept.ticks[1:], strict=False))


def test_a_slow_source_is_no_stalled_one():
    kept = Kept()
    play(Script(range(6), gap=0.12), [kept], Marker())
    assert kept.numbers() == list(range(6)) and "no signal" not in kept.words_shown()


def test_a_vanished_source_is_looked_for_and_is_a_new_video():
    calls, method, kept = [], Marker(ahead=2), Kept(enough=50)
    large = VideoInfo(2 * WIDTH, HEIGHT, Fraction(30), time_base=Fraction(1, 30))
    sources = iter([Script(range(30)), None, None, Script(range(100, 200), info=large)])

    def opened():
        calls.append(time.monotonic())
        if (source := next(sources, None)) is None:
            raise VeilError("it is gone")
        return source

    said: list[str] = []
    result = live(opened, [kept], method, say=said.append)
    assert result.reconnections == 1 and method.videos == 2 and len(calls) == 4
    waits = np.diff(calls[1:])
    assert waits[1] > waits[0]  # it is asked less and less often
    assert any("gone" in words for words in said) and any("back" in words for words in said)
    after = kept.frames[-1]  # twice as wide as before: it lies on black, as large as all others
    assert after.shape == (HEIGHT, WIDTH, 3)
    assert not after[0].any() and (after[HEIGHT // 2, :, 2] == 255).all()


def test_a_method_that_fails_once_begins_anew():
    method, kept = Marker(fail=lambda seen: seen == 30), Kept()
    result = play(Script(range(60), gap=0.01), [kept], method)
    assert result.restarts == 1 and method.videos == 2 and result.failed == 1
    assert kept.numbers() == sorted(set(kept.numbers())) and kept.numbers()[-1] == 59


def test_a_method_that_always_fails_ends_it_and_shows_only_cards(tmp_path):
    kept = Kept()
    with pytest.raises(VeilError, match="failed 3 times on end"):
        play(
            Script(range(200), gap=0.01),
            [kept, str(tmp_path / "out.mp4")],
            Marker(fail=lambda seen: True),
        )
    assert kept.numbers() == [] and kept.closed
    assert not list(tmp_path.iterdir())  # of nothing there is no file


def test_what_a_user_has_to_mend_is_told_at_once():
    def missing(seen: int) -> bool:
        raise VeilError("the weights are not on this machine: fetch them.")

    kept, said = Kept(), []
    with pytest.raises(VeilError, match="fetch them"):
        play(Script(range(200), gap=0.01), [kept], Marker(fail=missing), say=said.append)
    assert kept.numbers() == [] and not [words for words in said if "begins anew" in words]


def test_a_method_that_hangs_shows_a_card():
    """While frames come in: a picture that stands still would look like the present."""

    class Hangs(Marker):
        def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
            for number, veiled in enumerate(super().stream(windows)):
                if number == 10:
                    time.sleep(0.7)
                yield veiled

    kept = Kept()
    play(Script(range(100), gap=0.01), [kept], Hangs())
    assert "waiting for the method" in kept.words_shown() and "no signal" not in kept.words_shown()
    assert kept.numbers() == sorted(set(kept.numbers())) and kept.numbers()[-1] > 90


class Doubling(Anonymizer):
    """Gives out more than it was given."""

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        for window in windows:
            yield Veiled(np.concatenate([window, window]), None)


def test_a_method_that_breaks_its_promise_is_a_failed_one():
    kept = Kept()
    with pytest.raises(VeilError, match="made frames"):
        play(Script(range(200), gap=0.01), [kept], Doubling())
    assert len(kept.frames) == len(kept.cards)


def test_a_looped_file_becomes_a_file(tmp_path):
    video = clips.video(tmp_path / "in.mp4", [raw(i) for i in range(15)], rate=30)
    result = live(str(video), [str(tmp_path / "out.mkv")], Marker(), loop=True, seconds=1.2)
    assert result.shown > 25 and result.reconnections == 0
    with av.open(str(tmp_path / "out.mkv")) as container:
        times = [frame.time for frame in container.decode(video=0)]
    assert len(times) == result.shown and times == sorted(times)
    assert 0.8 < times[-1] < 1.6  # it has the speed of what was filmed
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".veil")]


def test_a_file_ends_by_itself(tmp_path):
    video = clips.video(tmp_path / "in.mp4", [raw(i) for i in range(15)], rate=30)
    kept = Kept()
    result = live(str(video), [kept], Marker())
    assert result.filmed == 15 and 0.4 < result.seconds < 3 and len(kept.made()) >= 13


def test_ctrl_c_leaves_a_whole_file(tmp_path):
    video = clips.video(tmp_path / "in.mp4", clips.pictures(20), rate=20)
    arguments = ["live", "--source", video, "--loop", "--to", tmp_path / "out.mp4", "--method", "downsample"]
    running = subprocess.Popen(
        [sys.executable, "-m", "veil", *map(str, arguments)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    assert "frames a second" in running.stderr.readline()
    time.sleep(0.7)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=30)
    assert running.returncode == 0 and "frames shown" in out
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) > 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.mp4", "out.mp4"]


def parts(response: http.client.HTTPResponse, count: int) -> list[Frames]:
    """The first pictures of an MJPEG stream, RGB."""
    found = []
    while len(found) < count:
        assert response.readline().strip() == b"--frame"
        head = dict(line.split(": ") for line in iter(lambda: response.readline().decode().strip(), ""))
        jpeg = response.read(int(head["Content-Length"]))
        response.readline()
        picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
        assert picture is not None
        found.append(picture[..., ::-1].astype(np.uint8))
    return found


def asked(port: int, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def test_mjpeg_is_read_back_by_a_client():
    page, stop = Page("127.0.0.1", 0, None), threading.Event()
    running = threading.Thread(
        target=live,
        args=(_gone_after(Script(range(2000), gap=0.02)), [page], Marker()),
        kwargs={"stop": stop},
    )
    running.start()
    try:
        answer = asked(page.port, "/stream")
        assert "multipart/x-mixed-replace" in answer.headers["Content-Type"]
        pictures = [
            picture for picture in parts(answer, 12) if picture[..., 2].mean() > 100
        ]  # the others are cards
        greens = [float(picture[..., 1].mean()) for picture in pictures]
        assert len(pictures) >= 8 and all(picture[..., 2].mean() > 230 for picture in pictures)
        assert greens == sorted(greens) and greens[-1] > greens[0]
        assert b"/stream" in asked(page.port, "/").read()
        one = asked(page.port, "/frame.jpg")
        assert (
            one.status == 200 and one.headers["Cache-Control"] == "no-store" and one.read()[:2] == b"\xff\xd8"
        )
        assert asked(page.port, "/../etc/passwd").status == 404
        assert (
            asked(page.port, "/stream", Host="evil.example").status == 403
        )  # a name that was made to point here
    finally:
        stop.set()
        running.join(10)
    assert not running.is_alive()
    with pytest.raises(OSError):
        asked(page.port, "/")


def test_a_token_is_asked_for():
    page = Page("127.0.0.1", 0, "a-long-secret")
    page.show(raw(1), 0, card=False)
    try:
        basic = base64.b64encode(b"me:a-long-secret").decode()
        assert asked(page.port, "/frame.jpg").status == 401
        assert asked(page.port, "/frame.jpg?token=a-long-secre").status == 401
        assert asked(page.port, "/frame.jpg?token=a-long-secret").status == 200
        assert asked(page.port, "/frame.jpg", Authorization=f"Basic {basic}").status == 200
        assert asked(page.port, "/frame.jpg", Authorization="Bearer a-long-secret").status == 200
    finally:
        page.close()


@pytest.mark.parametrize(
    ("place", "more", "sentence"),
    [
        ("http://0.0.0.0:8090", {}, "could be seen by other machines"),
        ("http://192.168.0.5:8090", {"token": "a-long-secret"}, "could be seen by other machines"),
        ("http://0.0.0.0:8090", {"share": True}, "could be seen by anybody"),
        ("http://0.0.0.0:8090", {"share": True, "token": "short"}, "soon guessed"),
        ("http://127.0.0.1:99999", {}, "is no address"),
        ("rtsp://198.51.100.7/x", {}, "is another machine"),
        ("rtsp://me:secret@127.0.0.1:9/x?k=v", {}, "^rtsp://127.0.0.1:9/x takes no video"),
        ("ftp://127.0.0.1/x", {}, "is no place to show it"),
        ("out.txt", {}, "cannot hold"),
    ],
)
def test_where_it_is_not_shown(place, more, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(VeilError, match=sentence):
        open_outlet(place, INFO, **{"share": False, "token": None, "overwrite": False, **more})
    assert not list(tmp_path.iterdir())


def test_without_a_screen_a_window_is_one_sentence(monkeypatch):
    if sys.platform in ("darwin", "win32"):
        pytest.skip("there is always a screen")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(VeilError, match="there is no screen"):
        open_outlet("window", INFO, share=False, token=None, overwrite=False)


def in_a_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without a screen, or with a wrong one, OpenCV may end the whole program: not this one."""
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
from veil.apps.live_sinks import Window
from veil.media.video import VideoInfo
try:
    window = Window(VideoInfo(64, 48, Fraction(30), time_base=Fraction(1, 30)))
except VeilError as error:
    raise SystemExit(str(error))
"""


def test_with_a_screen_that_does_not_answer_a_window_is_one_sentence():
    if sys.platform in ("darwin", "win32"):
        pytest.skip("there is always a screen")
    ended = in_a_process(OPENED, DISPLAY=":987")
    assert ended.returncode == 1 and ended.stderr.startswith("there is no screen")
    assert len(ended.stderr.splitlines()) == 1


def test_a_window_that_is_closed_ends_it_and_is_not_opened_again():
    if not (xvfb := shutil.which("Xvfb")):
        pytest.skip("there is no Xvfb to open a window in")
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
print(window.idle(), window.show(frame, 0, card=False), window.idle())
cv2.destroyWindow(window.NAME)  # as its cross does
print(window.idle(), window.show(frame, 1, card=False), window._visible())
window.close()
""",
            DISPLAY=f":{screen.stdout.readline().strip()}",
        )
    finally:
        screen.terminate()
        screen.wait(10)
    assert ended.stdout.splitlines() == ["True True True", "False False False"] and not ended.stderr


def test_a_port_that_is_taken_is_one_sentence():
    page = Page("127.0.0.1", 0, None)
    try:
        with pytest.raises(VeilError, match="choose another port"):
            open_outlet(f"http://127.0.0.1:{page.port}", INFO, share=False, token=None, overwrite=False)
    finally:
        page.close()


def test_a_file_that_exists_is_kept(tmp_path):
    path = tmp_path / "out.mp4"
    path.write_bytes(b"mine")
    with pytest.raises(VeilError, match="exists already"):
        play(Script(range(5)), [str(path)], Marker())
    assert path.read_bytes() == b"mine" and len(list(tmp_path.iterdir())) == 1


def test_a_file_begins_with_a_frame_and_keeps_the_times(tmp_path):
    file = File(
        tmp_path / "out.mkv",
        VideoInfo(WIDTH, HEIGHT, Fraction(30), time_base=Fraction(1, 90_000)),
        overwrite=False,
    )
    file.show(card(WIDTH, HEIGHT, "starting"), 5, card=True)
    for tick in (9000, 12000, 90_000):
        file.show(raw(1), tick, card=False)
    file.close()
    with av.open(str(tmp_path / "out.mkv")) as container:
        times = [frame.time for frame in container.decode(video=0)]
    assert times == pytest.approx([0, 1 / 30, 0.9], abs=2e-3)


def test_a_stream_over_http_that_vanishes_is_read_again():
    """A real server and a real client: MJPEG in, the server goes away and comes back at the same port."""
    served = Page("127.0.0.1", 0, None)
    port, over = served.port, threading.Event()
    pages = [served]

    def serve() -> None:
        number = 0
        while not over.wait(0.03):
            number += 1
            frame = raw(number % 200)
            frame[..., 1] += 50
            pages[-1].show(frame, 0, card=False)

    kept, stop = Kept(), threading.Event()
    feeding = threading.Thread(target=serve, daemon=True)
    feeding.start()
    results = []
    running = threading.Thread(
        target=lambda: results.append(live(f"http://127.0.0.1:{port}/stream", [kept], Marker(), stop=stop))
    )
    running.start()

    def until(true: Callable[[], bool]) -> bool:
        end = time.monotonic() + 12
        while not true() and time.monotonic() < end:
            time.sleep(0.02)
        return true()

    try:
        assert until(lambda: len(kept.frames) - len(kept.cards) > 5)
        pages[-1].close()
        assert until(lambda: "no signal" in kept.words_shown())
        before = len(kept.frames)
        pages.append(Page("127.0.0.1", port, None))
        assert until(lambda: any(i not in kept.cards for i in range(before + 1, len(kept.frames))))
    finally:
        stop.set()
        over.set()
        running.join(15)
        pages[-1].close()
    assert results and results[0].reconnections >= 1
    kept.numbers()  # all of them are the method's


RECORDER = """
import json, socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
stream = server.accept()[0].makefile("rwb")
packets, asked = 0, []
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
    asked.append((first + stream.readline()).decode().split()[0])
    head = dict(line.decode().lower().split(": ", 1) for line in iter(lambda: stream.readline().strip(), b""))
    stream.read(int(head.get("content-length", 0)))
    answer = f"RTSP/1.0 200 OK\\r\\nCSeq: {head['cseq']}\\r\\nSession: 1\\r\\n"
    if "transport" in head:
        answer += f"Transport: {head['transport']}\\r\\n"
    stream.write(f"{answer}\\r\\n".encode())
    stream.flush()
print(json.dumps([asked, packets]))
"""


def test_an_rtsp_server_is_sent_the_picture():
    """As much of a server as one that publishes needs, in a process of its own: PyAV holds all threads while it connects."""
    server = subprocess.Popen([sys.executable, "-c", RECORDER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        place = f"rtsp://127.0.0.1:{int(server.stdout.readline())}/x"
        result = play(Script(range(40), gap=0.01), [place], Marker())
        told, _ = server.communicate(timeout=10)
    finally:
        server.kill()
    asked_for, packets = json.loads(told)
    assert {"ANNOUNCE", "RECORD"} <= set(asked_for) and packets >= result.shown > 20


def test_the_command_line_says_what_is_missing(tmp_path, capsys):
    from veil.cli import main

    for arguments, sentence in (
        (["--to", "window"], "give --camera NUMBER or --source URL"),
        (["--source", "x", "--camera", "0", "--to", "window"], "give --camera NUMBER or --source URL"),
        (["--source", str(tmp_path / "no.mp4"), "--to", "out.mp4", "--method", "blur"], "does not exist"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["live", *arguments])
        assert stopped.value.code == 2
        assert sentence in capsys.readouterr().err
