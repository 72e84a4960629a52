"""Work on a real Ray cluster of two workers, some of which are killed: what is good comes out once, what is bad is named."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from batches import CHEAP, CHEAP_FLAGS, Killer, archive, check, lines
from clips import pictures, video
from conftest import veil
from errors import refuses
from squares import Squares, Unmade
from tiny import Fatal, Tiny
from veil.apps.batch import anonymize_videos
from veil.apps.cluster import GivenUp, connect, run_on_cluster
from veil.core import VeilError


def descendants() -> set[int]:
    """The processes that this one has started, and those that they have."""
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = place.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended meanwhile
            continue
        if state != "Z":
            parents[int(place.parent.name)] = int(parent)
    found = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster that this process has joined; all its processes end with the tests, however those end."""
    pytest.importorskip("ray", reason="Ray is not installed: .[ray]")
    before, folder = descendants(), tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets have short names
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # workers find `squares` and `tiny`
        try:
            try:
                ray, ours = connect("local", 2)
            except VeilError as error:
                pytest.skip(f"Ray cannot start here: {error}")
            assert ours
            started = descendants() - before
            assert started
            try:
                yield ray.get_runtime_context().gcs_address
            finally:
                started |= descendants() - before
                ray.shutdown()
                limit = time.monotonic() + 60
                while (left := started & descendants()) and time.monotonic() < limit:
                    time.sleep(0.05)
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
            assert not left, f"processes of Ray outlived it: {left}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_who_kills_its_workers_is_lost_alone(address, tmp_path):
    answers = list(run_on_cluster(partial(Squares, tmp_path), range(40), address, 2))
    assert sorted(number for number, _ in answers) == [*range(40)]
    found = dict(answers)
    assert found.pop(3) == GivenUp("3 workers died of it")
    assert found.pop(4) == GivenUp("this is a defect of Veil (four is too many)")
    assert found == {number: number * number for number in range(40) if number not in (3, 4)}
    tried = {path.name: path.stat().st_size for path in tmp_path.glob("tried-*")}
    died = tried.pop("tried-3")
    assert died >= 3
    # What was in hand when a worker died is done again: what was begun behind it, or answered too late to be heard.
    assert sum(count - 1 for count in tried.values()) <= 2 * died
    assert 2 <= len([*tmp_path.glob("made-*")]) <= 2 + died + 1  # once each, and one for each that died
    with refuses("unmade"):
        list(run_on_cluster(Unmade, range(3), address, 2))
    with refuses("gpus-per-worker"):
        list(run_on_cluster(partial(Squares, tmp_path), range(3), address, gpus=0.5))


@pytest.mark.slow
def test_a_batch_survives_killed_workers_and_bad_files(address, tmp_path):
    broken = (3, 8, 17, 22, 31)
    frames = archive(tmp_path / "in", 40, broken, long=(0, 1, 2, 5))
    out = tmp_path / "out"
    asked = ("batch", "in/**/*.mp4", "-o", "out", *CHEAP_FLAGS, "--workers", "2", "--ray", address)
    with Killer(out, 2) as killer:
        result = veil(*asked, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert len(killer.killed) == 2
    check(out, frames, tmp_path / "in", {f"day-{i % 2}/{i:02}.mp4" for i in broken})
    assert any(line.get("tries", 1) > 1 for line in lines(out) if line["state"] == "done")
    for i in broken:
        assert f"day-{i % 2}/{i:02}.mp4" in result.stderr
    assert "35 videos done" in result.stdout and "Traceback" not in result.stderr
    again = anonymize_videos([f"{tmp_path}/in/**/*.mp4"], out, CHEAP, ray=address)
    assert (again.done, again.kept, len(again.failed)) == (0, 35, 5)


@pytest.mark.slow
def test_features_are_those_that_one_process_makes(address, tmp_path, monkeypatch):
    pytest.importorskip("lance", reason="the extra 'features' is not installed")
    from veil.apps.features import extract_videos
    from veil.features.store import Store

    (tmp_path / "in").mkdir()
    for i in range(6):
        video(tmp_path / f"in/v{i}.mp4", pictures(6 + 3 * i))
    (tmp_path / "in/broken.mp4").write_bytes(b"no video" * 50)
    monkeypatch.chdir(tmp_path)  # workers must find relative names, too
    here = extract_videos(["in"], "here", encoder=Tiny(), dtype="float32")
    there = extract_videos(["in"], "there", encoder=Fatal(tmp_path / "killed"), dtype="float32", ray=address)
    assert (tmp_path / "killed").exists()
    assert (here.written, there.written) == (6, 6)
    for result in (here, there):
        ((name, why),) = result.failed
        assert name == "broken.mp4" and "broken.mp4" in why
    one, two = (Store.open(folder).bank() for folder in ("here", "there"))
    assert one.fingerprint == two.fingerprint and one.actions == two.actions
    names = [sample.id for sample in one.samples]
    assert sorted(names) == sorted(sample.id for sample in two.samples) == [f"v{i}.mp4" for i in range(6)]
    places = [[sample.id for sample in two.samples].index(name) for name in names]
    two = two.take(places)
    for part in ("clips", "starts", "stills", "counts", "seconds"):
        assert getattr(one, part).allclose(getattr(two, part), rtol=1e-6, atol=1e-6), part
    assert [s.split for s in one.samples] == [s.split for s in two.samples]
    (tmp_path / "in/broken.mp4").unlink()
    again = extract_videos(["in"], "there", encoder=Tiny(), dtype="float32", ray=address, resume=True)
    assert (again.written, again.stored_before, again.failed) == (0, 6, ())
