"""Features of videos: how clips are cut, what `veil features` leaves when all goes well, and what when not."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clips
from errors import refuses
from tiny import Tiny
from veil.apps.features import extract_videos
from veil.cli import main
from veil.data.frames import read_frames
from veil.data.sample import Dataset, Sample, Segment
from veil.features.adapter import Adapter
from veil.features.anonymize import anonymize_store
from veil.features.bank import FailedVideo, joined
from veil.features.extract import STILLS, encode_samples, extract
from veil.features.inputs import read_videos
from veil.features.search import search_store

needs_lance = pytest.mark.skipif(
    not any((Path(place) / "lance").is_dir() for place in sys.path),
    reason="the extra 'features' is not installed",
)


def made(count: int, *, start: int = 0) -> list[np.ndarray]:
    """Grey frames, each brighter than the one before."""
    return [np.full((48, 64, 3), 10 + 4 * (start + i), np.uint8) for i in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six videos, one of them shorter than a clip."""
    place = tmp_path_factory.mktemp("videos")
    (place / "day 2").mkdir()
    for number in range(5):
        name = f"day 2/v{number}.mp4" if number % 2 else f"v{number}.mp4"
        clips.video(place / name, made(8 + number, start=3 * number), rate=10)
    clips.video(place / "short.mp4", made(2), rate=10)
    return place


NAMES = ["short.mp4", "v0.mp4", "v2.mp4", "v4.mp4", "day 2/v1.mp4", "day 2/v3.mp4"]


def of_frames(*lengths: int) -> Dataset:
    none = np.zeros((0, 48, 64, 3), np.uint8)
    frames = {f"v{place}": np.array(made(length)) if length else none for place, length in enumerate(lengths)}
    samples = [Sample(name, "train") for name in frames]
    return Dataset("made", samples, lambda sample: frames[sample.id])


# How clips are cut


@pytest.mark.parametrize("batch", [1, 3, 32])
@pytest.mark.parametrize(("stride", "starts"), [(None, [0, 4]), (2, [0, 2, 4, 6]), (6, [0, 6]), (11, [0])])
def test_clips_begin_at_every_stride_as_long_as_a_whole_one_fits(stride, starts, batch):
    dataset, encoder = of_frames(11, 10, 5), Tiny()
    bank = extract(dataset, encoder, stride=stride, stills=3, batch=batch, fps=5)
    for place, length in enumerate((11, 10, 5)):
        frames = dataset.frames(dataset.samples[place])
        right = [start for start in starts if start + 4 <= length]
        assert bank.counts[place] == len(right)
        assert bank.starts[place, : len(right)].tolist() == pytest.approx([s / 5 for s in right])
        for index, start in enumerate(right):
            level = frames[start, 0, 0, 0] / 255, frames[start + 3, 0, 0, 0] / 255
            vector = bank.clips[place, index].view(3, 2, 4)
            assert torch.allclose(
                vector, torch.tensor(level).view(1, 2, 1).expand(3, 2, 4).float(), atol=1e-5
            )
        picked = np.linspace(0, length - 1, 3).round().astype(int)
        assert (bank.stills[place].mean(1) * 255).tolist() == pytest.approx(
            frames[picked, 0, 0, 0].tolist(), abs=0.1
        )
    assert bank.seconds.tolist() == pytest.approx([2.2, 2.0, 1.0])
    assert bank.length == pytest.approx(0.8)


def test_a_short_video_repeats_its_last_frame_and_an_empty_one_fails_alone():
    dataset, encoder = of_frames(2, 0, 9), Tiny()
    short, empty, good = encode_samples(dataset, dataset.samples, encoder, fps=5, batch=2)
    assert isinstance(empty, FailedVideo)
    assert empty.error.code == "video-empty"
    assert not isinstance(short, FailedVideo)
    assert not isinstance(good, FailedVideo)
    ends = short.clips.view(3, 2, 4)[0, :, 0] * 255
    assert ends.tolist() == pytest.approx([10, 14], abs=0.1)
    assert (short.seconds, short.length) == (pytest.approx(0.4), pytest.approx(0.8))
    assert len(good.clips) == 2
    with refuses("video-empty"):
        extract(dataset, encoder)


