"""A store keeps every row that was committed, refuses what does not belong, and gives back what was put in."""

import math
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from veil.core import VeilError
from veil.data.sample import Sample, Segment
from veil.features import store as store_module
from veil.features.bank import Features, Words, collected, joined
from veil.features.store import About, Store, features_of

pytest.importorskip("lance", reason="the extra 'features' is not installed")

DIM = 12
WORDS = Words(actions=("run", "jump"), attributes=("hat", "red"), identities=("anna", "bob"))
ABOUT = About("tiny", "0123abcd", DIM, stills=2, stride=16, actions=WORDS.actions)


def video(number: int, clips: int = 3, **labels) -> Features:
    dice = torch.Generator().manual_seed(number)
    sample = Sample(f"v{number:03d}", labels.pop("split", "train"), **labels)
    vectors = torch.randn(clips + 2, DIM, generator=dice).half().float()
    return Features(sample, vectors[:clips], 0.64 * torch.arange(clips), 0.64 * clips, 0.64, vectors[clips:])


def several(*numbers: int) -> list[Features]:
    return [video(n, 1 + n % 4, split="test" if n % 3 == 0 else "train", action=n % 2) for n in numbers]


@pytest.fixture
def store(tmp_path):
    made = Store.create(tmp_path / "store", ABOUT)
    for at in range(0, 30, 10):
        made.append(several(*range(at, at + 10)), WORDS)
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
    Store.create(tmp_path / "store", ABOUT).append([put, bare], WORDS)
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
    made = Store.create(tmp_path / "store", replace(ABOUT, dtype=dtype))
    for at in range(0, 30, 10):
        made.append(several(*range(at, at + 10)), WORDS)
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
    from veil.features.store import _lance

    lance, _ = _lance()
    write = lance.write_dataset
    monkeypatch.setattr(lance, "write_dataset", lambda *a, **k: write(*a, **k, max_page_bytes=200))
    made = Store.create(tmp_path / "pages", replace(ABOUT, dtype="float32"))
    for at in range(0, 40, 20):
        made.append([video(n, 7) for n in range(at, at + 20)], WORDS)
    right = torch.stack([video(n, 7).clips for n in range(40)])
    assert torch.equal(made.read(range(40)).clips, right)
    mapped = made._map[1]  # type: ignore[index]
    crossing = dict(mapped._two)
    monkeypatch.setattr(mapped, "_two", {})  # now Lance reads them
    assert torch.equal(made.read(range(40)).clips, right)
    monkeypatch.setattr(store_module, "_VERSION", "2.1")  # whose vectors stand between marks
    monkeypatch.setattr(lance, "write_dataset", write)
    other = Store.create(tmp_path / "marks", replace(ABOUT, dtype="float32"))
    other.append([video(n, 7) for n in range(40)], WORDS)
    assert torch.equal(other.read(range(40)).clips, right)
    assert (other._map[1]._file < 0).all()  # type: ignore[index]
    assert crossing


def test_splits_batches_and_their_size(store, monkeypatch):
    assert store.ids == [f"v{n:03d}" for n in range(30)]
    assert store.bank("test").samples == store.bank().split("test").samples
    sizes = [len(bank) for bank in store.batches(4)]
    assert sum(sizes) == 30
    assert max(sizes) == 4
    monkeypatch.setattr(store_module, "_ROOM", 8)
    for bank in store.batches():
        assert bank.clips.shape[0] * bank.clips.shape[1] <= 8
    together = joined([*store.batches()])
    assert torch.equal(together.clips, store.bank().clips)
    assert together.samples == store.bank().samples


def test_names_that_come_later_are_numbered_after_the_first(store):
    later = Words(actions=("wave", "jump"), attributes=(), identities=())
    store.append([video(100, action=0), video(101, action=1)], later)
    bank = Store.open(store.folder).bank()
    assert bank.actions == ("run", "jump", "wave")
    assert [bank.samples[at].action for at in (1, -2, -1)] == [1, 2, 1]


def test_a_video_is_there_once(store):
    with pytest.raises(VeilError, match=r"v003 is in .* already"):
        store.append(several(50, 3), WORDS)
    with pytest.raises(VeilError, match="v050 is given twice"):
        store.append(several(50, 50), WORDS)
    assert "v050" not in Store.open(store.folder)
    other = Store.open(store.folder)
    store.append(several(50), WORDS)
    assert other.append(several(50, 51), WORDS, skip=True) == 1  # sees what the first has written
    assert len(other) == len(set(other.ids)) == 32


