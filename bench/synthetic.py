"""How fast the synthetic world is painted, and whether small networks learn from it what they should.

    python bench/synthetic.py --rate             frames a second at 112²
    python bench/synthetic.py --learn            accuracies of small networks; minutes on a GPU
    python bench/synthetic.py --learn --quick    the same at 56² on little data, for a CPU

Every accuracy is of a held-out test split, at the epoch that was best on the validation split.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from veil.data.synthetic import ACTIONS, ATTRIBUTES, IDENTITIES, LENGTHS, Kind, World, read  # noqa: E402


class Task(NamedTuple):
    """One thing to learn: frames (N, T, H, W, 3) uint8 of each split, and targets: classes (N,) or attributes (N, A)."""

    name: str
    chance: float
    data: dict[str, tuple[Tensor, Tensor]]
    epochs: int


class Block(nn.Module):
    """Two convolutions and a way round them; in three dimensions, time is halved where space is, from 8 frames on."""

    def __init__(self, conv: type[nn.Conv2d] | type[nn.Conv3d], norm: type[nn.Module], inputs: int, outputs: int) -> None:
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
        first = ((3, 5, 5), (1, 2, 2), (1, 2, 2)) if dims == 3 else (5, 2, 2)
        self.stem = nn.Sequential(conv(3, width, *first, bias=False), norm(width), nn.ReLU())
        sizes = (width, 2 * width, 4 * width, 6 * width)
        self.blocks = nn.Sequential(*(Block(conv, norm, a, b) for a, b in zip(sizes, sizes[1:], strict=False)))
        self.head = nn.Linear(sizes[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).flatten(2).mean(2))


def prepare(frames: Tensor, training: bool) -> Tensor:
    """Frames (B, T, H, W, 3) as a clip in [-1, 1]; in training flipped and shifted, alike for all frames of a video."""
    clip = frames.permute(0, 4, 1, 2, 3).float().div(127.5).sub(1)
    if training:
        size = clip.shape[-1]
        flip = torch.rand(len(clip), 1, 1, 1, 1, device=clip.device) < 0.5
        clip = torch.where(flip, clip.flip(4), clip)
        pad = size // 14
        dy, dx = (int(torch.randint(0, 2 * pad + 1, ())) for _ in range(2))
        clip = F.pad(clip, (pad,) * 4, mode="replicate" if clip.ndim == 4 else "constant")
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


def learn(task: Task, width: int, batch: int, seed: int = 0) -> Tensor:
    """Train a fresh network; the accuracy on test at the epoch that was best on val."""
    torch.manual_seed(seed)
    frames, target = task.data["train"]
    outputs = target.shape[1] if target.ndim == 2 else int(target.max()) + 1
    net = Net(3 if frames.shape[1] > 1 else 2, outputs, width).to(frames.device)
    steps = task.epochs * -(-len(frames) // batch)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.2)
    best, found = -1.0, torch.zeros(())
    for epoch in range(task.epochs):
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
        if epoch >= task.epochs // 2:
            val = accuracy(net, task.data["val"], batch).mean().item()
            if val > best:
                best, found = val, accuracy(net, task.data["test"], batch)
    return found


def gather(kind: Kind, count: int, size: int, device: str) -> dict[str, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Frames, actions, attributes and identities of each split."""
    world = World(size=size, device=device)
    splits: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for index, sample in enumerate(read(kind=kind, count=count, size=size).samples):
        splits[sample.split].append(index)
    found = {}
    for name, indices in splits.items():
        parts = []
        for begin in range(0, len(indices), 64):
            frames, truth = world.render(indices[begin : begin + 64], kind)
            parts.append((frames, truth.action, truth.attributes, truth.identity))
        found[name] = tuple(map(torch.cat, zip(*parts, strict=True)))
    return found


def learn_all(device: str, quick: bool, only: str, scale: float) -> None:
    size, width, batch = (56, 16, 32) if quick else (112, 32, 64)
    clips = int((100 if quick else 400) * scale) * len(ACTIONS)
    stills, walks = int((2400 if quick else 16000) * scale), int((320 if quick else 1600) * scale)
    epochs = 8 if quick else 12
    begin = time.perf_counter()

    def report(task: Task, names: tuple[str, ...] = ()) -> None:
        found = learn(task, width, batch)
        n, seconds = len(task.data["test"][0]), time.perf_counter() - begin
        print(f"{task.name:34s} {100 * found.mean():5.1f} %  (chance {100 * task.chance:.1f} %, n = {n}, {seconds:.0f} s so far)", flush=True)
        if names:
            print("   " + ", ".join(f"{name} {100 * value:.1f}" for name, value in zip(names, found.tolist(), strict=True)))

    if only in ("", "action", "identity"):
        data = gather("clips", clips, size, device)
        print(f"painted {clips} clips of {LENGTHS['clips']} frames at {size}² in {time.perf_counter() - begin:.1f} s on {device}")
        if only != "identity":
            report(Task("action, from clips", 1 / len(ACTIONS), {k: (v[0], v[1]) for k, v in data.items()}, 2 * epochs))
            report(Task("action, from the first frame only", 1 / len(ACTIONS), {k: (v[0][:, :1], v[1]) for k, v in data.items()}, epochs))
        if only != "action":
            report(Task("identity, from one frame of a clip", 1 / IDENTITIES, {k: (v[0][:, 5:6], v[3]) for k, v in data.items()}, 2 * epochs))
            report(Task("attributes, from one frame of a clip", 0.5, {k: (v[0][:, 5:6], v[2]) for k, v in data.items()}, epochs), ATTRIBUTES)
        del data
    if only in ("", "attributes"):
        data = gather("stills", stills, size, device)
        report(Task("attributes of strangers, from stills", 0.5, {k: (v[0], v[2]) for k, v in data.items()}, 2 * epochs), ATTRIBUTES)
    if only in ("", "gait"):
        data = gather("gait-alike", walks, size, device)
        report(Task("identity, from gait alone", 1 / IDENTITIES, {k: (v[0], v[3]) for k, v in data.items()}, 3 * epochs))
        report(Task("identity, from one frame of a gait", 1 / IDENTITIES, {k: (v[0][:, :1], v[3]) for k, v in data.items()}, epochs))


def rate(device: str, seconds: float) -> None:
    world = World(device=device)
    batch = 16 if device == "cpu" else 512
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for kind in ("clips", "stills", "gait-alike"):
        videos = batch * LENGTHS["clips"] // LENGTHS[kind]
        world.render(range(videos), kind)
        wait()
        begin, frames, turn = time.perf_counter(), 0, 0
        while time.perf_counter() - begin < seconds:
            turn += 1
            frames += world.render(range(turn * videos, (turn + 1) * videos), kind)[0].shape[:2].numel()
            wait()
        spent = time.perf_counter() - begin
        threads = f", {torch.get_num_threads()} threads" if device == "cpu" else ""
        print(f"{kind:12s} {frames / spent:10.0f} frames/s at 112² on {device}{threads} ({frames} frames)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", action="store_true", help="measure the frame rate")
    parser.add_argument("--learn", action="store_true", help="train small networks")
    parser.add_argument("--quick", action="store_true", help="56², little data")
    parser.add_argument("--only", default="", choices=("", "action", "identity", "attributes", "gait"))
    parser.add_argument("--scale", type=float, default=1.0, help="more or less data")
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring each rate")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    if given.rate:
        rate(given.device, given.seconds)
    if given.learn:
        learn_all(given.device, given.quick, given.only, given.scale)
    if not given.rate and not given.learn:
        parser.error("say --rate or --learn, or both")


if __name__ == "__main__":
    main()