def test_long_videos_keep_few_frames_for_their_static_clips(monkeypatch):
    monkeypatch.setattr("veil.features.extract._MAX_FRAMES", 16)
    dataset = of_frames(60)
    stills = extract(dataset, Tiny(), stills=1).stills
    assert stills.mean() * 255 == pytest.approx(10, abs=0.1)
    stills = extract(replace(dataset), Tiny(), stills=4).stills.mean(2)[0] * 255
    right = dataset.frames(dataset.samples[0])[[0, 20, 39, 59], 0, 0, 0]
    assert np.abs(stills.numpy() - right).max() <= 4 * 2  # each is at most two frames off


def test_features_that_are_no_numbers_name_their_video():
    dataset = of_frames(8, 8)
    with refuses("features-not-finite") as refused:
        extract(dataset, Tiny(spoil=10 + 4 * 1.5))
    assert "v0" in str(refused.value)


def test_times_are_those_of_the_file(tmp_path):
    times = [0, 1, 2, 3, 10, 11, 12, 13, 14]
    path = clips.video(tmp_path / "odd.mkv", made(9), rate=10, times=times)
    dataset = Dataset("videos", [Sample("odd", "train", path)], read_frames)
    bank = extract(dataset, Tiny(), stills=0)
    assert bank.starts.tolist() == [pytest.approx([0.0, 1.0], abs=0.01)]
    assert bank.seconds.tolist() == pytest.approx([1.5], abs=0.02)
    part = replace(dataset, samples=[Sample("odd#1", "train", path, span=(4, 9))])
    assert extract(part, Tiny(), stills=0).starts.tolist() == [[0.0]]


def test_the_synthetic_world_and_what_is_known_of_it():
    from veil.data import read

    dataset = read("synthetic", count=12, size=16)
    encoder = Tiny(length=8)
    bank = extract(dataset, encoder, stills=2)
    assert bank.clips.shape == (12, 2, 24)
    assert bank.starts[0].tolist() == pytest.approx([0, 0.8])
    assert bank.truth("action").tolist() == [sample.action for sample in dataset.samples]
    assert bank.truth("attributes").shape == (12, len(dataset.attributes))
    gender = bank.truth("gender")
    assert [sample.groups["gender"] == "male" for sample in dataset.samples] == gender.bool().tolist()
    with refuses("label-unknown"):
        bank.truth("shoes")
    half = bank.take([0, 2, 4])
    assert half.samples == tuple(dataset.samples[i] for i in (0, 2, 4))
    assert torch.equal(half.clips, bank.take(torch.tensor([True, False] * 3 + [False] * 6)).clips)
    parts = [bank.split(name) for name in ("train", "val", "test")]
    assert sum(map(len, parts)) == 12
    together = joined(parts)
    order = [dataset.samples.index(sample) for sample in together.samples]
    assert torch.equal(together.clips, bank.clips[order])
    changed = bank.changed(bank.clips + 1, bank.stills + 1, "new")
    assert changed.fingerprint == "new"
    assert torch.equal(changed.stills, bank.stills + 1)


def test_what_lies_after_the_last_clip_stays_zero():
    bank = extract(of_frames(4, 12), Tiny(), stills=0)
    changed = bank.changed(bank.clips + 1, bank.stills)
    assert not changed.clips[~bank.mask].any()
    assert torch.equal(changed.clips[bank.mask], bank.clips[bank.mask] + 1)


# Extraction to a store


