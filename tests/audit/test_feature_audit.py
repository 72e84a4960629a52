"""Probes and heads on features: each finds what is there, and no more."""

import numpy as np
import pytest
import torch

from errors import refuses
from feature_banks import made_bank
from veil.audit.features.anomaly import evaluate_anomaly
from veil.audit.features.bias import evaluate_bias
from veil.audit.features.comparison import compare_features
from veil.audit.features.detection import evaluate_detection
from veil.audit.features.gait import evaluate_gait
from veil.audit.features.inversion import evaluate_inversion, invert_features
from veil.audit.features.probes import PROBES, ProbeBudget, ProbeEnsemble, train_probe
from veil.data.sample import Sample

QUICK = ProbeBudget(steps=200, head_steps=6)


def parts(bank):
    return [bank.split(name) for name in ("train", "val", "test")]


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
def test_each_probe_finds_what_is_there_and_nothing_in_noise(probe):
    bank = made_bank(videos=240, clips=2)
    found = train_probe(probe, "identity", *parts(bank), budget=QUICK)
    assert found.score.value > 0.8 and found.probabilities.shape == (found.score.n, 4)
    noise = bank.changed(
        torch.randn(bank.clips.shape, generator=torch.Generator().manual_seed(1)), bank.stills
    )
    assert train_probe(probe, "identity", *parts(noise), budget=QUICK).score.value < 0.55


@pytest.mark.slow
def test_probes_answer_for_attributes_and_groups_too():
    from dataclasses import replace

    bank = made_bank(videos=200)
    samples = tuple(
        replace(
            s,
            attributes=(float((s.identity or 0) % 2), 1.0 - (s.identity or 0) % 2),
            groups={"side": "left" if (s.identity or 0) % 2 else "right"},
        )
        for s in bank.samples
    )
    bank = replace(bank, samples=samples, attributes=("odd", "even"))
    for probe in PROBES:
        assert train_probe(probe, "attributes", *parts(bank), budget=QUICK).score.value > 0.75
    assert train_probe("linear", "side", *parts(bank), budget=QUICK).score.value > 0.75
    train, val, test = parts(bank)
    accuracy, gap, groups = evaluate_bias(train, val, test, "side", budget=QUICK)
    assert accuracy.value > 0.6 and 0 <= gap.value <= 1 and set(groups) == {"left", "right"}
    with refuses("label-unknown"):
        train_probe("linear", "height", *parts(bank), budget=QUICK)


def test_members_are_probes_beside_each_other():
    torch.manual_seed(0)
    x = torch.randn(20, 6)
    members = ProbeEnsemble(x, 3, deep=True)
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

    bank = made_bank(videos=80, people=4)
    bank = bank.changed(torch.cat([bank.clips[..., :8] * 0, bank.clips[..., 8:]], -1), bank.stills)
    samples = tuple(
        replace(s, groups={"role": "probe" if i % 2 else "gallery", "view": str(i % 3)})
        for i, s in enumerate(bank.samples)
    )
    assert evaluate_gait(replace(bank, samples=samples)).value > 0.9
    assert evaluate_gait(replace(bank, samples=samples), across_views=True).value > 0.9
    with refuses("gallery-missing"):
        evaluate_gait(bank)


def test_long_videos_are_scored():
    long = made_bank(videos=40, clips=8, long=True)
    assert (
        0
        <= evaluate_detection(
            *parts(long),
            budget=ProbeBudget(head_steps=4, detection={"width": 16, "hidden": 16, "levels": 2, "bins": 2}),
        ).score.value
        <= 1
    )
    scored = evaluate_anomaly(
        *parts(long), budget=ProbeBudget(head_steps=4, anomaly={"widths": (64, 64, 64), "depths": (1, 1, 1)})
    )
    assert 0 <= scored.score.value <= 1 and scored.score.chance == 0.5


@pytest.mark.slow
def test_a_reconstruction_reveals_the_identity():
    bank = made_bank(videos=120)
    rng = torch.Generator().manual_seed(0)
    faces = torch.rand(4, 3, 32, 32, generator=rng)
    train, val, test = parts(bank)
    reconstructed, own = invert_features(
        train, faces[train.truth("identity")], [val, test], steps=30, width=32
    )
    assert own.shape == (len(train), 3, 32, 32)
    found = evaluate_inversion(
        [own, *reconstructed], [part.truth("identity") for part in (train, val, test)], [train, val, test]
    )
    assert found.score.value > 0.7
    assert np.isfinite(found.probabilities).all()


def test_a_video_without_the_label_is_left_out():
    from dataclasses import replace

    bank = made_bank(videos=120)
    samples = tuple(replace(s, identity=None) if i % 2 else s for i, s in enumerate(bank.samples))
    found = train_probe("knn", "identity", *parts(replace(bank, samples=samples)))
    assert found.score.n == sum(1 for s in samples if s.split == "test" and s.identity is not None)
    assert isinstance(samples[0], Sample)


def test_a_store_is_compared_with_itself_after_anonymization():
    from dataclasses import replace

    bank = made_bank(videos=120)
    gone = bank.changed(bank.clips * torch.cat([torch.ones(8), torch.zeros(8)]), bank.stills)
    order = list(range(119, -1, -1))  # another store may hold them in another order, and no labels
    bare = tuple(replace(s, identity=None) for s in gone.take(order).samples)
    rows = compare_features(bank, replace(gone.take(order), samples=bare), budget=QUICK)
    assert {one.target for one in rows} == {"action", "identity"}
    best = {
        (t, k): max(one.score.value for one in rows if (one.target, one.knowledge) == (t, k))
        for t in ("action", "identity")
        for k in ("oblivious", "adaptive")
    }
    assert best["action", "adaptive"] > 0.8 and best["identity", "adaptive"] < 0.6
    left = [one.left for one in rows if one.target == "identity" and one.knowledge == "adaptive"]
    assert all(value is not None and value < 0.6 for value in left)
    assert {one.raw for one in compare_features(bank, None, ["action"], budget=QUICK)} == {None}
    with refuses("stores-differ"):
        compare_features(bank, gone.take(order[:50]), budget=QUICK)
    with refuses("labels-missing"):
        compare_features(
            replace(bank, samples=tuple(replace(s, action=None, identity=None) for s in bank.samples)), None
        )
