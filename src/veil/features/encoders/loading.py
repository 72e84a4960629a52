"""An encoder from its name, from published weights, or from the folder of a run."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from veil.core import VeilError
from veil.features.encoders.catalogue import ENCODERS
from veil.features.encoders.convolutional import Compact, RecognizerBackbone
from veil.features.encoders.frozen import FrozenEncoder
from veil.features.encoders.weights import fill_backbone, find_weights
from veil.nn import video
from veil.nn.published import load_published, read_state
from veil.training.run import Run, weights_in

SHIPPED = Path(__file__).parents[1] / "encoder.safetensors"


def make(
    name: str | Path, weights: str | Path | None = None, device: torch.device | str = "cpu"
) -> FrozenEncoder:
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
                raise VeilError(
                    f"{name} is a run and has its own weights: give no others.", code="run-has-weights"
                )
            return _of_run(Path(name)).to(device)
        near = difflib.get_close_matches(str(name), ENCODERS, 1, cutoff=0.5)
        hint = (
            f"did you mean '{near[0]}'?" if near else f"there are {', '.join(ENCODERS)}, and folders of runs."
        )
        raise VeilError(f"there is no encoder '{name}': {hint}", code="encoder-unknown")
    name = str(name)
    entry = ENCODERS[name]
    if name == "veil":
        return load_compact(SHIPPED if weights is None else Path(weights), name).to(device)
    path, state = find_weights(name, entry, weights)
    backbone = entry.build()
    fill_backbone(backbone, state, f"{path} is not a file of weights of '{name}'")
    encoder = FrozenEncoder(
        name, backbone, size=entry.size, length=entry.length, mean=entry.mean, std=entry.std
    )
    return encoder.to(device)


def load_compact(path: Path, name: str) -> FrozenEncoder:
    """An encoder that `veil.features.encoder_training` trained, from its file."""
    tensors, metadata = _read_with_metadata(path)
    missing = next((key for key in ("widths", "size", "length", "mean", "std") if key not in metadata), None)
    if missing is not None:
        raise VeilError(
            f"{path} is not an encoder that Veil trained, because its {missing} is missing: give the file of a run of 'encoder'.",
            code="encoder-metadata",
        )
    backbone = Compact(metadata["widths"])
    fill_backbone(backbone, tensors, f"{path} is not a file of weights of '{name}'")
    return FrozenEncoder(
        name,
        backbone,
        size=metadata["size"],
        length=metadata["length"],
        mean=metadata["mean"],
        std=metadata["std"],
    )


def _read_with_metadata(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file of this project, and its metadata."""
    tensors = read_state(path)
    try:
        with safe_open(path, "pt") as file:
            return tensors, {key: json.loads(value) for key, value in (file.metadata() or {}).items()}
    except (SafetensorError, ValueError) as error:
        raise VeilError(
            f"{path} was not written by Veil ({error}): give the file as it was made.",
            code="encoder-metadata",
        ) from error


def _of_run(folder: Path) -> FrozenEncoder:
    """The network that a run has trained, as an encoder."""
    run = Run.open(folder)
    if run.kind not in ("encoder", "recognize"):
        raise VeilError(
            f"{folder} is a run of '{run.kind}', which trains no encoder: give one of 'encoder' or 'recognize'.",
            code="run-kind",
        )
    path, name = weights_in(folder), folder.resolve().name
    if run.kind == "encoder":
        return load_compact(path, name)
    data, utility = run.recipe["data"], run.recipe["utility"]
    if utility["sees"] != "clips":
        raise VeilError(
            f'{folder} was trained on {utility["sees"]}, and an encoder takes clips: train one with utility.sees = "clips".',
            code="run-not-of-clips",
        )
    tensors, metadata = _read_with_metadata(path)
    if not {"mean", "std"} <= metadata.keys():
        raise VeilError(
            f"{path} lacks the mean and deviation of its clips: train it again.",
            code="encoder-metadata",
        )
    network, frames = utility["network"], data["max_frames"]
    length = min(data["length"], frames)
    last = video.make(network, 1).last
    outputs = next(len(value) for key, value in tensors.items() if key.startswith(f"{last}."))
    net = video.make(network, outputs, frames=length, size=data["size"])
    load_published(net, tensors, f"{path} is not a file of weights of '{network}'", ())
    every = frames // length
    return FrozenEncoder(
        name,
        RecognizerBackbone(net),
        size=data["size"],
        length=length * every,
        mean=metadata["mean"],
        std=metadata["std"],
        every=every,
    )
