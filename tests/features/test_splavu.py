"""The adapter of features: its sizes, its laws, its losses as loops, and that it does what it is for."""

import json
import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from veil.apps.train import train
from veil.core import VeilError
from veil.data.sample import Sample, Segment, Split
from veil.features import splavu
from veil.features.adapter import Adapter, Context, anonymized
from veil.features.bank import Bank
from veil.features.erasure import leace, moving, telling
from veil.features.splavu import SPLAVU, Batches, Players, Source, candidates, knowledge, trained_on
from veil.training import config
from veil.training.fit import fit
from veil.training.losses import nt_xent

CPU = torch.device("cpu")
HERE = {"data": "synthetic"}
SMALL = {
    "action": HERE,
    "heads": 2,
    "layers": 1,
    "batch": 16,
    "warming": 1,
    "playing": 3,
    "detector": {"width": 16, "hidden": 16, "levels": 2, "bins": 2},
    "watcher": {"widths": [64, 64, 64], "depths": [1, 1, 1]},
    "detection_batch": 2,
    "anomaly_batch": 2,
}


OURS = {name: getattr(SPLAVU, name) for name in ("net", "budget", "keep", "neighbours", "playing")}


def made(videos=60, dim=16, clips=1, stills=4, actions=3, people=4, seed=0, long=False) -> Bank:
    """Features whose first half tells the action of moving clips and whose second half tells who it is."""
    dice = torch.Generator().manual_seed(seed)
    words = torch.randn(actions, dim // 2, generator=dice) * 3
    looks = torch.randn(people, dim // 2, generator=dice) * 3
    does = torch.arange(videos) % actions
    who = torch.randint(people, (videos,), generator=dice)

    def noise(*shape):
        return torch.randn(*shape, generator=dice)

    own = looks[who]
    moves = torch.cat(
        [
            words[does][:, None] + noise(videos, clips, dim // 2),
            own[:, None] + noise(videos, clips, dim // 2),
        ],
        2,
    )
    still = torch.cat([noise(videos, stills, dim // 2), own[:, None] + noise(videos, stills, dim // 2)], 2)
    counts = torch.randint(max(1, clips // 2), clips + 1, (videos,), generator=dice)
    splits: list[Split] = ["train", "train", "train", "val", "test"]
    segments = (Segment(0.0, 2.0, 0), Segment(3.0, 4.0, 1)) if long else ()
    samples = tuple(
        Sample(
            f"v{i}", splits[(i // actions) % 5], action=int(does[i]), identity=int(who[i]), segments=segments
        )
        for i in range(videos)
    )
    there = torch.arange(clips) < counts[:, None]
    return Bank(
        encoder="made",
        fingerprint="f" * 16,
        samples=samples,
        clips=moves * there[..., None],
        counts=counts,
        starts=torch.arange(clips).float().expand(videos, clips) * there,
        seconds=counts.float() + 1,
        length=1.0,
        stills=still,
        actions=tuple(f"action {i}" for i in range(actions)),
        identities=tuple(f"person {i}" for i in range(people)),
    )


def recipe(**changes) -> SPLAVU:
    """The game of matchers, with what is changed in it."""
    return config.checked({**SPLAVU.PRESETS["match"], **SMALL, **changes}, SPLAVU)


@pytest.mark.parametrize(("dim", "millions"), [(768, 14.6), (1024, 25.6), (1280, 39.8), (1408, 48.0)])
def test_the_adapter_has_the_papers_size(dim, millions):
    with torch.device("meta"):
        adapter = Adapter(dim)
    count = sum(p.numel() for p in adapter.parameters()) / 1e6
    assert millions - 0.5 < count < millions  # the paper counts a small head, too


def test_without_feed_forward_it_is_as_released():
    with torch.device("meta"):
        assert sum(p.numel() for p in Adapter(768, ratio=0).parameters()) == 3 * 4 * (768**2 + 768)


@pytest.mark.parametrize("net", ["attention", "mlp"])
@pytest.mark.parametrize("context", ["clip", "video"])
def test_one_video_never_depends_on_another(net: Any, context: Any):
    torch.manual_seed(0)
    adapter = Adapter(16, net=net, heads=2, context=context).eval()
    clips, mask = torch.randn(4, 5, 16), torch.arange(5) < torch.tensor([5, 3, 1, 2])[:, None]
    whole = adapter(clips, mask)
    for row in range(4):
        alone = adapter(clips[row : row + 1], mask[row : row + 1])
        assert torch.allclose(alone[mask[row : row + 1]], whole[row][mask[row]], atol=1e-5)
    other = clips.clone()
    other[1:] = torch.randn(3, 5, 16)
    other[0, ~mask[0]] = 99  # what is not there is not seen
    assert torch.allclose(adapter(other, mask)[0][mask[0]], whole[0][mask[0]], atol=1e-5)


def test_as_released_a_video_depends_on_its_batch():
    torch.manual_seed(0)
    adapter = Adapter(16, heads=2, context="batch").eval()
    clips = torch.randn(3, 1, 16)
    assert not torch.allclose(adapter(clips)[:1], adapter(clips[:1]), atol=1e-3)


def test_clips_of_one_video_see_each_other_only_where_they_may():
    torch.manual_seed(0)
    clips = torch.randn(1, 3, 16)
    other = clips.clone()
    other[0, 2] += 1
    for context, same in zip(get_args(Context)[:2], (True, False), strict=True):
        adapter = Adapter(16, heads=2, context=context).eval()
        assert torch.allclose(adapter(clips)[0, 0], adapter(other)[0, 0], atol=1e-6) == same


def test_it_can_begin_as_identity():
    clips = torch.randn(2, 3, 16)
    assert torch.equal(Adapter(16, heads=2, identity=True)(clips), clips)


def test_the_static_budget_is_nt_xent_of_two_static_clips():
    bank = made()
    r = recipe(budget="static", erase="none")
    players = Players(r, {"action": bank}, CPU)
    batch = Batches(r, {"action": bank}, CPU)(0)
    naive = nt_xent(
        torch.stack([players.adapter(pair[:1][None])[0, 0] for pair in batch.stills]),
        torch.stack([players.adapter(pair[1:][None])[0, 0] for pair in batch.stills]),
        0.1,
    )
    assert torch.allclose(players.static_loss(batch), naive, atol=1e-5)
    hiding = players.hide(batch)["budget"]
    assert torch.allclose(
        hiding, -torch.clamp(naive, max=math.log(2 * len(batch.stills) - 1) + 0.5), atol=1e-5
    )


def test_latent_consistency_is_the_mean_over_clips_and_numbers():
    bank = made(clips=3)
    r = recipe(budget="none", erase="none", consistency=100.0, start="drawn", standardise=False)
    players = Players(r, {"action": bank}, CPU)
    batch = Batches(r, {"action": bank}, CPU)(3)
    after = players.adapter(batch.clips, batch.mask).detach()
    parts = [
        float((after[i, j, k] - batch.clips[i, j, k]) ** 2)
        for i in range(4)
        for j in range(int(batch.mask[i].sum()))
        for k in range(16)
    ]
    few = splavu.Batch(batch.clips[:4], batch.mask[:4], batch.action[:4], batch.stills, batch.looks)
    assert float(players.hide(few)["consistency"].detach()) == pytest.approx(
        100 * sum(parts) / len(parts), rel=1e-4
    )


def test_what_a_matcher_knows_as_a_loop():
    torch.manual_seed(0)
    action = torch.tensor([0, 1, 0, 0])
    allowed = candidates(action)
    assert (
        allowed.tolist()
        == [[True, False, True, True], [False, True, False, False]] + [[True, False, True, True]] * 2
    )
    logits = torch.randn(2, 4, 4).masked_fill(~allowed, -math.inf)
    answers = logits.log_softmax(-1)
    for m in range(2):
        for i in range(4):
            js = [j for j in range(4) if allowed[i, j]]
            total = sum(math.exp(logits[m, i, j]) for j in js)
            naive = sum(
                (1 / len(js)) * (math.log(1 / len(js)) - math.log(math.exp(logits[m, i, j]) / total))
                for j in js
            )
            assert float(knowledge(answers, allowed)[m, i]) == pytest.approx(naive, abs=1e-5)
    even = torch.zeros(1, 4, 4).masked_fill(~allowed, -math.inf).log_softmax(-1)
    assert torch.allclose(knowledge(even, allowed), torch.zeros(1, 4), atol=1e-6)


def test_leace_leaves_nothing_to_a_linear_predictor_and_moves_least():
    torch.manual_seed(0)
    z = torch.randn(400, 2)
    x = torch.randn(400, 8) + z @ torch.randn(2, 8) * 2
    r = leace(x, z)
    after = r(x)
    across = (after - after.mean(0)).T @ (z - z.mean(0)) / 400
    assert across.abs().max() < 1e-4
    # The projection that also makes it so, along the covariance's own directions, moves more.
    span = torch.linalg.qr((x - x.mean(0)).T @ (z - z.mean(0)))[0]
    plain = x - (x - x.mean(0)) @ span @ span.T
    assert (after - x).square().sum() <= (plain - x).square().sum() + 1e-3
    assert torch.allclose(r(after), after, atol=1e-3)  # done twice is done once


def test_what_moves_is_kept_and_looks_are_not():
    bank = made(videos=300)
    train_part = bank.split("train")
    r = moving(train_part.clips[:, 0], train_part.stills.mean(1), keep=8)
    after = r(bank.clips[:, 0])
    assert torch.linalg.matrix_rank((after - after.mean(0)).double(), rtol=1e-4) == 8
    change = (after - bank.clips[:, 0]).square().mean(0)
    assert change[8:].mean() > 5 * change[:8].mean()  # who it is, against what they do


def test_what_tells_keeps_what_the_labels_need_in_as_few_directions_as_they_have():
    bank = made(videos=300, actions=4)
    x, z = bank.clips[:, 0], torch.nn.functional.one_hot(bank.truth("action")).float()
    r = telling([(x, z)])
    after = r(x)
    assert torch.linalg.matrix_rank((after - after.mean(0)).double(), rtol=1e-4) == 3  # one less than classes
    means = torch.stack([x[z[:, i] > 0].mean(0) for i in range(4)])
    assert torch.allclose(r(means), means, atol=1e-3)  # what the classes are on average stays as it is
    change = (after - x).square().mean(0)
    assert change[8:].mean() > 5 * change[:8].mean()  # who it is, against what they do
    assert torch.allclose(r(after), after, atol=1e-3)
    # By hand: the discriminants are the leading solutions of Σ_B v = λ (Σ_W + ε) v.
    groups = [x[z[:, i] > 0].double() for i in range(4)]
    shares = [len(g) / len(x) for g in groups]
    within = sum(
        s * torch.cov(g.T, correction=0) for s, g in zip(shares, groups, strict=True)
    ) + 1e-3 * torch.eye(16)
    middle = x.double().mean(0)
    between = sum(
        s * torch.outer(g.mean(0) - middle, g.mean(0) - middle) for s, g in zip(shares, groups, strict=True)
    )
    values, vectors = torch.linalg.eig(torch.linalg.solve(within, between))
    lead = vectors.real[
        :, values.real.argsort(descending=True)[:1]
    ]  # (D, 1): a row vector of what is measured
    one = telling([(x, z)], keep=1)
    assert torch.allclose(one(x).double() @ lead, x.double() @ lead, atol=1e-3)  # it is measured as before
    both = telling([(x, z), (x, torch.nn.functional.one_hot(bank.truth("identity")).float())])
    assert torch.linalg.matrix_rank((both(x) - both(x).mean(0)).double(), rtol=1e-4) == 6  # 3 and 3
    with pytest.raises(ValueError, match="nothing to keep"):
        telling([(x, torch.ones(300, 1))])


def test_k_same_gives_the_mean_of_others_and_never_itself():
    bank = made(videos=90)
    adapter = Adapter(16, net="none", neighbours=3)
    adapter.tell(bank)
    adapter.remember(bank)
    after = anonymized(adapter, bank).clips[:, 0]
    x = bank.clips[:, 0]
    spread = torch.linalg.inv(torch.cov(x.double().T)).float()
    for row in range(5):
        gap = x - x[row]
        apart = ((gap @ spread) * gap).sum(1)
        apart[row] = math.inf
        assert torch.allclose(after[row], x[apart.topk(3, largest=False).indices].mean(0), atol=1e-3)
    with pytest.raises(VeilError, match="lower neighbours"):
        Adapter(16, net="none", neighbours=99).remember(bank)


@pytest.mark.parametrize("preset", ["paper", "released", "match"])
def test_every_preset_plays_with_all_tasks_and_moves_who_it_says(preset):
    plain = {
        **SPLAVU.PRESETS[preset],
        **SMALL,
        "detection": HERE,
        "anomaly": HERE,
        "drawing": 2 if preset != "match" else 0,
    }
    r = config.checked(plain, SPLAVU)
    long = made(videos=30, clips=6, long=True)
    banks = {"action": made(), "detection": long, "anomaly": long}
    training = trained_on(r, banks, CPU)
    before = {name: value.clone() for name, value in training.weights().items()}
    moves = [measured.step_name for measured in fit(training.phases, map(training.batch, range(r.steps)))]
    assert (
        "hide" in moves
        and ("match" in moves) == (preset == "match")
        and ("draw" in moves) == (preset != "match")
    )
    after = training.weights()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert set(training.check()) == {"action accuracy", "moved"}
    assert training.batch(5).clips.equal(training.batch(5).clips)


@pytest.mark.parametrize(
    "changes",
    [
        {"erase": "looks", "keep": 8},
        {"erase": "rest"},
        {**OURS, "keep": 2},
        {**OURS, "neighbours": 16},
    ],
)
def test_it_hides_who_and_keeps_what(changes):
    """Before an attacker that is trained on what leaves; made features, where both are known."""
    from veil.audit import latents

    bank = made(videos=450, dim=16)
    r = recipe(**{"playing": 30, "batch": 128, **changes})
    training = trained_on(r, {"action": bank}, CPU)
    for _ in fit(training.phases, map(training.batch, range(r.steps))):
        pass
    adapter = r.adapter(16)
    adapter.fill(training.weights())
    after = anonymized(adapter.eval(), bank)

    def told(of, target):
        parts = [of.split(name) for name in ("train", "val", "test")]
        return latents.probed("kernel", target, *parts).score.value

    assert told(bank, "identity") > 0.9 and told(bank, "action") > 0.9
    assert told(after, "action") > 0.9
    assert told(after, "identity") < 0.5


def test_a_run_is_trained_loaded_and_refuses_other_features(tmp_path, monkeypatch):
    bank = made()
    monkeypatch.setattr(Source, "bank", lambda *_: bank)
    path = tmp_path / "r.toml"
    path.write_text(config.to_toml(recipe(neighbours=2), "splavu"))
    train(path, tmp_path / "run", device="cpu")
    adapter = splavu.load(tmp_path / "run")
    assert (adapter.encoder, adapter.fingerprint, adapter.dim) == ("made", "f" * 16, 16)
    out = anonymized(adapter, bank)
    assert out.clips.shape == bank.clips.shape and not torch.allclose(out.clips, bank.clips)
    with pytest.raises(VeilError, match="extract them with its encoder"):
        anonymized(adapter, replace(bank, fingerprint="0" * 16))
    with pytest.raises(VeilError, match="another encoder"):
        adapter(torch.zeros(1, 1, 8))
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**about, "kind": "spact"}))
    with pytest.raises(VeilError, match="changes no features"):
        splavu.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"net": "none", "erase": "none"}, "nothing is anonymized"),
        ({"warming": 0, "playing": 0}, "nothing is trained"),
        ({"pairs": 99}, "too many"),
        ({"action": {}}, "name one of them"),
        ({"action": {"data": "a", "store": "b"}}, "name one of them"),
        ({"keeps": 3}, "there is no 'keeps'"),
    ],
)
def test_impossible_recipes_are_refused(changes, says):
    with pytest.raises(VeilError, match=says):
        recipe(**changes)


def test_data_that_does_not_do_is_refused():
    bank = made()
    with pytest.raises(VeilError, match="heads"):
        Adapter(15, heads=2)
    with pytest.raises(VeilError, match="static clips"):
        Batches(recipe(), {"action": replace(bank, stills=bank.stills[:, :1])}, CPU)
    with pytest.raises(VeilError, match="36 clips cannot stand for others 99 at a time"):
        Batches(recipe(neighbours=99), {"action": bank}, CPU)
    with pytest.raises(VeilError, match="nothing that tells them apart"):
        alike = bank.take([i for i, s in enumerate(bank.samples) if s.action == 0])
        trained_on(recipe(), {"action": alike}, CPU)
    with pytest.raises(VeilError, match="both kinds"):
        only = bank.take([i for i, s in enumerate(bank.samples) if s.action == 0])
        Batches(recipe(anomaly=HERE), {"action": bank, "anomaly": only}, CPU)
    with pytest.raises(VeilError, match="do not mix"):
        Players(recipe(anomaly=HERE), {"action": bank, "anomaly": replace(bank, fingerprint="0")}, CPU)
    for concept in ("identity", "attributes"):
        blank = tuple(
            replace(s, identity=None, attributes=()) if i else s for i, s in enumerate(bank.samples)
        )
        some = replace(bank, samples=(replace(blank[0], attributes=(1.0,)), *blank[1:]), attributes=("a",))
        with pytest.raises(VeilError, match=f"do not say their {concept}"):
            Players(recipe(erase=concept), {"action": some}, CPU)
    with pytest.raises(VeilError, match="nothing to find"):
        Batches(recipe(detection=HERE), {"action": bank, "detection": bank}, CPU)
