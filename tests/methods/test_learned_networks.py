"""Networks of the learned anonymizers: their equations written as loops, and the laws they all keep."""

import doctest
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from pytest import approx
from torch import Tensor, nn

from errors import refuses
from veil.methods import elr
from veil.methods.bdq import BDQ, LEAST, differences, scaled
from veil.methods.elr import LowResolution, choose, transforms
from veil.methods.noisy import NoisyFeatures, noise_distance, task_distance
from veil.methods.stprivacy import TokenSelection, masked_softmax, ratio_loss

SMALL: dict[str, Any] = {"dim": 24, "depth": 4, "heads": 2, "stages": (1, 2, 3), "frames": 4, "size": 48}
NETS: dict[str, Callable[[], nn.Module]] = {
    "bdq": BDQ,
    "bdq of one bit, soft": lambda: BDQ(bits=1, time=3, sigma="fixed", steps="soft"),
    "elr": lambda: LowResolution(factor=8),
    "stprivacy": lambda: TokenSelection(**SMALL),
    "noisy": lambda: NoisyFeatures(width=4, depth=2),
}
ANY_SIZE = [name for name in NETS if name != "stprivacy"]


def make(name: str) -> Any:
    torch.manual_seed(0)
    return NETS[name]()


def clips(batch: int = 2, frames: int = 4, height: int = 32, width: int = 48, seed: int = 0) -> Tensor:
    return torch.rand(batch, 3, frames, height, width, generator=torch.Generator().manual_seed(seed))


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


# Laws


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("training", [True, False])
def test_shape_and_range_are_kept_and_the_input_too(name, training):
    net, clip = make(name).train(training), clips()
    for x in (clip, torch.zeros_like(clip), torch.ones_like(clip)):
        before = x.clone()
        output = net(x)
        assert output.shape == x.shape and output.dtype == x.dtype and torch.equal(x, before)
        assert output.isfinite().all() and output.min() >= 0 and output.max() <= 1
    with pytest.raises(ValueError, match=r"a clip is \(B, 3, T, H, W\), got \(2, 4, 3, 32, 32\)"):
        net(torch.rand(2, 4, 3, 32, 32))


@pytest.mark.parametrize("name", ANY_SIZE)
@torch.inference_mode()
def test_any_size_will_do(name):
    net = make(name).eval()
    for frames, height, width in ((1, 1, 1), (3, 5, 70), (2, 33, 17)):
        assert net(clips(1, frames, height, width)).shape == (1, 3, frames, height, width)


@pytest.mark.parametrize("name", NETS)
@torch.inference_mode()
def test_a_clip_does_not_depend_on_its_neighbours(name):
    net, clip = make(name).eval(), clips(3)
    clip[1] *= 0.1  # another range of differences
    together = net(clip)
    for i, alone in enumerate(clip.split(1)):
        assert torch.allclose(together[i], net(alone)[0], atol=1e-5)
        assert (together[i] - together[i - 1]).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["bdq", "bdq of one bit, soft"])
def test_nor_does_it_in_training(name):
    net, clip = make(name).train(), clips()
    assert torch.allclose(net(clip)[1], net(clip[1:])[0], atol=1e-6)


@pytest.mark.parametrize("name", NETS)
@torch.inference_mode()
def test_at_rest_it_is_the_same_twice_and_draws_nothing(name):
    net, clip = make(name).eval(), clips()
    torch.manual_seed(1)
    first, state = net(clip), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(net(clip), first)