@needs_lance
def test_extraction_appends_resumes_and_keeps_what_can_be_read(folder, tmp_path):
    from veil.features.store import Store

    place = tmp_path / "store"
    calls: list[tuple[int, int]] = []
    result = extract_videos([str(folder)], place, encoder=Tiny(), progress=lambda *now: calls.append(now))
    assert (result.written, result.stored_before, result.failed) == (6, 0, ())
    assert calls == [(i, 6) for i in range(1, 7)]
    store = Store.open(place)
    assert sorted(store.ids) == sorted(NAMES)
    bank = store.bank()
    counts = {sample.id: int(count) for sample, count in zip(bank.samples, bank.counts, strict=True)}
    assert counts == {
        "short.mp4": 1,
        "v0.mp4": 2,
        "v2.mp4": 2,
        "v4.mp4": 3,
        "day 2/v1.mp4": 2,
        "day 2/v3.mp4": 2,
    }
    assert bank.stills.shape == (6, STILLS, 24)
    assert bank.starts.max() == pytest.approx(0.8)
    with refuses("video-stored"):
        extract_videos([str(folder)], place, encoder=Tiny())
    more = tmp_path / "more"
    more.mkdir()
    clips.video(more / "new.mp4", made(9), rate=10)
    (more / "empty.mp4").write_bytes(b"")
    (more / "junk.mp4").write_bytes(b"junk" * 100)
    clips.video(more / "odd.mp4", made(6, start=20), rate=10)
    blue = float(extract_blue(more / "odd.mp4"))
    inputs = [str(folder), f"{more}/*.mp4", "absent.mp4"]
    result = extract_videos(inputs, place, encoder=Tiny(spoil=blue), resume=True)
    assert (result.written, result.stored_before) == (1, 6)
    assert dict(result.failed).keys() == {"empty.mp4", "junk.mp4", "odd.mp4", "absent.mp4"}
    assert "not finite" in dict(result.failed)["odd.mp4"]
    assert any("empty.mp4: " in sentence for sentence in result.sentences())
    assert len(store.refresh()) == 7
    for other in (Tiny("other"), Tiny(length=5)):
        with refuses("features-do-not-mix"):
            extract_videos([str(more)], place, encoder=other)


def extract_blue(path: Path) -> float:
    """The mean blue of the first clip of a video, as it is decoded."""
    return read_frames(Sample("x", "train", path))[:4, ..., 2].mean()


@needs_lance
@pytest.mark.slow
def test_several_workers_make_what_one_makes(folder, tmp_path):
    from veil.features.store import Store

    broken = tmp_path / "junk.mp4"
    broken.write_bytes(b"junk" * 100)
    results = [
        extract_videos([str(folder), str(broken)], tmp_path / str(workers), encoder=Tiny(), workers=workers)
        for workers in (1, 2)
    ]
    assert [(r.written, [name for name, _ in r.failed]) for r in results] == [(6, ["junk.mp4"])] * 2
    one, two = (Store.open(tmp_path / str(workers)).bank() for workers in (1, 2))
    order = [sample.id for sample in two.samples]
    again = two.take([order.index(sample.id) for sample in one.samples])
    assert again.samples == one.samples
    assert torch.equal(again.clips, one.clips)
    assert torch.equal(again.stills, one.stills)


KILLED = """
import sys
from tiny import Tiny
from veil.apps.features import extract_videos
from veil.features import writer
writer._MAX_SECONDS = 0.0  # every video is written at once
extract_videos([sys.argv[1]], sys.argv[2], encoder=Tiny(slow=0.15), resume=True)
"""
WRITER = """
import sys, torch
from veil.features.bank import LabelNames, VideoFeatures
from veil.data.sample import Sample
from veil.features.store import Store
store = Store.open(sys.argv[2])
for number in range(12):
    video = [VideoFeatures(Sample(f"other-{number}-{i}", "test"), torch.ones(1, 24), torch.zeros(1), 1, 1, torch.zeros(10, 24)) for i in "ab"]
    store.append(video, LabelNames())
"""


