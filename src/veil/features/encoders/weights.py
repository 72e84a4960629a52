"""Published weights: where this machine has them, and how their tensors are named.

Nothing is fetched unless ``weights="hub"`` requests it, and a file of weights is read as numbers only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.models import get_model_weights

from veil.core import VeilError
from veil.features.encoders.catalogue import HUB_FILES, EncoderEntry
from veil.features.encoders.frozen import Backbone
from veil.features.encoders.vit import VideoViT, ViTConfig
from veil.nn.published import load_published, read_state
from veil.nn.weights import FOLDER_VARIABLE, weights_folder


def find_weights(name: str, entry: EncoderEntry, weights: str | Path | None) -> tuple[str, dict[str, Tensor]]:
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
                "the path of the file.",
                code="weights-not-fetched",
            ) from error
    path = _published_file(name, entry) if weights is None else Path(weights)
    if not path.exists() and weights is not None and (cached := _in_hub_cache(str(weights))):
        path = cached
    if path.is_dir():
        files = [path / file for file in (*entry.files, *HUB_FILES) if (path / file).is_file()]
        if not files:
            raise VeilError(
                f"the folder {path} has no weights of '{name}': put {' or '.join(dict.fromkeys(entry.files))} there.",
                code="weights-missing",
            )
        _check_config(path / "config.json", name, entry.shape)
        path = files[0]
    return str(path), read_state(path)


def _published_file(name: str, entry: EncoderEntry) -> Path:
    """The published file on this machine, or a `VeilError` with where to get it."""
    own = os.environ.get(FOLDER_VARIABLE)
    folders = [Path(own).expanduser()] if own else []
    folders += [weights_folder(), Path(torch.hub.get_dir()) / "checkpoints"]
    for folder in folders:
        # Files of the Hugging Face hub are all named alike, so that they need a folder of their own.
        places = [folder / name, *(folder / file for file in entry.files if file not in HUB_FILES)]
        if found := next((place for place in places if place.exists()), None):
            return found
    if entry.hub and (found := _in_hub_cache(entry.hub)):
        return found
    put = f"{name}/{entry.files[0]}" if entry.files[0] in HUB_FILES else entry.files[0]
    hub = ' (or weights="hub" to fetch it)' if entry.source.startswith("torchvision ") else ""
    raise VeilError(
        f"the weights of the encoder '{name}' are not on this machine: get {entry.files[0]} from {entry.source} and give "
        f"its path as weights{hub}, or put it into a folder as {put} and set {FOLDER_VARIABLE} to that folder.",
        code="weights-missing",
    )


def _in_hub_cache(repository: str) -> Path | None:
    """The folder of the files of a repository of the Hugging Face hub, where this machine has fetched it."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        return None
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    folder = hub / f"models--{repository.replace('/', '--')}"
    named = folder / "refs" / "main"
    if not named.is_file():
        return None
    snapshot = folder / "snapshots" / named.read_text().strip()
    return snapshot if snapshot.is_dir() else None


def _check_config(path: Path, name: str, shape: ViTConfig | None) -> None:
    """Refuse weights whose config.json is of another network."""
    if shape is None or not path.is_file():
        return
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise VeilError(f"{path} is not JSON ({error}): get it again.", code="weights-wrong") from error
    right = {
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads,
        "patch_size": shape.patch,
        "tubelet_size": shape.tubelet,
    }
    for key, value in right.items():
        if key in config and config[key] != value:
            raise VeilError(
                f"{path} is not of '{name}': its {key} is {config[key]} and should be {value}.",
                code="weights-wrong",
            )


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


def fill_backbone(backbone: Backbone, state: Mapping[str, Tensor], wrong: str) -> None:
    """Put published tensors into a backbone; the first that is absent, left over or of another shape is refused by name."""
    own = {name: value.shape for name, value in backbone.state_dict().items()}
    if isinstance(backbone, VideoViT):
        state = _officially_named(state, own, wrong)
    load_published(backbone, {name: value.float() for name, value in state.items()}, wrong, backbone.ignored)
    if (
        broken := next((n for n, v in backbone.state_dict().items() if not v.isfinite().all()), None)
    ) is not None:
        raise VeilError(f"{wrong}: its {broken} has values that are not finite.", code="weights-wrong")


def _officially_named(
    state: Mapping[str, Tensor], own: Mapping[str, torch.Size], wrong: str
) -> dict[str, Tensor]:
    """Tensors under the names of a `VideoViT`, whichever of the published forms they come in."""
    named: dict[str, Tensor] = {}
    for theirs, value in state.items():
        ours = theirs
        for pattern, put in _NAMES:
            ours = re.sub(pattern, put, ours)
        if ours in own and own[ours] != value.shape:  # here their own name is still known
            raise VeilError(
                f"{wrong}: its {theirs} is {tuple(value.shape)} and should be {tuple(own[ours])}.",
                code="weights-wrong",
            )
        named[ours] = value
    for layer in sorted(
        {m[1] for n in named if (m := re.fullmatch(r"(blocks\.\d+\.attn)\.[qkv]\.weight", n))}
    ):
        for leaf in ("weight", "bias"):
            parts = {part: named.pop(f"{layer}.{part}.{leaf}", None) for part in "qkv"}
            present = [part for part, value in parts.items() if value is not None]
            if leaf == "bias" and f"{layer}.q_bias" in own:  # keys have none
                named |= {f"{layer}.{part}_bias": parts[part] for part in present}  # type: ignore[dict-item]
            elif len(present) == 3:
                named[f"{layer}.qkv.{leaf}"] = torch.cat([parts[part] for part in "qkv"])  # type: ignore[misc]
            elif present:
                lost = next(part for part in "qkv" if part not in present)
                word = {"q": "query", "k": "key", "v": "value"}[lost]
                place = layer.replace("blocks", "encoder.layer").replace("attn", "attention")
                raise VeilError(f"{wrong}: it has no tensor {place}.{word}.{leaf}.", code="weights-wrong")
    return named
