"""Devices and their memory: the device by name, and smaller batches where the memory is full."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from veil.core import VeilError

T = TypeVar("T")


def torch_device(name: str) -> torch.device:
    """The device of that name; a `VeilError` where no tensor can be put on it."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        known = (
            "" if reason.startswith("Expected one of") else f" ({reason})"
        )  # else torch lists every device
        raise VeilError(
            f"device '{name}' cannot be used{known}: choose cpu or another one, such as cuda.",
            code="device-unusable",
        ) from error
    return device


def with_smaller_batches(train: Callable[[int], T], batch: int, least: int = 1) -> tuple[T, int]:
    """The result of `train` for the largest of batch, batch/2, … that fits into memory, and that batch size.

    `train` is called anew each time, so it builds its networks itself.
    """
    size = batch
    while True:
        try:
            result = train(size)
        except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
            if not is_out_of_memory(error):
                raise
            reason = str(error).strip().partition("\n")[0]
        else:
            if size < batch:
                warnings.warn(
                    f"a batch of {batch} does not fit into memory; a batch of {size} does", stacklevel=2
                )
            return result, size
        # Only here are the traceback's frames released, and with them the tensors they held.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if size <= least:
            raise VeilError(
                f"a batch of {size} does not fit into memory ({reason}): "
                "use smaller clips, a smaller network or a larger GPU.",
                code="out-of-memory",
            )
        size = max(least, size // 2)


def is_out_of_memory(error: Exception) -> bool:
    """Whether the memory of the GPU or of the machine was full."""
    message = str(error).lower()
    forms = ("out of memory", "can't allocate memory", "alloc_failed")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(form in message for form in forms)


def is_batch_too_small(error: BaseException) -> bool:
    """Whether a batch norm got a single value per channel."""
    return isinstance(error, ValueError) and str(error).startswith("Expected more than 1 ")
