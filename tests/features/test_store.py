"""A store keeps every row that was committed, refuses what does not belong, and gives back what was put in."""

import math
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from errors import refuses
from veil.data.sample import Sample, Segment
from veil.features import store as store_module
from veil.features import store_table
from veil.features.bank import LabelNames, VideoFeatures, collected, joined
from veil.features.store import Store
from veil.features.store_table import StoreInfo, features_of

pytest.importorskip("lance", reason="the extra 'features' is not installed")

DIM = 12
NAMES = LabelNames(actions=("run", "jump"), attributes=("hat", "red"), identities=("anna", "bob"))
INFO = StoreInfo("tiny", "0123abcd", DIM, stills=2, stride=16, actions=NAMES.actions)


def video(number: int, clips: int = 3, **labels) -> VideoFeatures:
    rng = torch.Generator().manual_seed(number)
    sample = Sample(f"v{number:03d}", labels.pop("split", "train"), **labels)
    vectors = torch.randn(clips + 2, DIM, generator=rng).half().float()
    return VideoFeatures(
        sample, vectors[:clips], 0.64 * torch.arange(clips), 0.64 * clips, 0.64, vectors[clips:]
    )


def several(*numbers: int) -> list[VideoFeatures]:
    return [video(n, 1 + n % 4, split="test" if n % 3 == 0 else "train", action=n % 2) for n in numbers]


@pytest.fixture
def store(tmp_path):
    made = Store.create(tmp_path / "store", INFO)
    for at in range(0, 30, 10):
        made.append(several(*range(at, at + 10)), NAMES)
    return made


def test_what_was_put_in_comes_out(tmp_path):
    put = video(
        7,
        action=1,
        identity=0,
        attributes=(1.0, math.nan),
        groups={"gender": "female", "shop": "o'hara=1"},
        segments=(Segment(0.5, 1.25, 0), Segment(1.5, 2.0, 1)),
    )
    bare = video(8, 1, split="val")
    Store.create(tmp_path / "store", INFO).append([put, bare], NAMES)
    bank = Store.open(tmp_path / "store").bank()
    assert (bank.encoder, bank.fingerprint, bank.dim, bank.length) == (
        "tiny",
        "0123abcd",
        DIM,
        pytest.approx(0.64),
    )
    assert (bank.actions, bank.attributes, bank.identities) == (("run", "jump"), ("hat",), ("anna",))
    assert replace(bank.samples[0], attributes=()) == replace(put.sample, attributes=(), identity=0)
    assert bank.samples[0].attributes == (1.0,)
    assert bank.samples[1] == bare.sample
    assert torch.equal(bank.clips[0], put.clips)
    assert torch.equal(bank.clips[1, :1], bare.clips)
    assert not bank.clips[1, 1:].any()
    assert bank.mask.tolist() == [[True] * 3, [True, False, False]]
    assert torch.equal(bank.stills, torch.stack([put.stills, bare.stills]))
    assert torch.allclose(bank.starts[0], put.starts)
    assert bank.seconds.tolist() == pytest.approx([1.92, 0.64])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_random_reads_are_what_was_put_in(tmp_path, dtype):
    made = Store.create(tmp_path / "store", replace(INFO, dtype=dtype))
    for at in range(0, 30, 10):
        made.append(several(*range(at, at + 10)), NAMES)
    order = [29, 0, 17, 17, 4, 12]
    assert torch.equal(made.read([-1]).clips, made.read([29]).clips)
    for opened in (made, Store.open(made.folder), pickle.loads(pickle.dumps(made))):
        read = opened.read(order)
        assert read.clips.dtype == getattr(torch, dtype)
        assert read.counts.tolist() == [1 + n % 4 for n in order]
        for row, count, number in zip(read.clips, read.counts.tolist(), order, strict=True):
            assert torch.equal(row[:count].float(), video(number, count).clips)
            assert not row[count:].any()
        assert opened._map is not None
        assert (opened._map[1]._file >= 0).all()  # straight from the files, not through Lance
    assert made.read([]).clips.shape == (0, 0, DIM)
    with pytest.raises(IndexError, match="30"):
        made.read([30])


