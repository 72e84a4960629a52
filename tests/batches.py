"""What tests of many videos share: folders of videos, a thread that kills workers, and the check of an output folder."""

import hashlib
import json
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import av

from clips import pictures, video
from veil.apps.worker import WORK_FOLDER, BatchOptions

CHEAP = BatchOptions(method="pixelate:block=8", region="frame")
CHEAP_FLAGS = ("--method", "pixelate:block=8", "--region", "frame")


def archive(root: Path, count: int, broken: tuple[int, ...], long: tuple[int, ...] = ()) -> dict[str, int]:
    """Make videos in two folders, and return how many frames each good one has, by its path."""
    frames = {}
    for i in range(count):
        place = f"day-{i % 2}/{i:02}.mp4"
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        if i in broken:
            (root / place).write_bytes([b"", b"no video" * 50][i % 2])
            continue
        frames[place] = 800 if i in long else 4 + i % 5  # so long that a worker can be killed in the middle
        video(root / place, pictures(frames[place]))
    return frames


class Killer(threading.Thread):
    """Kills workers in the middle of a video: the first few, or those of one target as long as there are any."""

    def __init__(self, out: Path, most: int, target: str | None = None) -> None:
        super().__init__(daemon=True)
        self.stage, self.most = out / WORK_FOLDER, most
        self.key = hashlib.sha256(target.encode()).hexdigest()[:16] if target else ""
        self.killed: list[int] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.002) and len(self.killed) < self.most:
            for folder in self.stage.glob(f"{self.key}*"):
                pid = int(folder.name.split("-")[-2])
                if pid in self.killed or len(self.killed) >= self.most or not any(folder.glob("*")):
                    continue
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)  # it cannot go on to another video meanwhile
                    if any(folder.glob("*")):
                        os.kill(pid, signal.SIGKILL)
                        self.killed.append(pid)
                    else:
                        os.kill(pid, signal.SIGCONT)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


def lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]


def check(out: Path, frames: dict[str, int], sources: Path, bad: set[str]) -> None:
    """Every good video is there once and whole, as in the manifest; every bad one is named; nothing else is there."""
    present = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert present == {*frames, "manifest.jsonl"}
    assert not (out / WORK_FOLDER).exists()
    recorded = lines(out)
    done = [line for line in recorded if line["state"] == "done"]
    assert sorted(line["target"] for line in done) == sorted(frames)
    for line in done:
        target, source = out / line["target"], sources / line["target"]
        with av.open(str(target)) as container:
            assert len([*container.decode(video=0)]) == frames[line["target"]] == line["frames"]
        for side, path in (("output", target), ("input", source)):
            assert line[side]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
            assert line[side]["bytes"] == path.stat().st_size
        assert line["options"]["method"] == "pixelate:block=8"
        assert line["seconds"] > 0
    failed = [line for line in recorded if line["state"] == "failed"]
    assert {line["target"] for line in failed} == bad
    assert all(line["source"] in line["why"] for line in failed)