@pytest.mark.parametrize("name", NETS)
def test_gradients_reach_every_weight_and_the_clip(name):
    net, clip = make(name).train(), clips(height=48).requires_grad_()
    (net(clip) * torch.randn(clip.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    assert [key for key, w in net.named_parameters() if w.grad is None or not w.grad.abs().max() > 1e-8] == []
    assert clip.grad is not None and clip.grad.isfinite().all() and clip.grad.any()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("training", [True, False])
def test_under_autocast_it_is_about_the_same(name, training):
    net, clip = make(name).train(training), clips()
    torch.manual_seed(3)
    exact = net(clip)
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16):
        low = net(clip)
    assert low.dtype == torch.float32 and low.min() >= 0 and low.max() <= 1
    # A token near the edge may fall on its other side.
    assert (low - exact).abs().median() < 0.02
    if name.startswith(("bdq", "elr")):
        assert torch.equal(low, exact)
    assert net(clip.bfloat16() if name.startswith(("bdq", "elr")) else clip).shape == clip.shape
    if training and any(w.requires_grad for w in net.parameters()):
        low.sum().backward()


@pytest.mark.parametrize("name", ["bdq", "bdq of one bit, soft", "elr", "noisy"])
@torch.inference_mode()
def test_a_frame_depends_on_its_stated_past_and_on_no_more(name):
    """In a clip whose range is set by other frames, as BDQ shares one among them."""
    net, clip = make(name).eval(), clips(1, 10, 16, 16)
    clip[:, :, 0, 0, 0], clip[:, :, 8, :8], clip[:, :, 9, :8] = 1, 0, 1
    clip[:, :, 8, 8:], clip[:, :, 9, 8:] = 1, 0  # the widest range there is
    other = clip.clone()
    other[:, :, 2] = clips(1, 1, 16, 16, seed=5)[:, :, 0]
    changed = (net(clip) - net(other)).abs().amax((0, 1, 3, 4)) > 0
    assert changed.nonzero().flatten().tolist() == list(range(2, 2 + net.past + 1))


def test_how_many_frames_belong_together():
    assert [(kind.past, kind.block) for kind in (BDQ, LowResolution, TokenSelection, NoisyFeatures)] == [
        (1, 16),
        (0, 1),
        (0, 16),
        (0, 1),
    ]
    assert BDQ(time=3).past == 3


# BDQ


def naive_blur(clip: Tensor, kernel: int, time: int, sigma: float) -> Tensor:
    """A window of `kernel` × `kernel` pixels around each and `time` frames up to it; outside is as the border."""
    blurred, side = torch.zeros_like(clip), kernel // 2
    _, _, frames, height, width = clip.shape
    offsets = [
        (k, i, j) for k in range(1 - time, 1) for i in range(-side, side + 1) for j in range(-side, side + 1)
    ]
    weights = {at: math.exp(-sum(o * o for o in at) / (2 * sigma**2)) for at in offsets}
    for t in range(frames):
        for y in range(height):
            for x in range(width):
                for (k, i, j), weight in weights.items():
                    at = max(t + k, 0), min(max(y + i, 0), height - 1), min(max(x + j, 0), width - 1)
                    blurred[:, :, t, y, x] += weight * clip[:, :, at[0], at[1], at[2]]
    return blurred / sum(weights.values())


def naive_bdq(clip: Tensor, net: BDQ, hard: bool, sigma: float) -> Tensor:
    blurred = naive_blur(clip, net.kernel, net.time, sigma)
    out, top = torch.zeros_like(clip), len(net.thresholds)
    bounds = [min(max(b, 0.0), top) for b in net.thresholds.tolist()]
    for i, video in enumerate(blurred):
        moved = torch.stack([video[:, t] - video[:, max(t - 1, 0)] for t in range(video.shape[1])], 1)
        low, high = moved.min().item(), moved.max().item()
        for at, d in enumerate(moved.flatten().tolist()):
            y = top * (d - low) / max(high - low, LEAST)
            steps = [float(y > b) if hard else sigmoid(net.hardness * (y - b)) for b in bounds]
            out[i].view(-1)[at] = sum(steps) / top
    return out


@pytest.mark.parametrize(("bits", "time", "sigma"), [(4, 1, "learned"), (2, 3, "fixed")])
def test_bdq_is_its_equations(bits, time, sigma):
    net, clip = BDQ(bits=bits, time=time, sigma=sigma).double(), clips(2, 3, 6, 5).double()
    with torch.no_grad():
        net.thresholds.add_(0.3 * torch.randn(2**bits - 1, generator=torch.Generator().manual_seed(0)))
        net.thresholds[0], net.thresholds[1] = 99.0, -7.0  # neither in the range nor in order
    with torch.no_grad():
        soft, hard = net.train()(clip), net.eval()(clip)
    assert torch.allclose(soft, naive_bdq(clip, net, False, 3.0), atol=1e-6)
    assert torch.allclose(hard, naive_bdq(clip, net, True, 3.0), atol=1e-6)
    levels = hard * (2**bits - 1)
    assert torch.allclose(levels, levels.round()) and len(hard.unique()) <= 2**bits


def test_very_hard_steps_are_true_steps():
    clip = clips()
    hard, sharp = BDQ().eval()(clip), BDQ(hardness=1e6, steps="soft").eval()(clip)
    assert (hard - sharp).abs().mean() < 1e-4
    assert torch.equal(BDQ(steps="soft").eval()(clip), BDQ().train()(clip))


def test_differences_are_of_neighbours_and_the_first_is_none():
    clip = clips()
    found = differences(clip)
    assert not found[:, :, 0].any()
    for t in range(1, 4):
        assert torch.equal(found[:, :, t], clip[:, :, t] - clip[:, :, t - 1])


def test_every_clip_has_its_own_range():
    clip = clips() - 0.5
    clip[1] *= 0.1
    for video in scaled(clip, 15):
        assert video.min() == approx(0) and video.max().item() == approx(15, rel=1e-5)


def test_what_stands_still_gives_no_signal_even_with_less_than_a_step_of_noise():
    still = clips(1, 1).expand(1, 3, 8, 32, 48)
    assert not BDQ().eval()(still).any()
    assert not BDQ(bits=2).eval()(still + 1e-5 * clips(1, 8)).any()


def test_the_thresholds_all_learn_wherever_they_are():
    net, clip = BDQ().train(), clips()
    with torch.no_grad():
        net.thresholds[3], net.thresholds[5] = -2, 30
    net(clip).square().sum().backward()
    assert net.thresholds.grad is not None and net.thresholds.grad.all()
    assert (
        isinstance(net.log_sigma, nn.Parameter) and net.log_sigma.grad is not None and net.log_sigma.grad != 0
    )
    fixed = BDQ(sigma="fixed")
    assert [name for name, _ in fixed.named_parameters()] == ["thresholds"]
    fixed.load_state_dict(net.state_dict())


# ELR


def naive_low_resolution(image: Tensor, factor: int, transform: list[float]) -> Tensor:
    """One channel ``(H, W)`` without the blur: moved, averaged over blocks, drawn large again."""
    height, width = image.shape
    right, down, scale, turn = transform

    def at(values: Tensor, y: float, x: float) -> float:
        """Bilinear, outside as the border."""
        rows, columns = values.shape
        y, x = min(max(y, 0), rows - 1), min(max(x, 0), columns - 1)
        top, left = min(int(y), max(rows - 2, 0)), min(int(x), max(columns - 2, 0))
        a, b = y - top, x - left
        value = 0.0
        for i, share in ((top, 1 - a), (top + 1, a)):
            for j, part in ((left, 1 - b), (left + 1, b)):
                value += share * part * values[min(i, rows - 1), min(j, columns - 1)].item()
        return value

    moved = torch.zeros(height, width)
    for y in range(height):
        for x in range(width):
            u, v = x + 0.5 - width / 2, y + 0.5 - height / 2
            to = (math.cos(turn) * u - math.sin(turn) * v) / scale + factor * right
            fro = (math.sin(turn) * u + math.cos(turn) * v) / scale + factor * down
            moved[y, x] = at(image, fro + height / 2 - 0.5, to + width / 2 - 0.5)
    coarse = torch.zeros(math.ceil(height / factor), math.ceil(width / factor))
    for y in range(coarse.shape[0]):
        for x in range(coarse.shape[1]):
            block = [
                moved[min(i, height - 1), min(j, width - 1)]
                for i in range(y * factor, (y + 1) * factor)
                for j in range(x * factor, (x + 1) * factor)
            ]
            coarse[y, x] = sum(block) / len(block)
    large = torch.zeros(height, width)
    for y in range(height):
        for x in range(width):
            large[y, x] = at(coarse, (y + 0.5) / factor - 0.5, (x + 0.5) / factor - 0.5)
    return large


def test_low_resolution_is_its_equations():
    net, clip = LowResolution(factor=4, chosen=(5, 0, 9), blur=0).eval(), clips(2, 1, 11, 14)
    for place, number in enumerate((5, 0, 9)):
        found = net(clip, torch.tensor([place, place]))
        naive = naive_low_resolution(clip[1, 2, 0], 4, transforms()[number].tolist())
        assert torch.allclose(found[1, 2, 0], naive, atol=1e-4)
    blurred = LowResolution(factor=4, chosen=(0,), blur=0.25).eval()(clip)
    assert torch.allclose(blurred, net(naive_blur(clip, 7, 1, 1.0), torch.tensor([1, 1])), atol=1e-5)


def test_each_clip_has_the_transform_it_is_given():
    net, clip = LowResolution(factor=4).train(), clips(1).expand(3, -1, -1, -1, -1)
    which = torch.tensor([2, 0, 7])
    chosen = net(clip, which)
    for i, k in enumerate(which):
        assert torch.allclose(chosen[i], net(clip[:1], k[None])[0], atol=1e-6)
    assert torch.equal(net.eval()(clip), net(clip, torch.zeros(3, dtype=torch.long)))
    output = net.train()(clips(1).expand(40, -1, -1, -1, -1))
    assert len({round(value, 4) for value in output.sum((1, 2, 3, 4)).tolist()}) > 4
    with pytest.raises(ValueError, match=r"which is int64 \(3,\), got torch.int64 \(2,\)"):
        net(clip, torch.tensor([0, 1]))


def test_the_pool_is_its_seed():
    pool = transforms()
    assert pool.shape == (64, 4) and pool[0].tolist() == [0, 0, 1, 0]
    assert torch.equal(pool, transforms()) and torch.equal(pool[:5], transforms(5))
    assert not torch.equal(pool, transforms(seed=1)) and len(pool.unique(dim=0)) == 64
    assert pool[:, :2].abs().max() <= 0.5 and (pool[:, 2] - 1).abs().max() <= 0.1 + 1e-6
    assert pool[:, 3].abs().max() <= math.radians(5) + 1e-6
    net = LowResolution(chosen=(3, 40))
    assert torch.equal(net.transforms, pool[[3, 40]])


def test_transforms_are_chosen_one_after_another():
    asked: list[list[int]] = []

    def score(numbers: list[int]) -> float:
        """Coverage: each number covers itself and the next; 6 is the best alone."""
        asked.append(numbers)
        return len({m for n in numbers for m in (n, n + 1)}) + (6 in numbers)

    assert choose(score, pool=9, count=4) == [6, 0, 2, 4]
    assert len(asked) == 9 + 8 + 7 + 6 and asked[0] == [0] and asked[9] == [6, 0]
    assert doctest.testmod(elr).failed == 0
    with refuses("too-many-transforms"):
        choose(score, pool=4, count=5)
    with refuses("score-not-a-number"):
        choose(lambda numbers: math.nan, pool=4, count=2)


# STPrivacy


def small(**named: Any) -> TokenSelection:
    torch.manual_seed(0)
    net = TokenSelection(**{**SMALL, **named})
    for predictor in net.predictors:  # as if it had learned to distinguish tokens
        nn.init.normal_(predictor.get_submodule("out.4").weight, std=3)  # pyright: ignore[reportArgumentType]
    return net


def test_masked_softmax():
    scores = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    keep = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 1, 0.0]])
    found = masked_softmax(scores, keep)
    for b in range(2):
        for h in range(3):
            for i in range(5):
                seen = [j for j in range(5) if keep[b, j] or i == j]
                total = sum(math.exp(scores[b, h, i, j]) for j in seen)
                naive = [math.exp(scores[b, h, i, j]) / total if j in seen else 0.0 for j in range(5)]
                assert found[b, h, i].tolist() == approx(naive, abs=1e-6)
    assert torch.allclose(masked_softmax(scores, torch.ones(2, 5)), scores.softmax(3), atol=1e-6)


