"""Attackers and users of features: each finds what is there, and no more."""

import numpy as np
import pytest
import torch

from feature_banks import made_bank as made
from veil.audit import latents
from veil.audit.latents import PROBES, Effort, Members, inverted, probed, seen_in, walked
from veil.core import VeilError
from veil.data.sample import Sample

QUICK = Effort(steps=60, turns=6)


def parts(bank):
    return [bank.split(name) for name in ("train", "val", "test")]


@pytest.mark.parametrize("probe", PROBES)
def test_each_probe_finds_what_is_there_and_nothing_in_noise(probe):
    bank = made(videos=240, clips=2)
    found = probed(probe, "identity", *parts(bank), effort=QUICK)
    assert found.score.value > 0.8 and found.answers.shape == (found.score.n, 4)
    noise = bank.changed(
        torch.randn(bank.clips.shape, generator=torch.Generator().manual_seed(1)), bank.stills
    )
    assert probed(probe, "identity", *parts(noise), effort=QUICK).score.value < 0.55


def test_probes_answer_for_attributes_and_groups_too():
    from dataclasses import replace

    bank = made(videos=200)
    samples = tuple(
        replace(
            s,
            attributes=(float((s.identity or 0) % 2), 1.0 - (s.identity or 0) % 2),
            groups={"side": "left" if s.identity else "right"},
        )
        for s in bank.samples
    )
    bank = replace(bank, samples=samples, attributes=("odd", "even"))
    for probe in PROBES:
        assert probed(probe, "attributes", *parts(bank), effort=QUICK).score.value > 0.85
    assert probed("linear", "side", *parts(bank), effort=QUICK).score.value > 0.85
    train, val, test = parts(bank)
    accuracy, gap, groups = latents.gap(train, val, test, "side", effort=QUICK)
    assert accuracy.value > 0.7 and 0 <= gap.value <= 1 and set(groups) == {"left", "right"}
    with pytest.raises(VeilError, match="have no height"):
        probed("linear", "height", *parts(bank), effort=QUICK)


def test_members_are_probes_beside_each_other():
    torch.manual_seed(0)
    x = torch.randn(20, 6)
    members = Members(x, 3, deep=True)
    y = (x - members.mean) / members.scale
    one = (
        torch.relu(y @ members.weights[0][1] + members.biases[0][1]) @ members.weights[1][1]
        + members.biases[1][1]
    )
    assert torch.allclose(members(x)[1], one, atol=1e-5)
    naive = sum(
        d * sum(float(w[i].square().sum()) for w in members.weights) for i, d in enumerate(members.decays)
    )
    assert float(members.decay()) == pytest.approx(naive, rel=1e-5)


def test_walks_are_found_by_the_nearest_walk():
    from dataclasses import replace

    bank = made(videos=80, people=4)
    bank = bank.changed(torch.cat([bank.clips[..., :8] * 0, bank.clips[..., 8:]], -1), bank.stills)
    samples = tuple(
        replace(s, groups={"role": "probe" if i % 2 else "gallery", "view": str(i % 3)})
        for i, s in enumerate(bank.samples)
    )
    assert walked(replace(bank, samples=samples)).value > 0.9
    assert walked(replace(bank, samples=samples), across_views=True).value > 0.9
    with pytest.raises(VeilError, match="gallery"):
        walked(bank)


def test_long_videos_are_judged():
    long = made(videos=40, clips=8, long=True)
    assert (
        0
        <= latents.detected(
            *parts(long), effort=Effort(turns=4, detector={"width": 16, "hidden": 16, "levels": 2, "bins": 2})
        ).score.value
        <= 1
    )
    watched = latents.watched(
        *parts(long), effort=Effort(turns=4, watcher={"widths": (64, 64, 64), "depths": (1, 1, 1)})
    )
    assert 0 <= watched.score.value <= 1 and watched.score.chance == 0.5


def test_what_a_decoder_draws_tells_who_it_is():
    bank = made(videos=120)
    dice = torch.Generator().manual_seed(0)
    faces = torch.rand(4, 3, 32, 32, generator=dice)
    who = bank.truth("identity")
    train, val, test = parts(bank)
    drawn, own = inverted(train, faces[train.truth("identity")], [val, test], steps=30, width=32)
    assert own.shape == (len(train), 3, 32, 32) and len(who) == 120
    found = seen_in(
        [own, *drawn], [part.truth("identity") for part in (train, val, test)], [train, val, test]
    )
    assert found.score.value > 0.7
    assert np.isfinite(found.answers).all()


def test_a_video_without_the_label_is_left_out():
    from dataclasses import replace

    bank = made(videos=120)
    samples = tuple(replace(s, identity=None) if i % 2 else s for i, s in enumerate(bank.samples))
    found = probed("knn", "identity", *parts(replace(bank, samples=samples)))
    assert found.score.n == sum(1 for s in samples if s.split == "test" and s.identity is not None)
    assert isinstance(samples[0], Sample)


def test_a_store_is_compared_with_itself_after_anonymization():
    from dataclasses import replace

    bank = made(videos=120)
    gone = bank.changed(bank.clips * torch.cat([torch.ones(8), torch.zeros(8)]), bank.stills)
    order = list(range(119, -1, -1))  # another store may hold them in another order, and no labels
    bare = tuple(replace(s, identity=None) for s in gone.take(order).samples)
    asked = latents.compared(bank, replace(gone.take(order), samples=bare), effort=QUICK)
    assert {one.target for one in asked} == {"action", "identity"}
    best = {
        (t, k): max(one.score.value for one in asked if (one.target, one.knows) == (t, k))
        for t in ("action", "identity")
        for k in ("raw", "adapted")
    }
    assert best["action", "adapted"] > 0.8 and best["identity", "adapted"] < 0.6
    left = [one.left for one in asked if one.target == "identity" and one.knows == "adapted"]
    assert all(value is not None and value < 0.6 for value in left)
    assert {one.raw for one in latents.compared(bank, None, ["action"], effort=QUICK)} == {None}
    with pytest.raises(VeilError, match="anonymize the same store"):
        latents.compared(bank, gone.take(order[:50]), effort=QUICK)
    with pytest.raises(VeilError, match="--labels"):
        latents.compared(
            replace(bank, samples=tuple(replace(s, action=None, identity=None) for s in bank.samples)), None
        )
