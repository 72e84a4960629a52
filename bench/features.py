"""Features on disk: random reads against a memory map, the rate of extraction, a million features anonymized in little memory.

    python bench/features.py reads FOLDER [--videos 100000] [--clips 8]
    python bench/features.py extract FOLDER [--videos 48] [--workers 2]
    python bench/features.py anonymize FOLDER [--videos 125000] [--clips 8] [--layers 3]

FOLDER is for what is written (3 GB for the first, 4 GB for the last), and is removed in the end. Each prints one line of
JSON.

reads: 512 videos at random from a store, the same from an .npy file that is mapped into memory, and by Lance's own
`take`; interleaved, so that a busy machine slows all of them. "cold": after the files are dropped from the page cache.
extract: videos of 64 frames, 160×120; against the encoder alone on clips that lie in memory, and decoding alone.
anonymize: an untrained SPLAVU adapter over a store, in a process of its own, whose peak of memory is printed for the whole
store and for a tenth of it; against the adapter alone on features in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from statistics import median

import numpy as np
import torch

from veil.data.sample import Sample
from veil.features.bank import Bank, LabelNames, VideoFeatures
from veil.features.store import Store
from veil.features.store_table import StoreInfo

DIM, READ = 768, 512


def filled(folder: Path, count: int, clips: int, array: Path | None = None) -> Store:
    """A store of random features, and the same as an .npy file."""
    store = Store.create(folder, StoreInfo("bench", "0" * 64, DIM))
    flat = None
    if array is not None:
        flat = np.lib.format.open_memmap(array, "w+", np.float16, (count, clips, DIM))
    rng = torch.Generator().manual_seed(0)
    step = max(1, 16_000 // clips)  # videos, as many as `veil features extract` adds at once
    for at in range(0, count, step):
        size = min(step, count - at)
        vectors = torch.randn(size, clips, DIM, generator=rng).half()
        if flat is not None:
            flat[at : at + size] = vectors.numpy()
        starts = 0.64 * torch.arange(clips)
        rows = [
            VideoFeatures(Sample(f"{at + i:07d}", "train"), row, starts, 9.0, 0.64, torch.zeros(0, DIM))
            for i, row in enumerate(vectors.float())
        ]
        store.append(rows, LabelNames())
    return store


def taken(ways: dict[str, Callable[[], object]], rounds: int, before: Callable[[], None]) -> dict[str, float]:
    """Milliseconds of each way, the median of rounds in which all take turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            before()
            begin = time.perf_counter()
            way()
            if number:  # the first is for warming
                times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: median(some) for name, some in times.items()}