def test_a_dropped_token_with_a_huge_score_is_no_trouble():
    scores, keep = torch.zeros(1, 1, 3, 3), torch.tensor([[1.0, 1.0, 0.0]], requires_grad=True)
    scores[..., 2] = 1e4
    found = masked_softmax(scores, keep)
    assert found[0, 0, 0].tolist() == [0.5, 0.5, 0]
    found[0, 0, 0, 0].backward()
    assert keep.grad is not None and keep.grad.isfinite().all() and keep.grad[0, 2] < 0


def test_dropped_tokens_take_no_part():
    net = small()
    x = torch.randn(1, 6, 24)
    keep = torch.tensor([[1, 1, 0, 1, 0, 1.0]])
    other = torch.where(keep[..., None] > 0, x, 50 * torch.randn(1, 6, 24))
    kept = keep[0] > 0
    first, second = (net.blocks[0](z, keep)[:, kept] for z in (x, other))
    assert torch.allclose(first, second, atol=1e-5)
    assert torch.allclose(first, net.blocks[0](x[:, kept], None), atol=1e-5)
    frames, held = x.view(1, 2, 3, 24), keep.view(1, 2, 3)
    logits = [net.predictors[0](z.view(1, 2, 3, 24), held)[held > 0] for z in (frames, other)]
    assert torch.allclose(logits[0], logits[1], atol=1e-5)


