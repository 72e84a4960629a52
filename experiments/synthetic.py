"""What small networks learn from the synthetic dataset: the table of docs/results/data.md.

    python -m experiments.synthetic                   minutes on a GPU
    python -m experiments.synthetic --quick           the same at 56 × 56 on little data, for a CPU
    python -m experiments.synthetic --only gait

Every accuracy is of the held-out test split, at the epoch that was best on the validation split.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.data.synthetic import (
    ACTIONS,
    ATTRIBUTES,
    IDENTITIES,
    LENGTHS,
    GroundTruth,
    Kind,
    VideoGenerator,
    read,
)


class Task(NamedTuple):
    """One thing to learn."""

    name: str
    kind: Kind
    target: Literal["action", "attributes", "identity"]
    frames: slice
    chance: float
    effort: float  # epochs, relative to the others


TASKS = (
    Task("action, from a clip", "clips", "action", slice(None), 1 / len(ACTIONS), 1.5),
    Task("action, from its first frame", "clips", "action", slice(0, 1), 1 / len(ACTIONS), 1),
    Task("identity, from a frame of a clip", "clips", "identity", slice(5, 6), 1 / IDENTITIES, 1.5),
    Task("attributes, from a frame of a clip", "clips", "attributes", slice(5, 6), 0.5, 1),
    Task("attributes of unseen people, from a still", "stills", "attributes", slice(None), 0.5, 1.5),
    Task("identity, from gait alone", "gait-alike", "identity", slice(None), 1 / IDENTITIES, 3),
    Task("identity, from a frame of a gait", "gait-alike", "identity", slice(0, 1), 1 / IDENTITIES, 1),
)
Data = dict[
    str, tuple[Tensor, Tensor]
]  # of each split: frames (N, T, H, W, 3), targets (N,) or (N, ATTRIBUTES)


class Block(nn.Module):
    """Two convolutions and a way round them, at half the resolution."""

    def __init__(
        self, conv: type[nn.Conv2d] | type[nn.Conv3d], norm: type[nn.Module], inputs: int, outputs: int
    ) -> None:
        super().__init__()
        self.a = conv(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.b = conv(outputs, outputs, 3, padding=1, bias=False)
        self.c = conv(inputs, outputs, 1, stride=2, bias=False)
        self.norms = nn.ModuleList([norm(outputs) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        na, nb, nc = self.norms
        return F.relu(nb(self.b(F.relu(na(self.a(x))))) + nc(self.c(x)))


class Net(nn.Module):
    """A small residual network over frames ``(B, 3, H, W)`` or clips ``(B, 3, T, H, W)``."""

    def __init__(self, dims: int, outputs: int, width: int) -> None:
        super().__init__()
        conv = nn.Conv3d if dims == 3 else nn.Conv2d
        norm = nn.BatchNorm3d if dims == 3 else nn.BatchNorm2d
        if dims == 3:
            first = nn.Conv3d(3, width, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2), bias=False)
        else:
            first = nn.Conv2d(3, width, 5, stride=2, padding=2, bias=False)
        self.stem = nn.Sequential(first, norm(width), nn.ReLU())
        sizes = (width, 2 * width, 4 * width, 6 * width)
        self.blocks = nn.Sequential(*(Block(conv, norm, a, b) for a, b in pairwise(sizes)))
        self.head = nn.Linear(sizes[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).flatten(2).mean(2))


def prepare(frames: Tensor, training: bool) -> Tensor:
    """Frames (B, T, H, W, 3) as a clip in [-1, 1], in training flipped and shifted."""
    clip = frames.permute(0, 4, 1, 2, 3).float().div(127.5).sub(1)
    if training:
        size = clip.shape[-1]
        flip = torch.rand(len(clip), 1, 1, 1, 1, device=clip.device) < 0.5
        clip = torch.where(flip, clip.flip(4), clip)
        pad = size // 14
        dy, dx = (int(torch.randint(0, 2 * pad + 1, ())) for _ in range(2))
        clip = F.pad(clip, (pad,) * 4)
        clip = clip[..., dy : dy + size, dx : dx + size]
    return clip.squeeze(2) if clip.shape[2] == 1 else clip


def accuracy(net: Net, data: tuple[Tensor, Tensor], batch: int) -> Tensor:
    """The share of right answers; for attributes, one number each."""
    net.eval()
    right = []
    with torch.no_grad(), torch.autocast(data[0].device.type, torch.bfloat16, enabled=data[0].is_cuda):
        for frames, target in zip(data[0].split(batch), data[1].split(batch), strict=True):
            out = net(prepare(frames, training=False)).float()
            right.append((out > 0) == (target > 0.5) if target.ndim == 2 else out.argmax(1) == target)
    return torch.cat(right).float().mean(0)


def learn(data: Data, epochs: int, width: int, batch: int, seed: int = 0) -> Tensor:
    """Train a fresh network; the accuracy on test at the epoch that was best on val."""
    torch.manual_seed(seed)
    frames, target = data["train"]
    outputs = target.shape[1] if target.ndim == 2 else int(target.max()) + 1
    net = Net(3 if frames.shape[1] > 1 else 2, outputs, width).to(frames.device)
    steps = epochs * -(-len(frames) // batch)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.2)
    best, found = -1.0, torch.zeros(())
    for epoch in range(epochs):
        net.train()
        for part in torch.randperm(len(frames), device=frames.device).split(batch):
            with torch.autocast(frames.device.type, torch.bfloat16, enabled=frames.is_cuda):
                out = net(prepare(frames[part], training=True)).float()
            if target.ndim == 2:
                loss = F.binary_cross_entropy_with_logits(out, target[part])
            else:
                loss = F.cross_entropy(out, target[part], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch >= epochs // 2:
            val = accuracy(net, data["val"], batch).mean().item()
            if val > best:
                best, found = val, accuracy(net, data["test"], batch)
    return found


def gather(kind: Kind, count: int, size: int, device: str) -> dict[str, tuple[Tensor, GroundTruth]]:
    """The frames and the truth of each split."""
    world = VideoGenerator(size=size, device=device)
    splits: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for index, sample in enumerate(read(kind=kind, count=count, size=size).samples):
        splits[sample.split].append(index)
    found, at_once = {}, (256 if device == "cpu" else 8192) // LENGTHS[kind]
    for name, indices in splits.items():
        parts = [world.render(indices[i : i + at_once], kind) for i in range(0, len(indices), at_once)]
        truth = GroundTruth(*map(torch.cat, zip(*(truth for _, truth in parts), strict=True)))
        found[name] = torch.cat([frames for frames, _ in parts]), truth
    return found


def learn_all(device: str, quick: bool, only: str, scale: float, seeds: int) -> None:
    size, width, batch, epochs = (56, 16, 32, 8) if quick else (112, 32, 64, 12)
    counts: dict[Kind, int] = {"clips": 960, "stills": 2400, "gait-alike": 640}
    if not quick:
        counts = {"clips": 4800, "stills": 16_000, "gait-alike": 16_000}  # a gait takes many walks to learn
    begin = time.perf_counter()
    for kind, count in counts.items():
        tasks = [task for task in TASKS if task.kind == kind and only in task.name]
        if not tasks:
            continue
        painted = time.perf_counter()
        videos = gather(kind, int(count * scale), size, device)
        shapes = {name: tuple(frames.shape[:2]) for name, (frames, _) in videos.items()}
        print(f"{kind} {shapes} at {size}² painted in {time.perf_counter() - painted:.1f} s", flush=True)
        for task in tasks:
            data = {
                name: (frames[:, task.frames], getattr(truth, task.target))
                for name, (frames, truth) in videos.items()
            }
            runs = [learn(data, int(task.effort * epochs), width, batch, seed) for seed in range(seeds)]
            found, n = torch.stack(runs).mean(0), len(data["test"][0])
            low, high = (100 * pick(run.mean().item() for run in runs) for pick in (min, max))
            seconds = time.perf_counter() - begin
            print(f"{task.name:38s} {100 * found.mean():5.1f} %", end="  ")
            print(
                f"(seeds {low:.1f} to {high:.1f}, chance {100 * task.chance:.1f} %, n = {n}, after {seconds:.0f} s)",
                flush=True,
            )
            if found.ndim:
                pairs = zip(ATTRIBUTES, found.tolist(), strict=True)
                print("    " + ", ".join(f"{name} {100 * value:.1f}" for name, value in pairs), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="56 × 56, little data")
    parser.add_argument("--only", default="", metavar="WORD", help="only tasks with this in their name")
    parser.add_argument("--scale", type=float, default=1.0, help="more or less data")
    parser.add_argument("--seeds", type=int, default=1, help="networks trained for each task")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    learn_all(given.device, given.quick, given.only, given.scale, given.seeds)


if __name__ == "__main__":
    main()