def test_random_reads_where_pages_end_within_a_video_or_cannot_be_mapped(tmp_path, monkeypatch):
    lance, _ = store_table.import_lance()
    write = lance.write_dataset
    monkeypatch.setattr(lance, "write_dataset", lambda *a, **k: write(*a, **k, max_page_bytes=200))
    made = Store.create(tmp_path / "pages", replace(INFO, dtype="float32"))
    for at in range(0, 40, 20):
        made.append([video(n, 7) for n in range(at, at + 20)], NAMES)
    right = torch.stack([video(n, 7).clips for n in range(40)])
    assert torch.equal(made.read(range(40)).clips, right)
    mapped = made._map[1]  # type: ignore[index]
    crossing = dict(mapped._split_rows)
    monkeypatch.setattr(mapped, "_split_rows", {})  # now Lance reads them
    assert torch.equal(made.read(range(40)).clips, right)
    monkeypatch.setattr(store_module, "_VERSION", "2.1")  # whose vectors stand between marks
    monkeypatch.setattr(lance, "write_dataset", write)
    other = Store.create(tmp_path / "marks", replace(INFO, dtype="float32"))
    other.append([video(n, 7) for n in range(40)], NAMES)
    assert torch.equal(other.read(range(40)).clips, right)
    assert (other._map[1]._file < 0).all()  # type: ignore[index]
    assert crossing


def test_splits_batches_and_their_size(store, monkeypatch):
    assert store.ids == [f"v{n:03d}" for n in range(30)]
    assert store.bank("test").samples == store.bank().split("test").samples
    sizes = [len(bank) for bank in store.batches(4)]
    assert sum(sizes) == 30
    assert max(sizes) == 4
    monkeypatch.setattr(store_table, "_MAX_CLIPS", 8)
    for bank in store.batches():
        assert bank.clips.shape[0] * bank.clips.shape[1] <= 8
    together = joined([*store.batches()])
    assert torch.equal(together.clips, store.bank().clips)
    assert together.samples == store.bank().samples


def test_names_that_come_later_are_numbered_after_the_first(store):
    later = LabelNames(actions=("wave", "jump"), attributes=(), identities=())
    store.append([video(100, action=0), video(101, action=1)], later)
    bank = Store.open(store.folder).bank()
    assert bank.actions == ("run", "jump", "wave")
    assert [bank.samples[at].action for at in (1, -2, -1)] == [1, 2, 1]


def test_a_video_is_there_once(store):
    with refuses("video-stored"):
        store.append(several(50, 3), NAMES)
    with refuses("video-duplicate"):
        store.append(several(50, 50), NAMES)
    assert "v050" not in Store.open(store.folder)
    other = Store.open(store.folder)
    store.append(several(50), NAMES)
    assert other.append(several(50, 51), NAMES, skip=True) == 1  # sees what the first has written
    assert len(other) == len(set(other.ids)) == 32


def test_what_does_not_belong_is_refused_by_the_name_of_the_video(store):
    for spoil, code in (
        (lambda v: v._replace(clips=v.clips * math.nan), "features-not-finite"),
        (lambda v: v._replace(stills=v.stills / 0), "features-not-finite"),
        (lambda v: v._replace(clips=v.clips * 1e6), "store-dtype"),
        (lambda v: v._replace(clips=v.clips[:, :5]), "features-shape"),
        (lambda v: v._replace(clips=v.clips[:0]), "features-shape"),
        (lambda v: v._replace(stills=v.stills[:1]), "features-shape"),
    ):
        with refuses(code) as refused:
            store.append([video(61), spoil(video(62))], NAMES)
        assert "v062" in str(refused.value)
    assert len(Store.open(store.folder)) == 30
    for change in (
        {"encoder": "other"},
        {"fingerprint": "ffff"},
        {"dim": 13},
        {"stills": 3},
        {"stride": 8},
        {"anonymized": "ab"},
    ):
        with refuses("features-do-not-mix"):
            store.info.refuse(replace(INFO, **change), store.folder)