def test_the_predictor_mixes_its_thirds():
    predictor: Any = small().predictors[0]
    x = torch.randn(1, 2, 3, 24)
    keep = torch.tensor([[[1, 0, 1], [1, 1, 0.0]]])
    z = nn.functional.gelu(predictor.inner(predictor.norm(x)))[0]  # (2, 3, 24)
    held = keep[0]
    for f in range(2):
        frame = sum(z[f, j, 8:16] for j in range(3) if held[f, j]) / held[f].sum()
        video = sum(z[g, j, 16:] for g in range(2) for j in range(3) if held[g, j]) / held.sum()
        for i in range(3):
            naive = predictor.out(torch.cat([z[f, i, :8], frame, video]))
            assert torch.allclose(predictor(x, keep)[0, f, i], naive, atol=1e-5)


@torch.inference_mode()
def test_at_rest_the_best_of_every_frame_are_kept_and_the_rest_is_black():
    """Against the same network written with masks, in which nothing is ever taken out."""
    net, clip = small().eval(), clips(2, 6, 48, 64)
    output, masks = net.anonymize(clip)
    x = net.patch_embed["proj"](2 * clip - 1) + net._places((3, 3, 4))
    x = x.flatten(3).permute(0, 2, 3, 1)
    keep = torch.ones(2, 3, 12)
    for depth, block in enumerate(net.blocks):
        if depth in net.stages:
            stage = net.stages.index(depth)
            logits = net.predictors[stage](x, keep)
            score = (logits[..., 0] - logits[..., 1]).masked_fill(keep == 0, -math.inf)
            count = round(net.ratios[stage] * 12)
            keep = torch.zeros(2, 3, 12).scatter(2, score.topk(count).indices, 1)
            assert torch.equal(masks[stage].flatten(2), keep) and (keep.sum(2) == count).all()
        x = block(x.flatten(1, 2), keep.flatten(1)).unflatten(1, (3, 12))
    pixels = net.head(net.norm(x)).sigmoid()
    for b in range(2):
        for f in range(3):
            for row in range(3):
                for column in range(4):
                    token = 4 * row + column
                    tube = pixels[b, f, token].view(3, 2, 16, 16) * keep[b, f, token]
                    there = output[b, :, 2 * f : 2 * f + 2, 16 * row :, 16 * column :][..., :16, :16]
                    assert torch.allclose(there, tube, atol=1e-5)
    assert torch.equal(net(clip), output)