@pytest.mark.slow
@needs_lance
def test_a_kill_loses_the_open_batch_only_and_writers_are_serialized(folder, tmp_path):
    from veil.features.store import Store
    from veil.features.store_table import StoreInfo

    encoder, place = Tiny(), tmp_path / "store"
    Store.create(
        place, StoreInfo(encoder.name, encoder.fingerprint, encoder.dim, stills=10, stride=encoder.length)
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    killed = subprocess.Popen([sys.executable, "-c", KILLED, str(folder), str(place)], env=env)
    other = subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(place)], env=env)
    store = Store.open(place)
    deadline = time.monotonic() + 60
    while sum(name in NAMES for name in store.refresh().ids) < 2:
        assert time.monotonic() < deadline, "nothing was written within a minute"
        assert killed.poll() is None
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert other.wait() == 0
    kept = [name for name in store.refresh().ids if name in NAMES]
    assert 2 <= len(kept) < 6
    assert len(store.bank().samples) == len(store)  # all of it can be read
    result = extract_videos([str(folder)], place, encoder=encoder, resume=True)
    assert (result.written, result.stored_before) == (6 - len(kept), len(kept))
    others = [f"other-{number}-{i}" for number in range(12) for i in "ab"]
    assert sorted(store.refresh().ids) == sorted([*NAMES, *others])
    extract_videos([str(folder)], tmp_path / "whole", encoder=encoder)
    bank = store.bank()
    mine = {sample.id: vectors for sample, vectors in zip(bank.samples, bank.clips, strict=True)}
    whole = Store.open(tmp_path / "whole").bank()
    for sample, vectors in zip(whole.samples, whole.clips, strict=True):
        assert torch.equal(mine[sample.id], vectors)


# Labels


def test_labels_from_a_table(folder, tmp_path):
    table = tmp_path / "labels.csv"
    rows = [
        "id,split,action,person,attribute:hat,attribute:red,camera,segments",
        "v0.mp4,test,run,anna,1,,north,",
        "v2.mp4,train,jump,bob,0,1,,0.1-0.4 jump; 0.5-0.9 run",
        "v4,,,,,,south,",
        "day 2/v1.mp4,val,run,anna,0,0,,",
        "day 2/v3.mp4,val,run,carl,0,0,,",
        "short.mp4,train,wave,,1,1,,",
    ]
    table.write_text("\n".join(rows))
    dataset = read_videos([str(folder)], table)
    assert (dataset.actions, dataset.attributes) == (("jump", "run", "wave"), ("hat", "red"))
    assert dataset.identities == ("anna", "bob", "carl")
    samples = {sample.id: sample for sample in dataset.samples}
    assert samples["v2.mp4"].segments == (Segment(0.1, 0.4, 0), Segment(0.5, 0.9, 1))
    assert samples["v0.mp4"].groups == {"camera": "north"}
    assert (samples["v0.mp4"].split, samples["v0.mp4"].action, samples["v0.mp4"].identity) == ("test", 1, 0)
    assert samples["v0.mp4"].attributes[0] == 1.0
    assert np.isnan(samples["v0.mp4"].attributes[1])
    assert (samples["v4.mp4"].action, samples["v4.mp4"].identity, samples["v4.mp4"].attributes) == (
        None,
        None,
        (),
    )
    for change, code, value in (
        (rows[:-1], "labels-missing", "short.mp4"),
        ([*rows, "gone.mp4,,,,,,,"], "labels-unknown-video", "gone.mp4"),
        ([*rows, rows[1]], "labels-duplicate", "v0.mp4"),
        ([rows[0].replace("id", "name"), *rows[1:]], "labels-column", "id"),
        ([row.replace("val", "valid") for row in rows], "labels-split", "'valid'"),
        ([row.replace("0.1-0.4", "0.4-0.1") for row in rows], "labels-segments", "v2.mp4"),
        ([row.replace("anna,1", "anna,yes") for row in rows], "labels-value", "attribute:hat"),
    ):
        table.write_text("\n".join(change))
        with refuses(code) as refused:
            read_videos([str(folder)], table)
        assert value in str(refused.value)
    table.write_text("\n".join([*rows, "gone.mp4,,,,,,,"]))
    assert len(read_videos([str(folder)], table, frozenset(["gone.mp4"])).samples) == 6  # it is in the store