def test_banks_of_other_encoders_do_not_mix(store):
    bank = store.bank()
    for change in ({"fingerprint": "ffff"}, {"encoder": "other"}):
        with refuses("features-do-not-mix"):
            joined([bank, replace(bank, **change)])
    marked = replace(INFO, anonymized="beef")
    assert marked.mark not in (INFO.mark, "beef")


def test_search(store, tmp_path):
    means = torch.stack([features.clips.mean(0) for features in several(*range(30))])
    vector = torch.randn(DIM, generator=torch.Generator().manual_seed(5))
    scores = torch.cosine_similarity(means, vector[None])
    hits = store.nearest(vector, 5)
    assert [hit.id for hit in hits] == [f"v{n:03d}" for n in scores.argsort(descending=True)[:5].tolist()]
    assert [hit.score for hit in hits] == pytest.approx(
        scores.sort(descending=True)[0][:5].tolist(), abs=1e-5
    )
    assert all(hit.action == "jump" for hit in store.nearest(vector, 9, action="jump"))
    assert all(hit.split == "test" for hit in store.nearest(vector, 9, split="test"))
    own = store.mean("v004")
    assert torch.allclose(own, means[4], atol=1e-6)
    assert store.nearest(own, 1)[0].id == "v004"
    assert "v004" not in {hit.id for hit in store.nearest(own, 30, leave_out="v004")}
    store.append([video(70, identity=1, groups={"gender": "male", "shop": "o'hara"})], NAMES)
    assert [h.id for h in store.nearest(vector, 9, identity="bob", groups={"shop": "o'hara"})] == ["v070"]
    assert store.nearest(vector, 9, groups={"shop": "none"}) == []
    for wrong, code in (
        (lambda: store.nearest(vector[:3]), "features-shape"),
        (lambda: store.nearest(vector, action="swim"), "label-unknown"),
        (lambda: store.mean("nobody"), "video-unknown"),
    ):
        with refuses(code):
            wrong()


def test_totals(store):
    totals = store.totals()
    assert (totals["videos"], totals["clips"]) == (30, sum(1 + n % 4 for n in range(30)))
    assert totals["split"] == {"test": 10, "train": 20}
    assert totals["action"] == {"run": 15, "jump": 15}


def test_a_folder_that_is_not_a_store_is_refused(tmp_path, store):
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "a.txt").write_text("hello")
    for place, code in (
        (tmp_path / "junk", "store-damaged"),
        (tmp_path / "junk" / "a.txt", "store-missing"),
        (tmp_path / "nothing", "store-missing"),
    ):
        with refuses(code) as refused:
            Store.open(place)
        assert place.name in str(refused.value)
    with refuses("store-exists"):
        Store.create(tmp_path / "junk", INFO)
    lance, pa = store_table.import_lance()
    lance.write_dataset(pa.table({"x": [1]}), tmp_path / "table")
    with refuses("store-damaged"):
        Store.open(tmp_path / "table")
    for file in (store.folder / "data").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    broken = Store.open(store.folder)
    for use in (broken.bank, lambda: broken.read([0]), lambda: broken.append(several(90), NAMES)):
        with refuses("store-io"):
            use()


def test_without_lance_there_is_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "lance", None)
    with refuses("extra-missing"):
        Store.open(tmp_path)


def test_an_empty_store_is_a_store(tmp_path):
    made = Store.create(tmp_path / "store", INFO)
    assert (len(made), made.ids, [*made.batches()]) == (0, [], [])
    assert made.bank().clips.shape == (0, 0, DIM)
    assert made.bank().stills.shape == (0, 2, DIM)
    assert made.append([], NAMES) == 0


def test_a_bank_as_videos_and_back(store):
    bank = store.bank()
    again = collected(features_of(bank), bank.encoder, bank.fingerprint, bank.dim, actions=bank.actions)
    assert torch.equal(again.clips, bank.clips)
    assert torch.equal(again.counts, bank.counts)
    assert np.array_equal(again.starts, bank.starts)