def test_in_training_tokens_are_dropped_by_chance_and_for_good():
    net, clip = small().train(), clips(2, 4, 48, 48)
    output, masks = net.anonymize(clip)
    assert [mask.shape for mask in masks] == [(2, 2, 3, 3)] * 3
    for mask in masks:
        assert set(mask.flatten().tolist()) <= {0.0, 1.0} and mask.requires_grad
    assert all((later <= earlier).all() for earlier, later in pairwise(masks))
    black = output.unflatten(4, (3, 16)).unflatten(3, (3, 16)).unflatten(2, (2, 2)).amax((1, 3, 5, 7)) == 0
    assert torch.equal(black, masks[-1] == 0)
    assert any(not torch.equal(masks[0], net.anonymize(clip)[1][0]) for _ in range(5))


@torch.no_grad()
def test_in_training_too_dropped_tokens_are_not_seen():
    """With the masks that were drawn, against layers that get the kept tokens alone."""
    net, clip = small(stages=(1,), ratios=(0.5,)).train(), clips(1, 4, 48, 48)
    for layer in net.blocks.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.3)
    output, (mask,) = net.anonymize(clip)
    kept = mask.flatten() > 0
    assert 1 < kept.sum() < len(kept)
    x = net.patch_embed["proj"](2 * clip - 1) + net._places((2, 3, 3))
    x = net.blocks[0](x.flatten(2).transpose(1, 2), None)[:, kept]
    for block in net.blocks[1:]:
        x = block(x, None)
    tubes = net.head(net.norm(x)).sigmoid().view(-1, 3, 2, 16, 16)
    there = output[0].unflatten(3, (3, 16)).unflatten(2, (3, 16)).unflatten(1, (2, 2))
    there = there.permute(1, 3, 5, 0, 2, 4, 6).flatten(0, 2)  # (tokens, 3, 2, 16, 16)
    assert torch.allclose(there[kept], tubes, atol=1e-4)


