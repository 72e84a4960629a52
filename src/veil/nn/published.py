"""Published weights: read from a file or fetched from a hub, checked, and put into a network.

A file of weights is read as numbers only: it can run no code.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from veil.core import VeilError, io_errors

# What training scripts wrap the tensors in. V-JEPA's files hold two encoders; the averaged one, which is better, is first.
_WRAPPERS = ("state_dict", "model_state", "model", "module", "target_encoder", "encoder")


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a file of weights by name, without what training scripts wrap around them."""
    if not path.is_file():
        raise VeilError(f"the file of weights {path} does not exist: check the name.", code="weights-missing")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content = load_file(path)
        else:
            # Some files hold several times what is needed; with mmap the rest is not read.
            mapped = zipfile.is_zipfile(path)  # older files cannot be mapped
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise VeilError(
            f"{path} could run code, or is not a file of weights: use a file with nothing but tensors.",
            code="weights-unsafe",
        ) from error
    # A damaged file can fail in any way.
    except Exception as error:
        raise VeilError(
            f"{path} is not a file of weights ({_first_sentence(error)}): download it again.",
            code="weights-damaged",
        ) from error
    while isinstance(content, Mapping) and (wrapper := _wrapper(content)) is not None:
        content = content[wrapper]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise VeilError(
            f"{path} does not map names to tensors: use the file as it was published.",
            code="weights-not-named",
        )
    if content and all(
        str(key).startswith("module.") for key in content
    ):  # saved from a model on several GPUs
        return {str(key).removeprefix("module."): value for key, value in content.items()}
    return {str(key): value for key, value in content.items()}


def _wrapper(content: Mapping[str, object]) -> str | None:
    return next((key for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)


def _first_sentence(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(". ")[0].rstrip(".") or type(error).__name__


def fetch_state(name: str, source: str) -> dict[str, Tensor]:
    """The published tensors of a network from its hub; `source` is ``"torchvision ENTRY"`` or ``"timm ENTRY"``."""
    hub, _, entry = source.partition(" ")
    if hub not in ("torchvision", "timm"):
        raise VeilError(
            f"weights of '{name}' are in no hub ({source}): use the path of the file.", code="no-hub"
        )
    # Hubs fail in their own ways: no network, a removed name, a wrong checksum.
    advice = "check the network, or use the path of the file"
    with io_errors(f"weights of '{name}' from {source}", "fetched", advice=advice, errors=(Exception,)):
        if hub == "torchvision":
            from torchvision.models import get_weight

            state = get_weight(entry).get_state_dict(progress=False, check_hash=True, weights_only=True)
        else:
            import timm

            state = timm.create_model(entry, pretrained=True).state_dict()
    return dict(state)


def load_published(
    net: nn.Module, state: Mapping[str, Tensor], source: str, optional: tuple[str, ...] = ()
) -> int:
    """Put published tensors into a network and return their number; missing, extra or other shapes are refused.

    Tensors whose name begins with one of `optional` (a classifier, unused layers) are loaded where all of them fit, and
    left as they are where not. `source` begins an error message, such as "a.pth is not a file of weights of 'x3d_s'".
    """
    own = net.state_dict()
    head = {key for key in own if key.startswith(optional)}
    if any(key not in state or state[key].shape != own[key].shape for key in head):
        own = {key: value for key, value in own.items() if key not in head}
    for key, value in own.items():
        if key not in state:
            if key.endswith(".num_batches_tracked"):  # missing in files from before 2018
                continue
            raise _mismatch(source, f"it has no tensor {key}")
        if state[key].shape != value.shape:
            raise _mismatch(source, f"its {key} is {tuple(state[key].shape)}, not {tuple(value.shape)}")
    for key in state:
        if key not in own and not key.startswith(optional):
            raise _mismatch(source, f"its {key} is not in the network")
    taken = {key: state[key] for key in own if key in state}
    net.load_state_dict(taken, strict=False)
    return len(taken)


def _mismatch(source: str, reason: str) -> VeilError:
    return VeilError(f"{source}, since {reason}: choose another file or network.", code="weights-mismatch")
