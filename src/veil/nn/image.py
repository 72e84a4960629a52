"""Networks over images ``(B, 3, H, W)``, by name, and how published weights get into a network.

Every network gives features ``(B, dim)`` and logits ``(B, K)``, takes any size, and names its tensors as the
published weights do. What goes in is standardised with the mean and deviation that `IMAGE_NETS` tells;
nothing is standardised inside. Nothing is fetched unless ``weights="hub"`` asks for it, and a file of weights
is read as numbers only: it can run nothing.
"""

from __future__ import annotations

import difflib
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import get_weight, resnet

from veil.core import VeilError

RGB = tuple[float, float, float]


class Network(nn.Module):
    """Images or clips in, logits ``(B, K)`` out, through features ``(B, dim)``."""

    dim: int
    last: str  # the name of the layer that makes logits of features
    dropout: float = 0.0  # of the features, in training
    loaded: int = 0  # how many tensors came from a file or a hub

    def features(self, x: Tensor) -> Tensor:
        """What the network sees in images ``(B, 3, H, W)`` or clips ``(B, 3, T, H, W)``: ``(B, dim)``."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(B, K)``."""
        return self.get_submodule(self.last)(F.dropout(self.features(x), self.dropout, self.training))


@dataclass(frozen=True)
class Net:
    """One entry of a table of networks."""

    build: Callable[..., Network]  # (outputs, *, frames=16, size=112)
    parameters: int  # with the published number of classes
    classes: int
    source: str  # where weights are published; a first word 'torchvision' or 'timm' is a hub they can be fetched from
    mean: RGB  # what those weights expect of values in [0, 1]
    std: RGB
    size: int  # height and width at which it was published
    frames: int = 1


class ResNet(Network, resnet.ResNet):
    """ResNets (He et al. 2016, arXiv 1512.03385), as torchvision has them."""

    last = "fc"

    def __init__(
        self,
        outputs: int,
        *,
        block: type[resnet.BasicBlock | resnet.Bottleneck] = resnet.BasicBlock,
        depth: Sequence[int] = (2, 2, 2, 2),
        frames: int = 16,
        size: int = 112,
    ) -> None:
        del frames, size  # any will do
        super().__init__(block, list(depth), num_classes=outputs)
        self.dim = self.fc.in_features

    def features(self, x: Tensor) -> Tensor:
        """The mean over the picture after the last block."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3))


class _Separable(nn.Module):
    """A convolution over the picture, channel by channel, then one over the channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv_pw = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.bn1(self.conv_dw(x)))
        return F.relu6(self.bn2(self.conv_pw(x)))


class MobileNetV1(Network):
    """MobileNet (Howard et al. 2017, arXiv 1704.04861), its tensors named as in timm."""

    last = "classifier"
    dim = 1024

    def __init__(self, outputs: int, *, frames: int = 16, size: int = 112) -> None:
        del frames, size  # any will do
        super().__init__()
        self.conv_stem = nn.Conv2d(3, 32, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        widths, depths = (32, 64, 128, 256, 512, 1024), (1, 2, 2, 6, 2)
        self.blocks = nn.Sequential()
        for stage, ((inputs, width), depth) in enumerate(zip(pairwise(widths), depths, strict=True)):
            first = _Separable(inputs, width, stride=2 if stage else 1)
            self.blocks.append(nn.Sequential(first, *(_Separable(width, width, 1) for _ in range(depth - 1))))
        self.classifier = nn.Linear(self.dim, outputs)
        start(self)

    def features(self, x: Tensor) -> Tensor:
        """The mean over the picture after the last block."""
        return self.blocks(F.relu6(self.bn1(self.conv_stem(x)))).mean((2, 3))


class _Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        split = self.qkv(x).unflatten(2, (3, self.heads, -1))  # (B, N, 3, heads, dim of a head)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))  # (B, N, dim)


class _Layer(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = _Attention(dim, heads)
        inner = [("fc1", nn.Linear(dim, 4 * dim)), ("act", nn.GELU()), ("fc2", nn.Linear(4 * dim, dim))]
        self.mlp = nn.Sequential(OrderedDict(inner))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(Network):
    """ViT-B (Dosovitskiy et al. 2021, arXiv 2010.11929), its tensors named as in timm.

    Positions are kept as published, for 224², and resampled to the grid of whatever comes in; a picture that is
    no multiple of the patch is filled up with zeros, which is grey after standardisation.
    """

    last = "head"
    dim = 768

    def __init__(self, outputs: int, *, patch: int = 16, frames: int = 16, size: int = 112) -> None:
        del frames, size  # any will do
        super().__init__()
        self.patch, self.grid = patch, 224 // patch
        self.cls_token = nn.Parameter(torch.zeros(1, 1, self.dim))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + self.grid**2, self.dim))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, self.dim, patch, patch)})
        self.blocks = nn.Sequential(*(_Layer(self.dim, heads=12) for _ in range(12)))
        self.norm = nn.LayerNorm(self.dim, eps=1e-6)
        self.head = nn.Linear(self.dim, outputs)
        nn.init.normal_(self.cls_token, std=1e-6)
        nn.init.normal_(self.pos_embed, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def features(self, x: Tensor) -> Tensor:
        """The class token after the last layer."""
        height, width = x.shape[2:]
        x = self.patch_embed["proj"](F.pad(x, (0, -width % self.patch, 0, -height % self.patch)))
        place = self._positions(x.shape[2], x.shape[3])
        tokens = x.flatten(2).transpose(1, 2)  # (B, N, dim)
        tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], dim=1) + place
        return self.norm(self.blocks(tokens))[:, 0]

    def _positions(self, rows: int, columns: int) -> Tensor:
        if rows == columns == self.grid:
            return self.pos_embed
        own, place = self.pos_embed[:, :1], self.pos_embed[:, 1:]
        place = place.transpose(1, 2).unflatten(2, (self.grid, self.grid))  # (1, dim, grid, grid)
        place = F.interpolate(place, (rows, columns), mode="bicubic", antialias=True)
        return torch.cat([own, place.flatten(2).transpose(1, 2)], dim=1)