def test_a_clip_of_which_nothing_is_kept_is_black_and_can_be_learned_from():
    net = small().train()
    for predictor in net.predictors:
        nn.init.zeros_(predictor.get_submodule("out.4").weight)  # pyright: ignore[reportArgumentType]
        predictor.get_submodule("out.4").bias.data.copy_(torch.tensor([-50.0, 50.0]))  # pyright: ignore
    output, masks = net.anonymize(clips(1, 4, 48, 48))
    assert not output.any() and not any(mask.any() for mask in masks)
    (output.sum() + ratio_loss(masks, net.ratios)).backward()
    assert all(w.grad is None or w.grad.isfinite().all() for w in net.parameters())


def test_ratio_loss():
    masks = [
        (torch.rand(3, 2, 4, 5, generator=torch.Generator().manual_seed(i)) > 0.4).float() for i in range(2)
    ]
    naive = 0.0
    for mask, ratio in zip(masks, (0.7, 0.3), strict=True):
        for clip in mask:
            kept = clip.flatten().tolist()
            naive += (sum(kept) / len(kept) - ratio) ** 2 / 3 / 2
    assert ratio_loss(masks, (0.7, 0.3)).item() == approx(naive, rel=1e-5)
    with pytest.raises(ValueError, match="got 2 and 1"):
        ratio_loss(masks, (0.7,))


def test_the_ratio_loss_alone_brings_the_shares_to_the_ratios():
    net, clip = small(stages=(1,), ratios=(0.3,)).train(), clips(8, 4, 48, 48)
    optimizer = torch.optim.Adam(net.predictors.parameters(), lr=3e-3)
    for _ in range(30):
        loss = ratio_loss(net.anonymize(clip)[1], net.ratios)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    shares = torch.stack([net.anonymize(clip)[1][0] for _ in range(4)])
    assert shares.mean().item() == approx(0.3, abs=0.1)


@torch.inference_mode()
def test_other_sizes_have_places_between():
    net = small().eval()
    for frames, height, width in ((2, 16, 16), (8, 64, 32)):
        assert net(clips(1, frames, height, width)).shape == (1, 3, frames, height, width)


