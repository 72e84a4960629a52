"""Training throughput: SPAct's training by Veil against the same training written naively, in one run.

    python bench/train.py DATA [--device cuda] [--steps 60] [--width 64]

DATA holds `utd_mhad_depth`. Naive: fp32 without TF32, plain memory layout, every clip decoded again from its file (by
eight processes that work ahead), the released code's order of steps. Veil: frames decoded once and held as bytes on the
device, bf16, channels-last. Both train the same networks (U-Net, R3D-18, ResNet-50) on the same number of clips and
pairs. And onnxruntime against torch for the U-Net on a processor (`--device cpu --speed`).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from veil.data import Dataset, read
from veil.data.frames import square
from veil.methods.sections import AdversarialSchedule
from veil.methods.spact import FrameAnonymizer, Projector, SPActRecipe, UNetConfig
from veil.nn import image, unet, video
from veil.training import data_config
from veil.training.data_config import DataConfig
from veil.training.losses import nt_xent


class Decoded(TorchDataset):
    """A clip of 16 frames and two frames of a video, decoded anew each time."""

    def __init__(self, dataset: Dataset, size: int, length: int):
        self.samples = [sample for sample in dataset.samples if sample.split == "train"]
        self.size, self.length = size, length

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, torch.Tensor, torch.Tensor]:
        sample = self.samples[index % len(self.samples)]
        capture = cv2.VideoCapture(str(sample.path))
        frames = []
        while (got := capture.read())[0]:
            frames.append(cv2.cvtColor(got[1], cv2.COLOR_BGR2RGB))
        small = torch.from_numpy(square(np.stack(frames), self.size)).permute(3, 0, 1, 2).float() / 255
        start = int(torch.randint(max(1, small.shape[1] - 2 * self.length), ()))
        when = (start + 2 * torch.arange(self.length)).clamp_max(small.shape[1] - 1)
        a, b = torch.randint(small.shape[1], (2,)).tolist()
        return small[:, when], int(sample.action or 0), small[:, a], small[:, b]


def naive(dataset: Dataset, recipe: SPActRecipe, steps: int, device: torch.device) -> float:
    """Seconds for each step."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    anonymizer = FrameAnonymizer(unet.make("unet", width=recipe.anonymizer.width)).to(device)
    task = video.make(recipe.utility.network, len(dataset.actions), size=recipe.data.size).to(device)
    budget = Projector(image.make("resnet50", 1, size=recipe.data.size)).to(device)
    hider = torch.optim.Adam(anonymizer.parameters(), 1e-4)
    learner = torch.optim.Adam([*task.parameters(), *budget.parameters()], 1e-4)
    clips = Decoded(dataset, recipe.data.size, recipe.data.length)
    pairs = DataLoader(clips, recipe.data.image_pairs, num_workers=4, shuffle=True)
    loader = DataLoader(clips, recipe.data.batch, num_workers=4, shuffle=True)
    begun = 0.0
    for step, (batch, people) in enumerate(zip(loader, pairs, strict=False)):
        if step == 6:
            _wait(device)
            begun = time.perf_counter()
        if step == 6 + steps:
            break
        clip, action = batch[0].to(device), batch[1].to(device)
        first, second = people[2].to(device), people[3].to(device)
        hiding = step % 2 == 0
        for net, learns in ((anonymizer, hiding), (task, not hiding), (budget, not hiding)):
            net.train(learns).requires_grad_(learns)
        use = F.cross_entropy(task(anonymizer(clip)), action)
        found = nt_xent(
            budget(anonymizer(first[:, :, None])[:, :, 0]), budget(anonymizer(second[:, :, None])[:, :, 0])
        )
        optimizer = hider if hiding else learner
        optimizer.zero_grad()
        (use - found if hiding else use + found).backward()
        optimizer.step()
        float(use)
    _wait(device)
    return (time.perf_counter() - begun) / steps


def in_memory(dataset: Dataset, size: int) -> Dataset:
    """The dataset with its frames decoded once, small and square."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        frames = list(pool.map(lambda sample: square(dataset.frames(sample), size), dataset.samples))
    store = {sample.id: one for sample, one in zip(dataset.samples, frames, strict=True)}
    return replace(dataset, frames=lambda sample: store[sample.id])


def veil(dataset: Dataset, recipe: SPActRecipe, steps: int, device: torch.device) -> float:
    """Seconds for each step."""
    cached = in_memory(dataset, recipe.data.size)
    data_config.read_data = lambda *_, **__: cached
    torch.backends.cudnn.benchmark = True
    training = recipe.training(device, 1)
    begun = 0.0
    for step in range(10 + steps):
        if step == 10:
            _wait(device)
            begun = time.perf_counter()
        training.phases.train_step(training.batch(step))
    _wait(device)
    return (time.perf_counter() - begun) / steps


def speed() -> None:
    """The U-Net on a processor: milliseconds a frame by torch and by onnxruntime."""
    from veil.nn import onnx

    for width in (8, 16, 64):
        for size in (112, 224):
            net = unet.make("unet", width=width).eval()
            batch = torch.rand(4, 3, size, size)
            with tempfile.TemporaryDirectory() as folder:
                unet.to_onnx(net, Path(folder) / "net.onnx", size)
                model = onnx.session(Path(folder) / "net.onnx")
            with torch.inference_mode():
                ways = {
                    "torch": lambda net=net, batch=batch: net(batch),
                    "onnxruntime": lambda m=model, b=batch: m.run(None, {"images": b.numpy()}),
                }
                record: dict[str, float] = {"width": width, "size": size}
                for name, way in ways.items():
                    way()
                    times = []
                    for _ in range(5):
                        begun = time.perf_counter()
                        way()
                        times.append((time.perf_counter() - begun) / len(batch))
                    record[f"{name} ms"] = round(1e3 * min(times), 2)
            print(json.dumps(record), flush=True)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--speed", action="store_true")
    given = parser.parse_args()
    if given.speed or given.data is None:
        speed()
        return
    dataset = read("utd-mhad", given.data / "utd_mhad_depth")
    device = torch.device(given.device)
    small = device.type == "cpu"
    part = DataConfig(name="utd-mhad", batch=2 if small else 24, image_pairs=2 if small else 64, flip=False)
    schedule = AdversarialSchedule(reconstruction_steps=0, warmup_steps=0)
    recipe = SPActRecipe(data=part, anonymizer=UNetConfig(width=given.width), schedule=schedule)
    slow = naive(dataset, recipe, given.steps, device)
    fast = veil(dataset, recipe, given.steps, device)
    print(
        json.dumps(
            {
                "naive ms a step": round(1e3 * slow, 1),
                "veil ms a step": round(1e3 * fast, 1),
                "ratio": round(slow / fast, 2),
                "veil clips a second": round(part.batch / fast, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