class _Block2d(nn.Module):
    """Two convolutions beside a shortcut; the first halves height and width where channels change."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride == 2:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, 2, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class Small2d(Network):
    """A small residual network, made to be trained from scratch on two CPU cores at about 56²."""

    last = "fc"

    def __init__(
        self,
        outputs: int,
        *,
        widths: Sequence[int] = (16, 32, 64, 112),
        frames: int = 16,
        size: int = 112,
    ) -> None:
        del frames, size  # any will do
        super().__init__()
        self.dim = widths[-1]
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 5, 2, 2, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)
        )
        self.blocks = nn.Sequential(*(_Block2d(a, b) for a, b in pairwise(widths)))
        self.fc = nn.Linear(self.dim, outputs)
        start(self)
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def features(self, x: Tensor) -> Tensor:
        """The mean over the picture after the last block."""
        x = x.contiguous(memory_format=torch.channels_last)  # faster on a CPU
        return self.blocks(self.stem(x)).mean((2, 3))


def start(net: nn.Module) -> None:
    """Fresh weights, after He et al. 2015 (arXiv 1502.01852)."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)


HALVES: tuple[RGB, RGB] = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
_IMAGENET: tuple[RGB, RGB, int] = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224
_HALVES: tuple[RGB, RGB, int] = *HALVES, 224
_resnet34 = partial(ResNet, depth=(3, 4, 6, 3))
_resnet50 = partial(ResNet, block=resnet.Bottleneck, depth=(3, 4, 6, 3))
_resnet101 = partial(ResNet, block=resnet.Bottleneck, depth=(3, 4, 23, 3))
_resnet152 = partial(ResNet, block=resnet.Bottleneck, depth=(3, 8, 36, 3))
_vit_b_16, _vit_b_32 = partial(ViT, patch=16), partial(ViT, patch=32)

IMAGE_NETS: dict[str, Net] = {
    "resnet18": Net(ResNet, 11_689_512, 1000, "torchvision ResNet18_Weights.IMAGENET1K_V1", *_IMAGENET),
    "resnet34": Net(_resnet34, 21_797_672, 1000, "torchvision ResNet34_Weights.IMAGENET1K_V1", *_IMAGENET),
    "resnet50": Net(_resnet50, 25_557_032, 1000, "torchvision ResNet50_Weights.IMAGENET1K_V1", *_IMAGENET),
    "resnet101": Net(_resnet101, 44_549_160, 1000, "torchvision ResNet101_Weights.IMAGENET1K_V1", *_IMAGENET),
    "resnet152": Net(_resnet152, 60_192_808, 1000, "torchvision ResNet152_Weights.IMAGENET1K_V1", *_IMAGENET),
    "mobilenet_v1": Net(MobileNetV1, 4_231_976, 1000, "timm mobilenetv1_100.ra4_e3600_r224_in1k", *_HALVES),
    "vit_b_16": Net(_vit_b_16, 86_567_656, 1000, "timm vit_base_patch16_224.augreg_in21k_ft_in1k", *_HALVES),
    "vit_b_32": Net(_vit_b_32, 88_224_232, 1000, "timm vit_base_patch32_224.augreg_in21k_ft_in1k", *_HALVES),
    "small2d": Net(Small2d, 259_866, 10, "nowhere: it is trained from scratch", *HALVES, 56),
}


def make(
    name: str, outputs: int, *, frames: int = 16, size: int = 112, weights: Path | str | None = None
) -> Network:
    """The image network of that name with `outputs` logits; `weights` as `build` takes them.

    >>> make("small2d", 7).features(torch.zeros(2, 3, 56, 56)).shape
    torch.Size([2, 112])
    """
    return build(IMAGE_NETS, name, outputs, frames=frames, size=size, weights=weights)