def test_what_does_not_belong_is_refused_by_the_name_of_the_video(store):
    for spoil, says in (
        (lambda v: v._replace(clips=v.clips * math.nan), "v062 are not all numbers"),
        (lambda v: v._replace(stills=v.stills / 0), "v062 are not all numbers"),
        (lambda v: v._replace(clips=v.clips * 1e6), "v062 is .* more than float16 holds"),
        (lambda v: v._replace(clips=v.clips[:, :5]), r"v062 are \(3, 5\)"),
        (lambda v: v._replace(clips=v.clips[:0]), r"v062 are \(0, 12\)"),
        (lambda v: v._replace(stills=v.stills[:1]), "v062 has static clips"),
    ):
        with pytest.raises(VeilError, match=says):
            store.append([video(61), spoil(video(62))], WORDS)
    assert len(Store.open(store.folder)) == 30
    for change in (
        {"encoder": "other"},
        {"fingerprint": "ffff"},
        {"dim": 13},
        {"stills": 3},
        {"stride": 8},
        {"anonymized": "ab"},
    ):
        with pytest.raises(VeilError, match="do not mix"):
            store.about.refuse(replace(ABOUT, **change), store.folder)


def test_banks_of_other_encoders_do_not_mix(store):
    bank = store.bank()
    for change in ({"fingerprint": "ffff"}, {"encoder": "other"}):
        with pytest.raises(VeilError, match="do not mix"):
            joined([bank, replace(bank, **change)])
    marked = replace(ABOUT, anonymized="beef")
    assert marked.mark not in (ABOUT.mark, "beef")


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
    store.append([video(70, identity=1, groups={"gender": "male", "shop": "o'hara"})], WORDS)
    assert [h.id for h in store.nearest(vector, 9, identity="bob", groups={"shop": "o'hara"})] == ["v070"]
    assert store.nearest(vector, 9, groups={"shop": "none"}) == []
    for wrong, says in (
        (lambda: store.nearest(vector[:3]), "12 numbers"),
        (lambda: store.nearest(vector, action="swim"), "'swim'; it has run, jump"),
        (lambda: store.mean("nobody"), "no video 'nobody'"),
    ):
        with pytest.raises(VeilError, match=says):
            wrong()


def test_totals(store):
    totals = store.totals()
    assert (totals["videos"], totals["clips"]) == (30, sum(1 + n % 4 for n in range(30)))
    assert totals["split"] == {"test": 10, "train": 20}
    assert totals["action"] == {"run": 15, "jump": 15}


def test_a_folder_that_is_no_store_is_told_in_a_sentence(tmp_path, store):
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "a.txt").write_text("hello")
    for place in (tmp_path / "junk", tmp_path / "junk" / "a.txt", tmp_path / "nothing"):
        with pytest.raises(VeilError, match=f"{place.name} is no (store|folder)"):
            Store.open(place)
    with pytest.raises(VeilError, match="exists already"):
        Store.create(tmp_path / "junk", ABOUT)
    lance, pa = store_module._lance()
    lance.write_dataset(pa.table({"x": [1]}), tmp_path / "table")
    with pytest.raises(VeilError, match="no store of features"):
        Store.open(tmp_path / "table")
    for file in (store.folder / "data").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    broken = Store.open(store.folder)
    for use in (broken.bank, lambda: broken.read([0]), lambda: broken.append(several(90), WORDS)):
        with pytest.raises(VeilError, match="could not be"):
            use()


def test_without_lance_there_is_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(VeilError, match=r"pip install 'veil-video\[features\]'"):
        Store.open(tmp_path)


def test_an_empty_store_is_a_store(tmp_path):
    made = Store.create(tmp_path / "store", ABOUT)
    assert (len(made), made.ids, [*made.batches()]) == (0, [], [])
    assert made.bank().clips.shape == (0, 0, DIM)
    assert made.bank().stills.shape == (0, 2, DIM)
    assert made.append([], WORDS) == 0


def test_a_bank_as_videos_and_back(store):
    bank = store.bank()
    again = collected(features_of(bank), bank.encoder, bank.fingerprint, bank.dim, actions=bank.actions)
    assert torch.equal(again.clips, bank.clips)
    assert torch.equal(again.counts, bank.counts)
    assert np.array_equal(again.starts, bank.starts)
