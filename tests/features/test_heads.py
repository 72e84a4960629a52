"""The layers over sequences, and the head for actions."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.features.heads import sequence as S
from veil.features.heads.action import ActionHead
from veil.metrics import top1

approx = pytest.approx


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def masked(lengths: list[int], places: int) -> Tensor:
    return torch.arange(places) < torch.tensor(lengths)[:, None]


def layer(name: str) -> nn.Module:
    made: dict[str, nn.Module] = {
        "conv": S.Conv(6, 4, 5),
        "group norm": S.GroupNorm(2, 6),
        "batch norm": S.BatchNorm(6),
    }
    for p in made[name].parameters():
        nn.init.normal_(p)
    return made[name]


@pytest.mark.parametrize("name", ["conv", "group norm", "batch norm"])
def test_filling_is_not_seen(name):
    net, mask = layer(name), masked([5, 8], 8)[:, None]
    x = draw(2, 6, 8)
    clean = net(x, mask)
    dirty = x.clone()
    dirty[0, :, 5:] = math.nan if name != "batch norm" else 1e3
    longer = F.pad(dirty, (0, 7), value=9.0)
    for other in (net(dirty, mask), net(longer, F.pad(mask, (0, 7)))):
        for video, length in ((0, 5), (1, 8)):
            torch.testing.assert_close(other[video, :, :length], clean[video, :, :length])


def test_norms_are_torchs_where_there_is_no_filling():
    x, mask = draw(3, 6, 8), torch.ones(3, 1, 8, dtype=torch.bool)
    for name in ("group norm", "batch norm"):
        net = layer(name)
        plain = nn.GroupNorm(2, 6) if name == "group norm" else nn.BatchNorm1d(6)
        plain.load_state_dict(net.state_dict())
        torch.testing.assert_close(net(x, mask), plain(x))
        for key, value in net.state_dict().items():
            if key != "num_batches_tracked":
                torch.testing.assert_close(value, plain.state_dict()[key])
        torch.testing.assert_close(net.eval()(x, mask), plain.eval()(x))


def test_halving_takes_the_largest_neighbour():
    x, mask = -1 - draw(2, 3, 7).abs(), masked([3, 7], 7)[:, None]
    x[0, :, 3:] = 100
    y, left = S.halved(x, mask)
    assert left[:, 0].sum(1).tolist() == [2, 4]
    for video, length in ((0, 3), (1, 7)):
        for i in range((length + 1) // 2):
            near = [t for t in (2 * i - 1, 2 * i, 2 * i + 1) if 0 <= t < length]
            assert torch.equal(y[video, :, i], x[video, :, near].amax(1))
    assert (y[0, :, 2:] == 0).all()


def test_masks_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"mask is \(B, T\) bool, got \(2, 3, 4\) and \(2, 4\)"):
        S.checked(draw(2, 3, 4), torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="bool"):
        S.checked(draw(2, 3, 4), torch.ones(2, 3))


def test_the_loss_of_actions():
    head, x, labels = ActionHead(4, 3), draw(2, 5, 4), torch.tensor([2, 0])
    mask = masked([2, 5], 5)
    naive = 0.0
    for v, n in ((0, 2), (1, 5)):
        for i in range(n):
            share = torch.softmax(head.linear(x[v, i]), 0).tolist()
            naive -= math.log(share[int(labels[v])]) / n / 2
    assert head.loss(head(x, mask), labels, mask)["action"].item() == approx(naive, rel=1e-5)
    with pytest.raises(ValueError, match=r"else \(B,\), got \(2, 3\)"):
        head.loss(head(x, mask), torch.zeros(2, 3), mask)


def test_the_loss_of_several_actions():
    head, x, labels = ActionHead(4, 3, several=True), draw(2, 5, 4), torch.tensor([[1, 0, 1], [0, 0, 1]])
    mask = masked([2, 5], 5)
    naive = 0.0
    for v, n in ((0, 2), (1, 5)):
        for i in range(n):
            share = torch.sigmoid(head.linear(x[v, i])).tolist()
            for p, y in zip(share, labels[v].tolist(), strict=True):
                naive -= math.log(p if y else 1 - p) / 3 / n / 2
    assert head.loss(head(x, mask), labels, mask)["action"].item() == approx(naive, rel=1e-5)
    assert head.probabilities(x, mask).sum(1).sub(1).abs().max() > 1e-3  # each for itself


def test_a_video_is_the_mean_of_its_clips():
    head, x, mask = ActionHead(4, 3), draw(2, 5, 4), masked([2, 5], 5)
    share = head.probabilities(x, mask)
    torch.testing.assert_close(share[0], head.linear(x[0, :2]).softmax(1).mean(0).detach())
    dirty = x.clone()
    dirty[0, 2:] = math.nan
    torch.testing.assert_close(head.probabilities(dirty, mask), share)
    assert top1(share, [0, 1]).n == 2  # they sum to 1, or metrics would refuse them


def test_actions_are_learned():
    torch.manual_seed(0)
    head, labels = ActionHead(8, 4), torch.arange(32) % 4
    x = draw(32, 6, 8) + 3 * F.one_hot(labels, 8)[:, None]
    step = torch.optim.Adam(head.parameters(), 0.05)
    for _ in range(40):
        step.zero_grad()
        head.loss(head(x), labels)["action"].backward()
        step.step()
    assert top1(head.probabilities(x), labels).value > 0.95