def forget(folder: Path) -> None:
    """Drop the files from the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.fdatasync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


class Both:
    """The store and the file, opened and ready."""

    def __init__(self, folder: Path) -> None:
        self.open(folder)

    def open(self, folder: Path) -> None:
        self.flat = np.load(folder / "flat.npy", mmap_mode="r")
        self.store = Store.open(folder / "store")
        self.store.read([0])

    def close(self) -> None:
        del self.flat, self.store


def reads(folder: Path, count: int, clips: int) -> dict[str, object]:
    begin = time.perf_counter()
    filled(folder / "store", count, clips, folder / "flat.npy")
    wrote = time.perf_counter() - begin
    begin = time.perf_counter()
    both = Both(folder)
    opened = time.perf_counter() - begin
    rng = np.random.default_rng(0)
    rows = rng.choice(count, READ, replace=False)

    def draw() -> None:
        nonlocal rows
        rows = rng.choice(count, READ, replace=False)

    for _ in range(20):  # both answer alike
        draw()
        assert np.array_equal(both.store.read(rows).clips.numpy(), both.flat[rows])
    ways: dict[str, Callable[[], object]] = {
        "map": lambda: both.flat[rows],
        "store": lambda: both.store.read(rows),
        "lance": lambda: both.store._dataset.take(rows.tolist(), columns=["clips"]),
    }
    np.asarray(both.flat).sum(dtype=np.float32)  # now all of it is in memory
    warm = taken(ways, 41, draw)

    def cold() -> None:
        draw()
        both.close()  # what is mapped cannot be forgotten
        forget(folder)
        both.open(folder)

    first = taken({name: ways[name] for name in ("map", "store")}, 7, cold)
    return {
        "videos": count,
        "shape": [clips, DIM],
        "written_s": round(wrote, 1),
        "open_s": round(opened, 3),
        "warm_ms": {name: round(value, 2) for name, value in warm.items()},
        "warm_ratio": round(warm["store"] / warm["map"], 2),
        "lance_ratio": round(warm["lance"] / warm["map"], 2),
        "cold_ms": {name: round(value, 2) for name, value in first.items()},
        "cold_ratio": round(first["store"] / first["map"], 2),
    }


def extraction(folder: Path, count: int, workers: int) -> dict[str, object]:
    from veil.apps.features import extract_videos
    from veil.data.frames import read_frames
    from veil.features import encoders
    from veil.features.inputs import read_videos
    from veil.media.sinks import open_sink
    from veil.media.video import FrameTime, VideoInfo

    place = folder / "videos"
    place.mkdir()
    rng = np.random.default_rng(0)
    wide = rng.integers(0, 256, (120, 300, 3), np.uint8)
    for number in range(count):
        info = VideoInfo(160, 120, Fraction(25), 64, Fraction(1, 25))
        with open_sink(place / f"{number:04d}.mp4", info) as sink:
            frames = np.stack([wide[:, i + number % 60 : i + number % 60 + 160] for i in range(64)])
            sink.write(frames, [FrameTime(i, 1) for i in range(64)])
    encoder = encoders.make("veil")
    dataset = read_videos([str(place)])
    begin = time.perf_counter()
    for sample in dataset.samples:
        read_frames(sample)
    decoding = time.perf_counter() - begin
    clip = torch.rand(32, 3, encoder.length, encoder.size, encoder.size)
    encoder.pooled(clip)
    begin = time.perf_counter()
    for _ in range(4):
        encoder.pooled(clip)
    encoding = (time.perf_counter() - begin) / 128 * count * 14  # 4 clips and 10 static ones of each video
    result: dict[str, object] = {"videos": count, "clips": 14 * count, "decode_s": round(decoding, 2)}
    result["encode_s"] = round(encoding, 2)
    for number in sorted({1, workers}):
        begin = time.perf_counter()
        extract_videos([str(place)], folder / f"store{number}", workers=number)
        took = time.perf_counter() - begin
        result[f"workers_{number}"] = {
            "s": round(took, 2),
            "videos_per_s": round(count / took, 1),
            "to_decode_and_encode": round(took / (decoding + encoding), 2),
        }
    return result


def anonymization(folder: Path, count: int, clips: int, layers: int) -> dict[str, object]:
    result: dict[str, object] = {"layers": layers, "threads": torch.get_num_threads()}
    peaks = []
    for name, size in (("tenth", count // 10), ("whole", count)):
        filled(folder / name, size, clips)
        ran = subprocess.run(
            [sys.executable, __file__, "child", str(folder / name), "--layers", str(layers)],
            check=True,
            capture_output=True,
            text=True,
        )
        result[name] = record = json.loads(ran.stdout.splitlines()[-1])
        peaks.append(record["peak_mb"])
        shutil.rmtree(folder / name)
        shutil.rmtree(folder / f"{name}-anonymized")
    result["peak_ratio"] = round(peaks[1] / peaks[0], 2)
    return result


def child(store: Path, layers: int) -> dict[str, object]:
    from veil.features.adapter import NetworkAdapter
    from veil.features.anonymize import anonymize_store

    torch.manual_seed(0)
    adapter = NetworkAdapter(DIM, layers=layers).eval().requires_grad_(False)
    bank = next(whole(store))
    adapter.set_encoder(bank)
    begin = time.perf_counter()
    adapter(bank.clips, bank.mask)
    alone = (time.perf_counter() - begin) / int(bank.counts.sum())
    done = anonymize_store(store, adapter, store.with_name(f"{store.name}-anonymized"))
    return {
        "clips": done.clips,
        "s": round(done.seconds, 1),
        "clips_per_s": round(done.clips / done.seconds),
        "to_adapter_alone": round(done.seconds / (alone * done.clips), 2),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def whole(store: Path) -> Iterator[Bank]:
    yield from Store.open(store).batches(256)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["reads", "extract", "anonymize", "child"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--videos", type=int)
    parser.add_argument("--clips", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--layers", type=int, default=3)
    given = parser.parse_args()
    if given.part == "child":
        print(json.dumps(child(given.folder, given.layers)))
        return
    given.folder.mkdir(parents=True)
    try:
        if given.part == "reads":
            result = reads(given.folder, given.videos or 100_000, given.clips)
        elif given.part == "extract":
            result = extraction(given.folder, given.videos or 48, given.workers)
        else:
            result = anonymization(given.folder, given.videos or 125_000, given.clips, given.layers)
        print(json.dumps(result))
    finally:
        shutil.rmtree(given.folder)


if __name__ == "__main__":
    main()
