"""A sequence of phases over the same networks, such as reconstruction, warm-up and adversarial training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

import torch
from torch import Tensor, nn

from veil.core import VeilError
from veil.training.phase import Phase, other_state, shape_of
from veil.training.steps import BatchT, StepResult


class PhaseSequence(Generic[BatchT]):
    """Phases that follow one another over the same networks; it is used like one phase.

    Each phase is made when it begins, from the networks as the phases before left them.
    """

    def __init__(
        self, networks: Mapping[str, nn.Module], phases: Sequence[tuple[int, Callable[[], Phase[BatchT]]]]
    ) -> None:
        """`networks`: all networks by name; `phases`: of each the number of steps and what makes it."""
        self._networks, self._phases = dict(networks), [(steps, make) for steps, make in phases if steps > 0]
        if not self._phases:
            raise ValueError("a sequence of phases needs at least one step")
        self._enter(0)

    def _enter(self, index: int) -> None:
        self._index = index
        for network in self._networks.values():
            network.eval()  # networks outside the phase are frozen
        self.phase = self._phases[index][1]()  # the current one
        self.phase.steps_before = sum(steps for steps, _ in self._phases[:index])

    @property
    def step(self) -> int:
        """The number of steps, over all phases."""
        return self.phase.steps_before + self.phase.step

    def train_step(self, batch: BatchT) -> StepResult:
        """Train on one batch in the current phase."""
        if self.phase.step >= self._phases[self._index][0] and self._index + 1 < len(self._phases):
            self._enter(self._index + 1)
        return self.phase.train_step(batch)._replace(step=self.step)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state of the current phase, and the networks outside it."""
        tensors, values = self.phase.state()
        for name, tensor in self._outside_phase().items():
            tensors[name] = tensor.detach().to("cpu", copy=True).contiguous()
        return tensors, {"step": self.step, "phase_index": self._index, "phase": values}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Continue from a `state`; a `VeilError` where it is of another sequence."""
        try:
            index, phase = int(values["phase_index"]), dict(values["phase"])
            self._enter(index)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise VeilError(
                f"the state does not belong to a sequence of phases ({error!r}): use the recipe of its run.",
                code="state-invalid",
            ) from error
        outside = self._outside_phase()
        for name, tensor in outside.items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise other_state(name, shape_of(tensors.get(name)), shape_of(tensor))
        self.phase.restore({name: t for name, t in tensors.items() if name not in outside}, phase)
        with torch.no_grad():
            for name, tensor in outside.items():
                tensor.copy_(tensors[name])

    def _outside_phase(self) -> dict[str, Tensor]:
        """The live weights and buffers that are not in the current phase."""
        inside = {id(tensor) for tensor in self.phase.named_tensors().values()}
        return {f"other/{name}": t for name, t in self.named_tensors().items() if id(t) not in inside}

    def named_tensors(self) -> dict[str, Tensor]:
        """The live weights and buffers of all networks, each once."""
        named: dict[int, tuple[str, Tensor]] = {}
        for name, network in self._networks.items():
            for key, tensor in network.state_dict(keep_vars=True).items():
                named.setdefault(id(tensor), (f"{name}/{key}", tensor))
        return dict(named.values())