def build(
    nets: Mapping[str, Net], name: str, outputs: int, *, frames: int, size: int, weights: Path | str | None
) -> Network:
    """The network of that name in a table, fresh or with published weights.

    `frames` and `size` are what it will see. `weights` is a published file of this network (.pth, .pt,
    .safetensors), or "hub" to fetch it where torchvision or timm know it. All of the network must be in it but
    the last layer, which stays fresh where its shape is another; `Network.loaded` counts what was taken.
    """
    if name not in nets:
        near = difflib.get_close_matches(name, nets, 1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(nets)}."
        raise VeilError(f"there is no network '{name}': {hint}")
    if min(outputs, frames, size) < 1:
        raise VeilError(f"a network needs at least 1: outputs={outputs}, frames={frames}, size={size}.")
    net = nets[name].build(outputs, frames=frames, size=size)
    if weights is not None:
        source = nets[name].source if weights == "hub" else str(weights)
        state = fetch_state(name, nets[name]) if weights == "hub" else read_state(Path(weights))
        wrong = f"{source} is no file of weights of '{name}'"
        net.loaded = fill(net, state, wrong, (f"{net.last}.",))
    return net


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a file of weights by name, out of what training scripts wrap around them."""
    if not path.is_file():
        raise VeilError(f"the file of weights {path} does not exist: check the name.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            held = load_file(path)
        else:
            # Some files hold several times what is taken from them; the rest need not be read.
            mapped = zipfile.is_zipfile(path)  # older ones cannot be
            held = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except ImportError as error:
        raise VeilError(f"{path} cannot be read: run `pip install safetensors` first.") from error
    except pickle.UnpicklingError as error:
        raise VeilError(
            f"{path} is refused: it is no file of weights, or holds more than numbers, and such a file can run code."
        ) from error
    # A broken file can fail in any way.
    except Exception as error:
        raise VeilError(f"{path} is no file of weights ({_said(error)}): get it again.") from error
    while isinstance(held, Mapping) and (wrapped := _wrapped(held)) is not None:
        held = held[wrapped]
    if not isinstance(held, Mapping) or not all(isinstance(value, Tensor) for value in held.values()):
        raise VeilError(f"{path} holds no table of named tensors: give the file as it was published.")
    if held and all(str(key).startswith("module.") for key in held):  # saved from a model on several GPUs
        return {str(key).removeprefix("module."): value for key, value in held.items()}
    return {str(key): value for key, value in held.items()}


# V-JEPA's files hold two encoders; the averaged one, which is the better, comes first here.
_WRAPPERS = ("state_dict", "model_state", "model", "module", "target_encoder", "encoder")


def _wrapped(held: Mapping[str, object]) -> str | None:
    return next(
        (key for key in _WRAPPERS if isinstance(held.get(key), Mapping)),
        None,
    )


def _said(error: Exception) -> str:
    """The first sentence of what an error says."""
    return str(error).partition("\n")[0].partition(". ")[0].rstrip(".") or type(error).__name__


def fetch_state(name: str, net: Net) -> dict[str, Tensor]:
    """The published tensors of a network from torchvision's or timm's hub, or a `VeilError` with the remedy."""
    hub, _, entry = net.source.partition(" ")
    try:
        if hub == "torchvision":
            state = get_weight(entry).get_state_dict(progress=False, check_hash=True, weights_only=True)
        elif hub == "timm":
            import timm

            state = timm.create_model(entry, pretrained=True).state_dict()
        else:
            raise VeilError(
                f"no hub that Veil knows has weights of '{name}' ({net.source}): give the path of the file."
            )
    except ImportError as error:
        raise VeilError(f"weights of '{name}' come through timm: run `pip install timm` first.") from error
    except VeilError:
        raise
    # Hubs fail in their own ways: no network, a name that is gone, a wrong checksum.
    except Exception as error:
        raise VeilError(
            f"weights of '{name}' could not be fetched from {net.source} ({_said(error)}): check the network, or "
            "give the path of the file."
        ) from error
    return dict(state)


def fill(net: nn.Module, state: Mapping[str, Tensor], wrong: str, free: tuple[str, ...]) -> int:
    """Put published tensors into a network; says how many. One that is absent, left over or of another shape is refused.

    What begins with one of `free` (a classifier, layers that are not used) is taken where all of it fits and let be
    where not. `wrong` begins the sentence of refusal.
    """
    own = net.state_dict()
    head = {key for key in own if key.startswith(free)}
    if any(key not in state or state[key].shape != own[key].shape for key in head):
        own = {key: value for key, value in own.items() if key not in head}
    for key, value in own.items():
        if key not in state:
            if key.endswith(".num_batches_tracked"):  # files of before 2018 lack it
                continue
            raise VeilError(f"{wrong}: it has no tensor {key}.")
        if state[key].shape != value.shape:
            shapes = f"{tuple(state[key].shape)} and should be {tuple(value.shape)}"
            raise VeilError(f"{wrong}: its {key} is {shapes}.")
    for key in state:
        if key not in own and not key.startswith(free):
            raise VeilError(f"{wrong}, which has no tensor {key}.")
    taken = {key: state[key] for key in own if key in state}
    net.load_state_dict(taken, strict=False)
    return len(taken)
