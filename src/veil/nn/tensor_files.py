"""Tensors with metadata in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from veil.media.draft import Draft


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, Any], *, half: bool = False
) -> None:
    """Write tensors with metadata, as JSON; `half` stores those of convolutions in 16 bits."""
    small = {name: t.half() if half and t.ndim > 1 else t for name, t in tensors.items()}
    laid = {name: t.detach().cpu().contiguous() for name, t in small.items()}
    with Draft(path, overwrite=True) as draft:
        save_file(laid, draft.path, {key: json.dumps(value) for key, value in metadata.items()})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file that `write_tensors` wrote, in 32 bits, and its metadata."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = {key: json.loads(value) for key, value in (file.metadata() or {}).items()}
    return {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}, metadata
