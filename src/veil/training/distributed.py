"""Training with several processes: launch, rank, this process's share of the data, and means over all processes.

The processes come from `launch` or from torchrun. All of them train the same phase on different batches and keep
identical replicas: N processes with a batch of B do what one process does with a batch of N·B.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import ProcessRaisedException

from veil.core import VeilError, missing_extra

T = TypeVar("T")


def rank() -> int:
    """The number of this process; 0 where there is only one."""
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def world_size() -> int:
    """The number of processes that train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def shard(items: Iterable[T]) -> Iterator[T]:
    """This process's share of the items, equally many for every process; an incomplete last round is dropped.

    Use items that are cheap to skip, such as the numbers of batches: ``map(batch_of, shard(range(n)))``.
    """
    own, count, rest = rank(), world_size(), iter(items)
    while len(group := list(islice(rest, count))) == count:
        yield group[own]


def launch(
    function: Callable[..., T],
    devices: int,
    *arguments: Any,
    accelerator: Literal["auto", "cpu", "cuda"] = "auto",
) -> T:
    """Call the function in `devices` processes that train together, and return the result of rank 0.

    The function and its arguments are pickled. Under torchrun the processes exist already, and this is one of them.
    """
    if devices < 1:
        raise VeilError(f"devices={devices} is too small: choose 1 or more.", code="no-devices")
    where = accelerator if accelerator != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if _under_torchrun():
        join(devices, where)
        return function(*arguments)
    if devices == 1:
        return function(*arguments)
    if where == "cuda" and torch.cuda.device_count() < devices:
        raise VeilError(
            f"devices={devices} is more than the {torch.cuda.device_count()} GPUs of this machine: choose fewer.",
            code="too-few-gpus",
        )
    fabric = _fabric(accelerator=where, devices=devices, strategy="ddp_spawn")
    try:
        return pickle.loads(fabric.launch(_call, function, arguments))
    except ProcessRaisedException as error:  # it holds the text of a traceback, not the error itself
        _, found, sentence = str(error).strip().rpartition(f"{VeilError.__module__}.VeilError: ")
        if not found or "\n" in sentence:
            raise
    raise VeilError(sentence, code="process-failed")


def _call(fabric: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    # As bytes, since a tensor that is passed by handle is lost with the process that made it.
    result = pickle.dumps(function(*arguments))
    distributed.destroy_process_group()  # not after an error, when the other processes may wait in vain
    return result


def _under_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "LOCAL_RANK" in os.environ


def join(devices: int, accelerator: str) -> None:
    """Connect to the other processes, where there are any."""
    if world_size() == 1 and _under_torchrun():
        here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        nodes = int(os.environ["WORLD_SIZE"]) // here
        _fabric(accelerator=accelerator, devices=here, num_nodes=nodes, strategy="ddp").launch()
    if devices not in (1, world_size()):
        raise VeilError(
            f"devices={devices}, but the number of processes is {world_size()}: start them with "
            f"veil.training.distributed.launch or `torchrun --nproc-per-node {devices}`.",
            code="process-count",
        )


def _fabric(**options: Any) -> Any:
    try:
        from lightning_fabric import Fabric
    except ImportError:
        try:
            from lightning.fabric import Fabric  # type: ignore[no-redef]
        except ImportError:
            raise missing_extra("training in several processes needs Lightning Fabric", "train") from None
    for name in ("lightning_fabric", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return Fabric(**options)


def mean_over_processes(tensor: Tensor) -> Tensor:
    """The mean of a tensor over all processes."""
    if world_size() == 1:
        return tensor
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total)
    return total / world_size()


def broadcast_from_first(tensor: Tensor) -> Tensor:
    """The tensor of rank 0, in every process."""
    copy = tensor.clone(memory_format=torch.contiguous_format)
    distributed.broadcast(copy, 0)
    return copy


def average_gradients(weights: list[nn.Parameter]) -> None:
    """The same mean gradients in every process; a weight without a gradient in all of them stays without."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in weights]
    present = torch.tensor([p.grad is not None for p in weights], dtype=parts[0].dtype).to(parts[0].device)
    mean = mean_over_processes(torch.cat([*(part.flatten() for part in parts), present]))
    *means, anywhere = mean.split([*(p.numel() for p in weights), len(weights)])
    for p, gradient, some in zip(weights, means, anywhere.tolist(), strict=True):
        p.grad = torch.empty_like(p).copy_(gradient.view(p.shape)) if some else None