def test_inputs_without_videos_are_refused(tmp_path, folder):
    (tmp_path / "bare").mkdir()
    (tmp_path / "twin").mkdir()
    clips.video(tmp_path / "twin" / "v0.mp4", made(4))
    for inputs, code in (
        ([], "input-missing"),
        ([str(tmp_path / "bare")], "no-inputs"),
        ([str(tmp_path / "*.mp4")], "no-inputs"),
        ([str(folder), str(tmp_path / "twin")], "video-duplicate"),
    ):
        with refuses(code):
            read_videos(inputs)


# Anonymization and search


class Shift(Adapter):
    """An adapter that adds a number; a video that is too bright comes out as NaN."""

    def __init__(self, by: float = 1.0, limit: float = 9.0, fingerprint: str = Tiny().fingerprint) -> None:
        super().__init__(24)
        self.by = nn.Parameter(torch.tensor(float(by)))
        self.limit, self.most = limit, 0
        self.made_for(fingerprint)

    def made_for(self, fingerprint: str) -> None:
        text = json.dumps({"encoder": "tiny", "fingerprint": fingerprint})
        self.metadata = torch.tensor(list(text.encode()), dtype=torch.uint8)

    def params(self) -> dict[str, float]:
        return {"by": float(self.by), "limit": self.limit}

    def transform(self, x: Tensor, mask: Tensor | None) -> Tensor:
        self.most = max(self.most, len(x))
        return torch.where(x > self.limit, torch.nan, x + self.by)


