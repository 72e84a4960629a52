"""Many videos: what is good comes out once and whole, whoever is killed; what is bad is named; nothing is done twice."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batches import CHEAP, CHEAP_FLAGS, Killer, archive, check, lines
from clips import pictures, video
from conftest import veil
from errors import refuses
from veil.apps.batch import BatchResult, anonymize_videos, tasks_of
from veil.apps.manifest import Manifest
from veil.apps.pool import run_in_processes
from veil.apps.worker import WORK_FOLDER, BatchOptions, VideoOutcome, VideoWorker


@pytest.mark.slow
def test_a_pool_survives_killed_workers_and_bad_files(tmp_path):
    frames = archive(tmp_path / "in", 12, broken=(3, 6, 8), long=(0, 1, 2))
    out, seen = tmp_path / "out", []
    with Killer(out, 2) as killer:
        result = anonymize_videos(
            [f"{tmp_path}/in/**/*.mp4"],
            out,
            CHEAP,
            workers=2,
            progress=lambda done, total, message=None: seen.append((done, total)),
        )
    assert len(killer.killed) == 2
    bad = {f"day-{i % 2}/{i:02}.mp4" for i in (3, 6, 8)}
    check(out, frames, tmp_path / "in", bad)
    assert (result.done, result.kept) == (9, 0)
    assert {source for source, _ in result.failed} == {str(tmp_path / "in" / name) for name in bad}
    assert any(line.get("tries", 1) > 1 for line in lines(out) if line["state"] == "done")
    assert seen[0][0] == 0 and seen[-1][0] == seen[-1][1] and len(seen) == 13

    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.mp4")}
    changed, touched, spoiled = (out.parent / "in" / f"day-{i % 2}/{i:02}.mp4" for i in (4, 5, 7))
    video(changed, pictures(11))
    os.utime(touched)
    (out / "day-1/07.mp4").write_bytes(b"half of it")
    again = anonymize_videos([f"{tmp_path}/in/**/*.mp4"], out, CHEAP, workers=1)
    assert (again.done, again.kept, len(again.failed)) == (2, 7, 3)
    redone = {path.name for path, at in before.items() if path.stat().st_mtime_ns != at}
    assert redone == {changed.name, spoiled.name}


@pytest.mark.slow
def test_a_video_that_kills_its_workers_is_given_up(tmp_path):
    archive(tmp_path / "in", 3, broken=(), long=(1,))
    out = tmp_path / "out"
    with Killer(out, 9, "day-1/01.mp4") as killer:
        result = anonymize_videos([str(tmp_path / "in")], out, CHEAP, workers=2)
    assert len(killer.killed) == 3
    assert result.done == 2
    ((source, why),) = result.failed
    assert source.endswith("01.mp4") and "3 workers died of it" in why and "killed" in why
    assert not (out / "day-1/01.mp4").exists() and not (out / WORK_FOLDER).exists()


def test_a_worker_counts_those_that_died_before(tmp_path):
    archive(tmp_path / "in", 1, broken=())
    (task,) = tasks_of([str(tmp_path / "in")], str(tmp_path / "out"))
    key = hashlib.sha256(task.target.encode()).hexdigest()[:16]
    worker = VideoWorker(CHEAP)
    for died in range(4):
        outcome = worker(task)
        assert (outcome.state, outcome.tries) == (("done", died + 1) if died < 3 else ("failed", 3))
        (tmp_path / "out" / WORK_FOLDER / f"{key}-elsewhere-{died}-0").mkdir()  # left by one that was killed


@pytest.mark.slow
def test_a_killed_batch_goes_on(tmp_path):
    frames = archive(tmp_path / "in", 8, broken=(5,), long=(0, 1, 2))
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "veil",
        "batch",
        "in/**/*.mp4",
        "-o",
        "out",
        "--workers",
        "2",
        *CHEAP_FLAGS,
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 60
    while not [*out.glob(f"{WORK_FOLDER}/*/*")]:
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.005)
    workers = {int(folder.name.split("-")[-2]) for folder in out.glob(f"{WORK_FOLDER}/*")}
    process.kill()
    process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < limit:
        time.sleep(0.05)
    with (out / "manifest.jsonl").open("a") as file:
        file.write('{"state": "done", "target": "day-0/00.mp4", "sou')  # torn
    result = veil("batch", "in/**/*.mp4", "-o", "out", *CHEAP_FLAGS, cwd=tmp_path)
    assert result.returncode == 2
    assert "1 of 8 videos failed" in result.stderr and "day-1/05.mp4" in result.stderr
    check(out, frames, tmp_path / "in", {"day-1/05.mp4"})
    (tmp_path / "in/day-1/05.mp4").unlink()
    result = veil("batch", "in/**/*.mp4", "-o", "out", *CHEAP_FLAGS, cwd=tmp_path)
    assert result.returncode == 0 and "7 were done before" in result.stdout


def test_the_manifest_ignores_a_torn_line_and_no_other(tmp_path):
    path = tmp_path / "manifest.jsonl"
    with Manifest(path) as manifest:
        manifest.add(
            [VideoOutcome("begun", "a.mp4", "/in/a.mp4"), VideoOutcome("failed", "a.mp4", "/in/a.mp4", "why")]
        )
        with refuses("manifest-in-use"):
            Manifest(path)
    whole = path.read_bytes()
    for torn in (b'{"state": "do', b"\0\0\0\0\n", b'{"state": "done"}\n'):
        path.write_bytes(whole + torn)
        with Manifest(path) as manifest:
            assert manifest.last["a.mp4"].state == "failed"
            manifest.add([VideoOutcome("refused", "a.mp4", "/other/a.mp4", "why")])
            assert manifest.last["a.mp4"].state == "failed"
        assert path.read_bytes().startswith(whole) and path.read_bytes().count(b"\n") == 3
    path.write_bytes(b"nonsense\n" + whole)
    with refuses("manifest-damaged"):
        Manifest(path)


def test_what_is_not_its_own_is_not_replaced(tmp_path):
    archive(tmp_path / "in", 2, broken=())
    out = tmp_path / "out"
    (out / "day-0").mkdir(parents=True)
    (out / "day-0/00.mp4").write_bytes(b"somebody else's")

    def run(folder: str = "in", options: BatchOptions = CHEAP, **more) -> BatchResult:
        return anonymize_videos([str(tmp_path / folder)], out, options, workers=1, **more)

    for done in (1, 0):
        result = run()
        assert (result.done, result.kept) == (done, 1 - done)
        assert [why.split(" exists")[0] for _, why in result.failed] == [str(out / "day-0/00.mp4")]
        assert (out / "day-0/00.mp4").read_bytes() == b"somebody else's"
    assert run(overwrite=True).done == 1
    with refuses("other-options"):
        run(options=BatchOptions(method="blacken", region="frame"))
    archive(tmp_path / "other", 2, broken=())
    video(tmp_path / "other/day-0/00.mp4", pictures(9))
    (tmp_path / "in").rename(tmp_path / "moved")
    assert run("moved").kept == 2  # the same videos, elsewhere
    result = run("other")
    assert "was made of" in result.failed[0][1]


def test_two_inputs_for_one_output_are_refused(tmp_path):
    for name in ("a.avi", "a.webm"):
        (tmp_path / name).write_bytes(b"x")
    with refuses("output-twice"):
        tasks_of([f"{tmp_path}/*"], str(tmp_path / "out"))
    with refuses("output-is-input"):
        tasks_of([f"{tmp_path}/a.mp4"], str(tmp_path))
    twice = tasks_of([f"{tmp_path}/a.avi", f"{tmp_path}/*.avi"], str(tmp_path / "out"))
    assert [task.target for task in twice] == ["a.mp4"]
    with refuses("no-inputs"):
        tasks_of([f"{tmp_path}/*.mkv"], str(tmp_path / "out"))


def test_seeds_are_not_recorded_and_runs_are_recorded_by_their_weights(tmp_path):
    assert BatchOptions(method="noise:seed=3,amount=0.2").recorded()["method"] == "noise:amount=0.2"
    assert BatchOptions(method="noise:seed=3").recorded()["method"] == "noise"
    (tmp_path / "weights.safetensors").write_bytes(b"1")
    for learned in (tmp_path, tmp_path / "weights.safetensors"):
        assert BatchOptions(method=str(learned)).recorded()["weights"] == hashlib.sha256(b"1").hexdigest()
    assert "weights" not in BatchOptions(method="blur").recorded()


def test_templates_reach_the_workers_by_name(tmp_path):
    archive(tmp_path / "in", 1, broken=())
    tasks = tasks_of([str(tmp_path / "in")], str(tmp_path / "out"))
    (outcome,) = run_in_processes(BatchOptions(method="selective:hide=hand,also=none"), tasks, 1)
    assert (outcome.state, outcome.why) == ("done", None)


def test_files_at_urls(tmp_path, monkeypatch):
    """By fsspec; its URLs of local files are read and written as those of any other storage."""
    archive(tmp_path / "in", 3, broken=(1,))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    url = f"local://{tmp_path}"
    with refuses("manifest-missing"):
        anonymize_videos([f"{url}/in/**/*.mp4"], f"{url}/out", CHEAP)
    for kept in (0, 2):
        result = anonymize_videos(
            [f"{url}/in/**/*.mp4"], f"{url}/out", CHEAP, workers=1, manifest=tmp_path / "recorded.jsonl"
        )
        assert (result.done, result.kept) == (2 - kept, kept)
        assert len(result.failed) == 1 and "in/day-1/01.mp4" in result.failed[0][1]
    there = {
        str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()
    }
    assert there == {"day-0/00.mp4", "day-0/02.mp4"}
    copies = [path for path in tmp_path.glob("veil-batch-*/*") if path.suffix != ".lock"]
    assert copies and not any([*folder.iterdir()] for folder in copies)
    with refuses("not-listed"):
        tasks_of(["nowhere://x/*.mp4"], str(tmp_path))


def test_slots_are_given_once_and_emptied(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = (
        "import os, sys; from veil.media.processes import WorkerSlot; slot = WorkerSlot(); (slot.folder / 'raw').touch(); "
        "print(slot.number, flush=True); sys.stdin.read()"
    )
    processes = []
    for number in (0, 1, 0):
        if len(processes) == 2:
            processes[0].kill()
            processes[0].wait()
            assert (tmp_path / f"veil-batch-{os.getuid()}/0/raw").exists()
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"%d\n" % number
    for process in processes[1:]:
        process.kill()
        process.wait()
