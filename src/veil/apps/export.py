"""`veil export`: a learned anonymizer, or an adapter of features, as one ONNX file that needs no torch.

What is written was compared with torch on real frames: the largest difference is told and stands in the file, and a file that
differs is not written. With ``int8``, weights and what flows between layers are rounded to 8 bits in ranges that are measured on
real frames, and compared again, on frames that no range was measured on. What leaves a network that was rounded is other
pictures: audit it before use (`veil audit --compare RUN model.onnx`).

How a video goes through the file stands in it (`side`, `skip`, `past`, `block`, `future`, `square`): see `veil.methods.network`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from veil.apps.demo import sample
from veil.core import Frames, VeilError, __version__
from veil.data import Dataset, Sample, read
from veil.data.frames import read_frames
from veil.features import encoders, splavu
from veil.features.adapter import ITSELF, Adapter
from veil.features.bank import extract
from veil.media.sources import open_source
from veil.methods import builtin, learned, make
from veil.methods.network import Redraw, Shape, redrawn
from veil.methods.prototypes import Prototypes
from veil.methods.stprivacy import TokenSelection
from veil.nn import onnx
from veil.nn.unet import ImageToImage

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 20  # the first that knows the sampling of `elr`
OFF = 1e-3  # of the values: so many may lie further from torch than rounding explains
LOST = 16.0  # tolerances by which int8 may differ in the mean
FRAMES, CLIPS = 96, 24  # of each video, and in all, that are looked at
ONE_SIZE = (Prototypes, TokenSelection)  # whose pictures or places are of one size

Inputs = dict[str, np.ndarray]  # of one run, by name


@dataclass(frozen=True)
class Difference:
    """How far a model is from torch: in levels of 255, or of features in standard deviations."""

    largest: float
    mean: float
    off: float  # the share that is further away than rounding explains
    n: int  # values that were compared

    def words(self, unit: str) -> str:
        """The same for people."""
        return f"at most {self.largest:.3g} {unit}, {self.mean:.2g} in the mean"


@dataclass(frozen=True)
class Rounded:
    """What int8 changed: before and after."""

    difference: Difference
    bytes: tuple[int, int]
    milliseconds: tuple[float, float]  # of one run


@dataclass(frozen=True)
class Written:
    """What `export` wrote."""

    path: Path
    method: str
    unit: str
    looked_at: str  # what it was compared on
    shape: str  # of what goes in
    difference: Difference
    bytes: int
    int8: Rounded | None

    def lines(self) -> list[str]:
        """For the screen."""
        said = [
            f"{self.path}: {self.method}, {self.bytes / 1e6:.2f} MB, {self.shape}.",
            f"against torch on {self.looked_at}: {self.difference.words(self.unit)} ({self.difference.n} values).",
        ]
        if self.int8:
            (large, small), (slow, quick) = self.int8.bytes, self.int8.milliseconds
            said += [
                f"{'':10}{'before':>12}{'int8':>12}",
                f"{'size':10}{large / 1e6:>9.2f} MB{small / 1e6:>9.2f} MB",
                f"{'a run':10}{slow:>9.1f} ms{quick:>9.1f} ms",
                f"{'mean off':10}{self.difference.mean:>12.3g}{self.int8.difference.mean:>12.3g} {self.unit}",
                f"{'at most':10}{self.difference.largest:>12.3g}{self.int8.difference.largest:>12.3g} {self.unit}",
                "what leaves in int8 is not what was audited before: audit it before use.",
            ]
        return said


class Subject(Protocol):
    """What is exported: an anonymizer or an adapter."""

    name: str
    kind: str  # frames, features
    output: str
    unit: str
    tolerance: float  # in this unit, what rounding explains
    net: nn.Module

    def answer(self, *inputs: Tensor) -> Tensor:
        """What the file will hold."""
        ...

    def torch(self, inputs: Inputs) -> np.ndarray:
        """What torch makes of one run's inputs, as the method itself runs it."""
        ...

    def inputs(self, videos: Sequence[str]) -> tuple[list[Inputs], str]:
        """Real ones, and in words what they are."""
        ...

    def example(self) -> tuple[dict[str, Tensor], dict[str, dict[int, str]], str]:
        """What it is traced with, which axes are free, and that in words."""
        ...

    def far(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """How far two answers are apart, value by value."""
        ...

    def told(self) -> dict[str, Any]:
        """What the file says of itself."""
        ...

    def rounds(self, node: str) -> bool:
        """Whether a layer, by its name, may be rounded to 8 bits."""
        ...


def export(
    method: str,
    output: str | Path,
    *,
    int8: bool = False,
    calibrate: Sequence[str] = (),
    overwrite: bool = False,
) -> Written:
    """Write a method, the folder of a run or a built-in one such as ``prototypes``, to a file that ends in .onnx.

    `calibrate` are videos to compare (and measure ranges) on; by default the demo's, and some of the synthetic world.
    Raises `VeilError`, and writes nothing, where the file would do something else than torch does.
    """
    output = Path(output)
    if output.suffix.lower() != ".onnx":
        raise VeilError(f"{output} would not be found again as a model: let its name end in .onnx.")
    if output.exists() and not overwrite:
        raise VeilError(f"{output} exists already; pass --overwrite to replace it.")
    subject = _subject(method)
    inputs, looked_at = subject.inputs(calibrate)
    examples, free, shape = subject.example()
    try:
        model = onnx.traced(subject.net, subject.answer, examples, subject.output, free, OPSET)
    except (torch.onnx.errors.OnnxExporterError, RuntimeError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise VeilError(f"{subject.name} cannot be written as ONNX ({why}): run it with torch.") from error
    wanted = [subject.torch(given) for given in inputs]
    plain = model.SerializeToString()
    found, slow = _compared(subject, plain, inputs, wanted)
    if not found.off <= OFF:
        raise VeilError(
            f"{output} was not written: the model of {subject.name} differs from torch by "
            f"{found.words(subject.unit)}, on {looked_at}."
        )
    rounded: Rounded | None = None
    if int8:
        measured, judged = (inputs[::2], slice(1, None, 2)) if len(inputs) > 1 else (inputs, slice(None))
        model = _rounded(subject, model, measured)
        small = model.SerializeToString()
        after, quick = _compared(subject, small, inputs[judged], wanted[judged])
        if not after.mean <= LOST * subject.tolerance:
            raise VeilError(
                f"{output} was not written: in int8, {subject.name} differs from torch by {after.words(subject.unit)}: "
                "export it without --int8, or calibrate on videos like yours."
            )
        rounded = Rounded(after, (len(plain), len(small)), (slow, quick))
    told = {
        "veil": __version__,
        "kind": subject.kind,
        "method": subject.name,
        "int8": None if rounded is None else asdict(rounded.difference),
        "torch": {**asdict(found), "unit": subject.unit, "on": looked_at},
        **subject.told(),
    }
    onnx.save(model, output, told, overwrite=overwrite)
    return Written(
        output, subject.name, subject.unit, looked_at, shape, found, output.stat().st_size, rounded
    )


def _compared(
    subject: Subject, model: bytes, inputs: Sequence[Inputs], wanted: Sequence[np.ndarray]
) -> tuple[Difference, float]:
    """How far a model is from what torch made, and the milliseconds of a run (the least of all)."""
    session = onnx.session(model)
    apart, least = [], float("inf")
    for given, right in zip(inputs, wanted, strict=True):
        begun = time.perf_counter()
        try:
            (made,) = session.run(None, given)
        except Exception as error:  # onnxruntime's own classes derive from Exception alone
            why = str(error).splitlines()[0]
            raise VeilError(
                f"the model of {subject.name} does not run ({why}): run it with torch."
            ) from error
        least = min(least, time.perf_counter() - begun)
        apart.append(subject.far(np.asarray(made), right).ravel())
    every = np.concatenate(apart)
    off = float((every > subject.tolerance).mean())
    return Difference(float(every.max()), float(every.mean()), off, len(every)), 1e3 * least


def _rounded(subject: Subject, model: ModelProto, inputs: Sequence[Inputs]) -> ModelProto:
    """The model with layers in 8 bits, in ranges that are measured on the inputs."""
    import logging

    import onnx as format_
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    held = {weight.name for weight in model.graph.initializer}
    layers = [
        node.name
        for node in model.graph.node
        if (node.op_type == "Conv" or (node.op_type in ("Gemm", "MatMul") and node.input[1] in held))
        and subject.rounds(node.name)
    ]
    if not layers:
        raise VeilError(f"{subject.name} has no layer that int8 makes smaller: leave out --int8.")

    class Given(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = iter(inputs)

        def get_next(self) -> dict[str, Any]:
            return next(self._left, None)  # type: ignore[return-value]

    before = logging.root.level
    logging.root.setLevel(logging.ERROR)  # it advises to prepare the model, which changes nothing here
    try:
        with tempfile.TemporaryDirectory(prefix="veil-") as folder:
            path = Path(folder) / "model.onnx"
            quantize_static(
                model,
                path,
                Given(),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=["Conv", "Gemm", "MatMul"],
                nodes_to_quantize=layers,
                per_channel=True,
                # Seven bits for weights: without them, sums overflow on processors that have no VNNI.
                reduce_range=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
            return format_.load(str(path))
    finally:
        logging.root.setLevel(before)


def _subject(method: str) -> Subject:
    """What a name or a folder is, to be exported."""
    folder = Path(method)
    if folder.is_dir():
        if _kind(folder) == "splavu":
            return Latents(splavu.load(folder))
        run = learned.load(folder)
        return Pictures(_kind(folder), run.made[0], run.shape)
    anonymizer = make(method)
    if isinstance(anonymizer, builtin.Prototypes):
        return Pictures("prototypes", prototypes(), anonymizer.shape)
    raise VeilError(
        f"{method} is not learned, and there is nothing to export: name the folder of a run of `veil train`, or prototypes."
    )


def _kind(folder: Path) -> str:
    try:
        return str(json.loads((folder / "run.json").read_text())["kind"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # whoever loads it says what is wrong


class Pictures:
    """An anonymizer: ``frames`` ``(N, T, h, w, 3)`` in bytes to ``drawn`` ones."""

    kind, output, unit, tolerance = "frames", "drawn", "levels of 255", 1.0

    def __init__(self, name: str, net: nn.Module, shape: Shape) -> None:
        self.name, self.net = name, net.eval()
        self._one = isinstance(net, ONE_SIZE)
        self.shape = shape._replace(square=shape.square or self._one)
        self._alone = shape.block == 1 and shape.past == 0 and shape.future == 0

    def answer(self, *inputs: Tensor) -> Tensor:
        """See `Subject`."""
        (frames,) = inputs
        image = getattr(self.net, "net", None)
        if self._alone and isinstance(image, ImageToImage):
            flat = frames.flatten(0, 1).permute(0, 3, 1, 2).float() / 255  # (N·T, 3, h, w)
            drawn = image.draw(flat).permute(0, 2, 3, 1)
        elif self._alone:  # one clip of them all, so that any number of clips is one
            drawn = self.net(frames.flatten(0, 1).permute(3, 0, 1, 2)[None].float() / 255)[0].permute(
                1, 2, 3, 0
            )
        else:
            drawn = self.net(frames.permute(0, 4, 1, 2, 3).float() / 255).permute(0, 2, 3, 4, 1)
        return _bytes(drawn).reshape(frames.shape)

    def torch(self, inputs: Inputs) -> np.ndarray:
        """See `Subject`."""
        with torch.inference_mode():
            clips = torch.from_numpy(inputs["frames"]).permute(0, 4, 1, 2, 3).float() / 255
            return _bytes(self.net(clips)).permute(0, 2, 3, 4, 1).numpy()

    def inputs(self, videos: Sequence[str]) -> tuple[list[Inputs], str]:
        """See `Subject`."""
        clips: list[Frames] = []
        for path in videos:
            with closing(open_source(path)) as source:
                frames = islice((frame for window in source.windows() for frame in window.frames), FRAMES)
                clips += _clips(np.stack(list(frames)), self.shape)
        words = f"{len(videos)} video{'s' * (len(videos) > 1)}"
        if not videos:
            clips += _clips(sample(FRAMES // 2, (160, 120)), self.shape)
            world = read("synthetic", size=96, count=8)
            for video in world.samples:
                clips += _clips(world.frames(video), self.shape)
            words = "the demo's video and 8 of the synthetic world"
        # Spread over all videos; those of one size apart, for a run takes one size.
        chosen = [clips[i] for i in np.unique(np.linspace(0, len(clips) - 1, CLIPS).astype(int))]
        return [{"frames": clip} for clip in chosen], words

    def example(self) -> tuple[dict[str, Tensor], dict[str, dict[int, str]], str]:
        """See `Subject`."""
        shape = self.shape
        length = shape.past + shape.block + shape.future
        free = {0: "batch"}
        words = [f"clips of {length} frames"]
        if self._alone:
            free[1], words = "time", ["any number of frames"]
        if self._one:
            words.append(f"{shape.side}×{shape.side} pixels (frames are pressed into that)")
        else:
            free |= {2: "height", 3: "width"}
            words.append("any multiples of 16 pixels")
        side = max(shape.side, 48)  # unlike every other length, so that nothing is mistaken for it
        if self._one:
            side = shape.side
        example = torch.zeros(1 if self._alone else 2, length, side, side, 3, dtype=torch.uint8)
        return {"frames": example}, {"frames": free, self.output: free}, ", ".join(words)

    def far(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """See `Subject`."""
        return np.abs(one.astype(np.int16) - other).astype(np.float32)

    def told(self) -> dict[str, Any]:
        """See `Subject`."""
        return {
            **self.shape._asdict(),
            "stream": "bring the shorter side to `side` (both to it, where square) and both to multiples of 16; of "
            "every `skip`-th frame give `past` + `block` + `future` in bytes, and take the `block`; then bring them back",
        }

    def rounds(self, node: str) -> bool:
        """See `Subject`."""
        return True


class Latents:
    """An adapter: ``features`` ``(B, N, D)`` to ``changed`` ones."""

    kind, output, unit, tolerance = "features", "changed", "deviations", 0.02

    def __init__(self, adapter: Adapter) -> None:
        self.name, self.adapter = "splavu", adapter
        self.net: nn.Module = adapter
        self._masked = adapter.context != "clip" and not isinstance(adapter.layers, nn.Sequential)

    def answer(self, *inputs: Tensor) -> Tensor:
        """See `Subject`."""
        adapter = self.adapter
        features, mask = inputs[0], inputs[1] if self._masked else None
        x = adapter.standard((features - adapter.mean) / adapter.scale, mask)
        if len(adapter.others):
            x = self._same(x)
        return x * adapter.scale + adapter.mean

    def _same(self, x: Tensor) -> Tensor:
        """As the adapter's own, by products instead of `cdist`, which as ONNX would hold every difference at once."""
        adapter = self.adapter
        there = x.flatten(0, 1) @ adapter.whiten  # (B·N, R)
        places = adapter.places
        apart = there.square().sum(1, keepdim=True) - 2 * there @ places.T + places.square().sum(1)
        least = ITSELF**2 * adapter.whiten.shape[1]
        apart = torch.where(apart < least, torch.full_like(apart, torch.finfo(torch.float32).max), apart)
        near = apart.topk(adapter.neighbours, 1, largest=False).indices
        return adapter.others[near].mean(1).reshape(x.shape)

    def torch(self, inputs: Inputs) -> np.ndarray:
        """See `Subject`."""
        given = [torch.from_numpy(value) for value in inputs.values()]
        with torch.inference_mode():
            return self.adapter(*given).numpy()

    def inputs(self, videos: Sequence[str]) -> tuple[list[Inputs], str]:
        """See `Subject`."""
        adapter = self.adapter
        try:
            encoder = encoders.make(adapter.encoder)
        except VeilError:
            encoder = None
        if encoder is not None and encoder.fingerprint == adapter.fingerprint:
            data = read("synthetic", size=encoder.size, count=32)
            words = f"{adapter.encoder} features of 32 videos of the synthetic world"
            if videos:
                samples = [Sample(str(i), "test", Path(path)) for i, path in enumerate(videos)]
                data = Dataset("videos", samples, read_frames)
                words = f"{adapter.encoder} features of {len(videos)} video{'s' * (len(videos) > 1)}"
            bank = extract(data, encoder, stills=0)
            clips, mask = bank.clips, bank.mask
        elif videos:
            raise VeilError(
                f"the encoder {adapter.encoder} that this adapter was trained with is not at hand, so that no features of "
                f"{videos[0]} can be made: leave out --calibrate."
            )
        else:
            dice = torch.Generator().manual_seed(0)
            clips = torch.randn(32, 4, adapter.dim, generator=dice) * adapter.scale + adapter.mean
            mask = torch.ones(32, 4, dtype=torch.bool)
            words = f"numbers drawn with the mean and deviation of {adapter.encoder} features, which is not at hand"
        given = [
            {"features": some.float().numpy(), **({"mask": there.numpy()} if self._masked else {})}
            for some, there in zip(clips.split(4), mask.split(4), strict=True)
        ]
        return given, words

    def example(self) -> tuple[dict[str, Tensor], dict[str, dict[int, str]], str]:
        """See `Subject`."""
        free = {0: "videos", 1: "clips"}
        # Two clips: of one, the adapter knows that it is alone, and the trace would too.
        examples = {"features": torch.zeros(3, 2, self.adapter.dim)}
        if self._masked:
            examples["mask"] = torch.ones(3, 2, dtype=torch.bool)
        return (
            examples,
            dict.fromkeys([*examples, self.output], free),
            f"any number of videos and clips, {self.adapter.dim} numbers each",
        )

    def far(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """See `Subject`."""
        return np.abs(one - other) / self.adapter.scale.clamp_min(1e-6).numpy()

    def told(self) -> dict[str, Any]:
        """See `Subject`."""
        adapter = self.adapter
        return {
            "dim": adapter.dim,
            "encoder": adapter.encoder,
            "fingerprint": adapter.fingerprint,
            "stream": "give the features of a video's clips together, and where there is a mask, which of them are there",
        }

    def rounds(self, node: str) -> bool:
        """See `Subject`: not what is taken out in closed form, nor who is nearest, which must be exact."""
        return "/layers." in node


def prototypes() -> Prototypes:
    """The built-in network in torch, filled from the weights in its ONNX file."""
    import onnx as format_
    from onnx import numpy_helper

    model = format_.load(str(builtin.BUILTIN_PROTOTYPES))
    held = {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}
    state = {
        name.removeprefix("net.").removesuffix("_16"): torch.tensor(values.astype(np.float32))
        for name, values in held.items()
        if name.startswith("net.")
    }
    for node in model.graph.node:  # the exporter renamed the weights of norms, but not their places
        place = node.name.rpartition("/")[0].rpartition("/")[2]
        if node.op_type in ("Mul", "Add") and place:
            for name in node.input:
                if name.startswith("onnx::"):
                    what = "weight" if node.op_type == "Mul" else "bias"
                    state[f"{place}.{what}"] = torch.tensor(held[name].ravel())
    told: Mapping[str, Any] = {prop.key: json.loads(prop.value) for prop in model.metadata_props}
    net = Prototypes(told["cell"], len(state["exit.weight"][0]), loose=told["loose"])
    net.load_state_dict(state)
    return net.eval()


def _bytes(drawn: Tensor) -> Tensor:
    return (drawn * 255).round().clamp(0, 255).to(torch.uint8)


def _clips(frames: Frames, shape: Shape) -> Iterator[Frames]:
    """What a network of that shape is given of a video, run by run."""
    given: list[Frames] = []

    def keep(clips: Frames) -> Frames:
        given.append(clips)
        return clips

    redraw: Redraw = keep
    for _ in redrawn([frames], redraw, shape, learned.CHUNK):
        yield from given
        given.clear()