@pytest.fixture(scope="module")
def stored(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("stored") / "store"
    table = place.with_name("labels.csv")
    lines = [f"{name},{'run' if i % 2 else 'jump'},p{i % 3},x{i}" for i, name in enumerate(NAMES)]
    table.write_text("\n".join(["id,action,identity,camera", *lines]))
    extract_videos([str(folder)], place, encoder=Tiny(), labels=table, stills=2)
    return place


@needs_lance
def test_an_anonymized_store_holds_nothing_raw(stored, tmp_path):
    from veil.features.store import Store

    adapter = Shift()
    result = anonymize_store(stored, adapter, tmp_path / "veiled", batch=2)
    assert (result.videos, result.clips) == (6, 12)
    assert 0 < adapter.most <= 4  # two videos, or their static clips, at a time
    raw, veiled = Store.open(stored), Store.open(tmp_path / "veiled")
    before, after = raw.bank(), veiled.bank()
    assert torch.allclose(after.clips[after.mask], before.clips[before.mask] + 1, atol=2e-3)
    assert torch.allclose(after.stills, before.stills + 1, atol=2e-3)
    assert torch.allclose(veiled.mean("v0.mp4"), raw.mean("v0.mp4") + 1, atol=2e-3)
    assert (after.actions, after.identities) == (before.actions, ())
    assert all(s.identity is None and not s.groups and not s.attributes for s in after.samples)
    assert veiled.info.anonymized
    assert after.fingerprint != before.fingerprint
    with refuses("features-do-not-mix"):
        joined([before, after])
    with refuses("features-do-not-mix"):
        extract_videos([__file__], veiled.folder, encoder=Tiny(), stills=2)
    kept = anonymize_store(stored, Shift(2), tmp_path / "kept", keep_private=True)
    assert kept.private
    bank = Store.open(tmp_path / "kept").bank()
    assert bank.samples == before.samples
    assert Store.open(tmp_path / "kept").info.anonymized != veiled.info.anonymized


@needs_lance
def test_a_store_that_cannot_be_anonymized_leaves_nothing(stored, tmp_path):
    out = tmp_path / "veiled"
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("mine")
    for adapter, place, code in (
        (Shift(limit=0.2), out, "features-not-finite"),
        (Shift(0.0), out, "nothing-anonymized"),
        (Shift(fingerprint="f" * 64), out, "features-of-another-encoder"),
        (Shift(), tmp_path / "there", "store-exists"),
    ):
        with refuses(code):
            anonymize_store(stored, adapter, place)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    anonymize_store(stored, Shift(), out)
    with refuses("store-anonymized"):
        anonymize_store(out, Shift(), tmp_path / "twice")


@needs_lance
def test_search_by_a_video_and_by_an_id(stored, folder, tmp_path):
    file, encoder = str(folder / "v2.mp4"), Tiny()
    by_id = search_store(stored, "v2.mp4", top=3)
    by_file = search_store(stored, file, top=4, encoder=encoder)
    assert by_file[0].id == "v2.mp4"
    assert by_file[0].score == pytest.approx(1, abs=1e-3)
    assert [hit.id for hit in by_file[1:]] == [hit.id for hit in by_id]
    assert all(a.score >= b.score for a, b in pairwise(by_id))
    assert {hit.identity for hit in search_store(stored, file, encoder=encoder, person="p0")} == {"p0"}
    assert {hit.action for hit in search_store(stored, file, encoder=encoder, action="run")} == {"run"}
    (one,) = search_store(stored, "v2.mp4", groups={"camera": "x1"})
    assert one.id == NAMES[1]
    veiled = tmp_path / "veiled"
    anonymize_store(stored, Shift(), veiled)
    assert search_store(veiled, file, encoder=encoder, with_=Shift())[0].score == pytest.approx(1, abs=1e-3)
    for wrong, code in (
        (lambda: search_store(veiled, file, encoder=encoder), "search-with"),
        (lambda: search_store(veiled, file, encoder=encoder, with_=Shift(2)), "search-with"),
        (lambda: search_store(stored, file, encoder=encoder, with_=Shift()), "search-with"),
        (lambda: search_store(stored, file, encoder=Tiny("other")), "features-of-another-encoder"),
        (lambda: search_store(stored, "gone.mp4"), "video-unknown"),
        (lambda: search_store(stored, "v2.mp4", top=0), "top"),
        (lambda: search_store(stored, "v2.mp4", person="zoe"), "label-unknown"),
    ):
        with refuses(code):
            wrong()


# The command line


def veil(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["features", *map(str, words)])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


@needs_lance
def test_the_command_line(folder, tmp_path, capsys, monkeypatch):
    from veil.features import encoders

    monkeypatch.setattr(encoders, "make", lambda name, weights=None, device="cpu": Tiny(str(name)))
    store = tmp_path / "store"
    code, printed, _ = veil(capsys, "extract", folder, "-o", store, "--encoder", "tiny")
    assert code == 0
    assert printed.startswith(f"{store}: 6 videos added")
    (tmp_path / "bad.mp4").write_bytes(b"")
    code, printed, wrong = veil(
        capsys, "extract", folder, tmp_path / "bad.mp4", "-o", store, "--encoder", "tiny", "--resume"
    )
    assert code == 2
    assert "0 videos added, 6 were there already" in printed
    assert "1 video failed" in wrong
    assert "bad.mp4: " in wrong
    code, printed, _ = veil(capsys, "info", store)
    assert code == 0
    assert "6 of" in printed
    code, printed, _ = veil(capsys, "info", store, "--json")
    assert json.loads(printed)["encoder"] == "tiny"
    code, printed, _ = veil(capsys, "search", store, "--like", "v2.mp4", "--top", "2")
    assert code == 0
    assert len(printed.splitlines()) == 3
    code, printed, _ = veil(capsys, "search", store, "--like", folder / "v2.mp4", "--top", "1", "--json")
    assert json.loads(printed)[0]["id"] == "v2.mp4"
    from veil.features import registry

    adapter = Shift()
    monkeypatch.setattr(registry, "load", lambda run: adapter)
    code, printed, _ = veil(capsys, "anonymize", store, "--with", tmp_path, "-o", tmp_path / "veiled")
    assert code == 0
    assert "6 videos, 12 clips anonymized" in printed
    adapter.made_for("f" * 64)
    code, _, wrong = veil(capsys, "anonymize", store, "--with", tmp_path, "-o", tmp_path / "again")
    assert code == 2
    assert str(store) in wrong
    assert not (tmp_path / "again").exists()