def test_the_published_size():
    with torch.device("meta"):
        net = TokenSelection()
    sizes = {name: sum(w.numel() for w in part.parameters()) for name, part in net.named_children()}
    # Twelve layers of DeiT-tiny: 12 (4·192² + 4·192 + 8·192² + 5·192 + 4·192).
    assert sizes["blocks"] == 12 * (12 * 192**2 + 13 * 192) and len(net.predictors) == 3
    assert net.where.shape[2:] == (7, 7) and net.when.shape[2] == 8


# Noisy Features


def test_feature_distances():
    rng = torch.Generator().manual_seed(0)
    x, y, noise = (torch.randn(n, 5, generator=rng) for n in (3, 3, 4))
    naive = sum(
        (a - b) ** 2 for p, q in zip(x.tolist(), y.tolist(), strict=True) for a, b in zip(p, q, strict=True)
    )
    assert task_distance(x, y).item() == approx(naive / 15, rel=1e-5)
    mean = [sum(row[d] for row in noise.tolist()) / 4 for d in range(5)]
    naive = sum((row[d] - mean[d]) ** 2 for row in y.tolist() for d in range(5))
    assert noise_distance(y, noise).item() == approx(naive / 15, rel=1e-5)
    with pytest.raises(ValueError, match=r"one shape, got \(3, 5\) and \(4, 5\)"):
        task_distance(x, noise)
    with pytest.raises(ValueError, match=r"alike, got \(3, 5\) and \(4, 2\)"):
        noise_distance(x, noise[:, :2])


def test_only_what_was_changed_learns_from_a_distance():
    x, y, noise = (torch.randn(2, 4, requires_grad=True) for _ in range(3))
    (task_distance(x, y) + noise_distance(y, noise)).backward()
    assert x.grad is None and noise.grad is None and y.grad is not None
    assert torch.allclose(y.grad, (2 * y - x - noise.mean(0)).detach() * 2 / 8, atol=1e-6)


@torch.inference_mode()
def test_noisy_features_anonymizes_frame_by_frame():
    net, clip = make("noisy").eval(), clips()
    output = net(clip)
    for t in range(4):
        assert torch.allclose(output[:, :, t], net.net(clip[:, :, t]), atol=1e-5)


# Mistakes


@pytest.mark.parametrize(
    ("build", "code"),
    [
        (lambda: BDQ(bits=0), "bdq-bits"),
        (lambda: BDQ(kernel=4), "bdq-kernel"),
        (lambda: BDQ(time=0), "bdq-not-positive"),
        (lambda: BDQ(sigma="free"), "bdq-option"),  # pyright: ignore[reportArgumentType]
        (lambda: BDQ(steps="none"), "bdq-option"),  # pyright: ignore[reportArgumentType]
        (lambda: LowResolution(factor=0), "low-resolution-invalid"),
        (lambda: LowResolution(chosen=(3, 64)), "transform-unknown"),
        (lambda: LowResolution(chosen=()), "transform-unknown"),
        (lambda: TokenSelection(dim=10), "transformer-invalid"),
        (lambda: TokenSelection(stages=(3, 12, 6)), "stages-invalid"),
        (lambda: TokenSelection(ratios=(0.5,)), "ratios-invalid"),
        (lambda: TokenSelection(ratios=(0.5, 0.6, 0.1)), "ratios-invalid"),
        (lambda: TokenSelection(size=100), "tubelets-do-not-fit"),
        (lambda: make("stprivacy")(clips(1, 3, 32, 32)), "tubelets-do-not-fit"),
        (lambda: make("stprivacy")(clips(1, 4, 32, 40)), "tubelets-do-not-fit"),
        (lambda: NoisyFeatures(width=0), "network-shape"),
    ],
)
def test_a_mistake_is_one_sentence(build, code):
    with refuses(code) as error:
        build()
    text = str(error.value)
    assert text.endswith(".") and "\n" not in text and len(text) < 160
