"""A phase: steps that alternate, with their optimizers and everything that a checkpoint must hold.

Randomness is a function of the seed and the number of the step, so a run that is resumed with the same batches gives
the same numbers as one that was never interrupted.

`torch.optim.swa_utils.AveragedModel` is not used: it copies and averages whole modules, while steps may share weights
and only the weights of a step are averaged after its update; its update rule is used.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from veil.core import VeilError
from veil.training.distributed import (
    average_gradients,
    broadcast_from_first,
    join,
    mean_over_processes,
    rank,
    world_size,
)
from veil.training.schedule import StepProgress
from veil.training.steps import BatchT, NotFinite, Setup, Step, StepResult, Terms

T = TypeVar("T")


class _StepState(Generic[BatchT]):
    """A step with its optimizer and its progress."""

    def __init__(self, step: Step[BatchT]) -> None:
        self.step = step
        # Weights that are frozen when the phase begins (a fixed backbone) stay frozen.
        self.weights = [
            p for p in distinct(from_modules(step.modules, nn.Module.parameters)) if p.requires_grad
        ]
        if not self.weights:
            raise ValueError(f"the modules of step '{step.name}' have no trainable weights")
        self.device = self.weights[0].device
        self.optimizer = make_optimizer(step, self.weights)
        self.progress = StepProgress()

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return self.step.lr * self.step.schedule.at(self.progress.updates, self.progress.plateau)

    def optimizer_tensor(self, key: str, saved: Tensor, weight: Tensor) -> Tensor:
        """A saved tensor of the optimizer, with the device and layout that the optimizer itself would choose."""
        if key == "step":
            return saved.to(self.device if self.optimizer.defaults.get("fused") else "cpu", copy=True)
        return torch.empty_like(weight, requires_grad=False).copy_(saved)


class Phase(Generic[BatchT]):
    """Steps that alternate, with their optimizers, schedules, averaged weights and step number."""

    def __init__(self, steps: Sequence[Step[BatchT]], setup: Setup = Setup()) -> None:
        names = [step.name for step in steps]
        if not names or len({*names}) < len(names) or any("/" in name for name in names):
            raise ValueError(f"the steps of a phase need distinct names without '/', got {names}")
        self.setup, self.step = setup, 0
        self.steps_before = 0  # of the phases before this one, in a sequence
        self._states = {step.name: _StepState(step) for step in steps}
        self._cycle = [state for state in self._states.values() for _ in range(state.step.repeats)]
        # Those of batch_stats too, each under its first name.
        self._modules_by_name: dict[str, nn.Module] = {}
        for step in steps:
            for number, module in enumerate((*step.modules, *step.batch_stats)):
                if all(module is not known for known in self._modules_by_name.values()):
                    self._modules_by_name[f"{step.name}.{number}"] = module
        self._modules = distinct(from_modules(self._modules_by_name.values(), nn.Module.modules))
        self._weights = distinct(from_modules(self._modules_by_name.values(), nn.Module.parameters))
        join(setup.devices, self._weights[0].device.type)
        if setup.channels_last:
            _to_channels_last(self._weights)
        if setup.compile:
            for module in self._modules_by_name.values():
                module.compile()
        if world_size() > 1:
            for tensor in self.named_tensors().values():
                tensor.detach().copy_(broadcast_from_first(tensor.detach()))
        trainable = distinct(chain.from_iterable(state.weights for state in self._states.values()))
        self._ema: dict[Tensor, Tensor] = {}
        if setup.ema is not None:
            self._ema = {p: p.detach().clone() for p in trainable}
            self._update_ema = get_ema_multi_avg_fn(setup.ema)

    def train_step(self, batch: BatchT) -> StepResult:
        """Train on one batch; train modes and `requires_grad` are afterwards as they were before.

        `NotFinite` where a term is NaN or infinite; the weights are then those of the step before.
        """
        number = self.step + 1
        state = self._cycle[(number - 1) // self.setup.accumulate % len(self._cycle)]
        lr, step, device = state.lr, state.step, state.device
        _seed_step(self.setup.seed, number, device)
        with self._modules_in_mode(step, state.weights):
            with torch.autocast(device.type, torch.bfloat16, enabled=self.setup.precision == "bf16"):
                terms = step.loss(batch)
            stacked = _stack_terms(step.name, terms)
            means = mean_over_processes(stacked.detach())
            read_values = _start_copy_to_cpu(means)
            torch.autograd.backward(stacked.sum() / self.setup.accumulate, inputs=state.weights)
            # On a GPU the values are copied during the backward pass, so checking all of them before the weights
            # change costs next to nothing.
            for name, value in zip(terms, read_values(), strict=True):
                if not math.isfinite(value):
                    _clear_gradients(state.weights)
                    raise NotFinite(
                        f"term '{name}' of step '{step.name}' is {value} at step {self.steps_before + number}: "
                        "train anew with a lower learning rate.",
                        code="term-not-finite",
                    )
            if number % self.setup.accumulate == 0:
                self._update(state, lr)
        if world_size() > 1:
            for buffer in distinct(from_modules(step.modules, nn.Module.buffers)):
                if buffer.is_floating_point():
                    buffer.copy_(mean_over_processes(buffer))
        self.step = number
        return StepResult(number, step.name, dict(zip(terms, means.unbind(), strict=True)), lr)

    def _update(self, state: _StepState[BatchT], lr: float) -> None:
        if world_size() > 1:
            average_gradients(state.weights)
        if self.setup.clip is not None:
            nn.utils.clip_grad_norm_(state.weights, self.setup.clip)
        for group in state.optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        state.optimizer.step()
        state.progress.updates += 1
        _clear_gradients(state.weights)
        if self._ema:
            averages, latest = [self._ema[p] for p in state.weights], [p.detach() for p in state.weights]
            self._update_ema(averages, latest, None)

    @contextmanager
    def _modules_in_mode(self, step: Step[BatchT], trainable: list[nn.Parameter]) -> Iterator[None]:
        """The modules of the step in train mode and trainable, all others frozen in eval mode."""
        modes = [(module, module.training) for module in self._modules]
        flags = [(p, p.requires_grad) for p in self._weights]
        frozen_buffers = distinct(from_modules(step.batch_stats, nn.Module.buffers))
        if frozen_buffers:
            own = {id(buffer) for buffer in from_modules(step.modules, nn.Module.buffers)}
            frozen_buffers = [buffer for buffer in frozen_buffers if id(buffer) not in own]
        saved = [buffer.detach().clone() for buffer in frozen_buffers]
        try:
            for module in self._modules_by_name.values():
                module.eval()
            for module in (*step.batch_stats, *step.modules):
                module.train()
            for p, _ in flags:
                p.requires_grad_(False)
            for p in trainable:
                p.requires_grad_(True)
            yield
        finally:
            with torch.no_grad():
                for buffer, before in zip(frozen_buffers, saved, strict=True):
                    buffer.copy_(before)
            for p, flag in flags:
                p.requires_grad_(flag)
            for module, mode in modes:
                if module.training != mode:
                    module.training = mode

    def named_tensors(self) -> dict[str, Tensor]:
        """The live weights and buffers, each once: ``step.0/conv.weight`` is of the first module of `step`."""
        named: dict[str, Tensor] = {}
        seen: set[int] = set()
        for key, owner in self._modules_by_name.items():
            for path, module in owner.named_modules():
                own = dict(module.named_parameters(recurse=False))
                for name, tensor in (own | _persistent_buffers(module)).items():
                    if id(tensor) not in seen:
                        seen.add(id(tensor))
                        named[f"{key}/{path}.{name}" if path else f"{key}/{name}"] = tensor
        return named

    def averaged(self, module: nn.Module) -> dict[str, Tensor]:
        """The state of a module with its averaged weights, for `load_state_dict`; its buffers are not averaged."""
        if self.setup.ema is None:
            raise ValueError("this phase keeps no averaged weights: give it Setup(ema=…)")
        state = module.state_dict(keep_vars=True)
        return {
            name: self._ema.get(tensor, tensor).detach().clone() if isinstance(tensor, Tensor) else tensor
            for name, tensor in state.items()
        }

    def report(self, step: str, value: float) -> None:
        """Give a plateau schedule the validation loss of its step; with several processes, call it in each."""
        state = self._states[step]
        if world_size() > 1:
            value = float(mean_over_processes(torch.tensor([value], device=state.device)))
        state.progress.report(value, state.step.schedule)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state of the phase, copied: tensors, and values that JSON can hold.

        Refused where it is not finite (a gradient can overflow although every term is finite), so that no such
        checkpoint is saved. Gradients of an incomplete update are included; with several processes, those of this
        one only.
        """
        named = self.named_tensors()
        names = {id(tensor): name for name, tensor in named.items()}
        tensors: dict[str, Tensor] = {f"weights/{name}": tensor for name, tensor in named.items()}
        for p, average in self._ema.items():
            tensors[f"ema/{names[id(p)]}"] = average
        for step, state in self._states.items():
            for p in state.weights:
                for key, value in state.optimizer.state.get(p, {}).items():
                    if isinstance(value, Tensor):
                        tensors[f"optimizer/{step}/{key}/{names[id(p)]}"] = value
                if p.grad is not None and self.step % self.setup.accumulate:
                    tensors[f"gradient/{names[id(p)]}"] = p.grad
        copied = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
        trained = {f"weights/{names[id(p)]}" for state in self._states.values() for p in state.weights}
        _check_finite(copied, trained, self.steps_before + self.step)
        progress = {name: asdict(state.progress) for name, state in self._states.items()}
        return copied, {"step": self.step, "settings": self._settings(), "progress": progress}

    def _settings(self) -> dict[str, Any]:
        """What a state must have in common with this phase, besides the names and shapes of the weights."""
        steps = {name: [state.step.optimizer, state.step.repeats] for name, state in self._states.items()}
        return {
            "steps": steps,
            "accumulate": self.setup.accumulate,
            "ema": self.setup.ema is not None,
            "seed": self.setup.seed,
        }

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Continue from a `state`; a `VeilError`, and nothing changed, where it is of another phase."""
        try:
            number, settings = int(values["step"]), dict(values["settings"])
            progress = {name: StepProgress(**values["progress"][name]) for name in self._states}
        except (KeyError, TypeError, ValueError) as error:
            raise VeilError(
                f"the state does not belong to a phase with these steps ({error!r}): use the recipe of its run.",
                code="state-invalid",
            ) from error
        for key, ours in self._settings().items():
            if settings.get(key) != ours:
                raise other_state(key, settings.get(key), ours)
        named = self.named_tensors()
        names = {id(tensor): name for name, tensor in named.items()}
        live: dict[str, Tensor] = {f"weights/{name}": tensor for name, tensor in named.items()}
        live |= {f"ema/{names[id(p)]}": average for p, average in self._ema.items()}
        trained = {names[id(p)]: p for state in self._states.values() for p in state.weights}
        optimizer_states: dict[str, dict[Tensor, dict[str, Tensor]]] = {step: {} for step in self._states}
        gradients: dict[Tensor, Tensor] = {}
        for name in (*live, *tensors):
            theirs, ours = tensors.get(name), live.get(name)
            part, _, rest = name.partition("/")
            if part in ("optimizer", "gradient"):
                ours = trained.get(rest.split("/", 2)[-1] if part == "optimizer" else rest)
            if theirs is None or ours is None or (theirs.shape != ours.shape and "/step/" not in name):
                raise other_state(name, shape_of(theirs), shape_of(ours))
            if part == "gradient":
                gradients[ours] = torch.empty_like(ours, requires_grad=False).copy_(theirs)
            elif part == "optimizer":
                step, key, _ = rest.split("/", 2)
                restored = self._states[step].optimizer_tensor(key, theirs, ours)
                optimizer_states[step].setdefault(ours, {})[key] = restored
        with torch.no_grad():
            for name, tensor in live.items():
                tensor.copy_(tensors[name])
        for step, state in self._states.items():
            state.progress = progress[step]
            state.optimizer.state.clear()
            state.optimizer.state.update(optimizer_states[step])
            for p in state.weights:
                p.grad = gradients.get(p)
        self.step = number


def make_optimizer(step: Step[Any], weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a step, with one parameter group for each module."""
    groups: list[dict[str, Any]] = []
    remaining = {id(p) for p in weights}  # a weight of two modules has the lr_scale of the first
    for module, lr_scale in zip(step.modules, step.lr_scale or (1.0,) * len(step.modules), strict=True):
        own = [p for p in distinct(module.parameters()) if id(p) in remaining]
        remaining -= {id(p) for p in own}
        if own:
            groups.append({"params": own, "lr_scale": lr_scale})
    if step.optimizer == "sgd":
        return torch.optim.SGD(groups, step.lr, momentum=step.momentum, weight_decay=step.weight_decay)
    kind = torch.optim.Adam if step.optimizer == "adam" else torch.optim.AdamW
    fused = all(p.is_cuda and p.is_floating_point() for p in weights)
    return kind(groups, step.lr, weight_decay=step.weight_decay, fused=fused)


def _stack_terms(step: str, terms: Terms) -> Tensor:
    """The terms as one vector (terms,) that requires a gradient."""
    if not terms:
        raise ValueError(f"the loss of step '{step}' has no term")
    for name, term in terms.items():
        if term.ndim:
            raise ValueError(
                f"term '{name}' of step '{step}' is not a scalar, its shape is {tuple(term.shape)}"
            )
    stacked = torch.stack([term.float() for term in terms.values()])
    if not stacked.requires_grad:
        raise ValueError(f"no term of step '{step}' ({', '.join(terms)}) depends on its modules")
    return stacked


def _start_copy_to_cpu(values: Tensor) -> Callable[[], list[float]]:
    """Start copying the values to the CPU; the result waits for them and returns them."""
    if not values.is_cuda:
        return values.tolist
    copy = values.to("cpu", non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(values.device))

    def wait() -> list[float]:
        done.synchronize()
        return copy.tolist()

    return wait


def _seed_step(seed: int, step: int, device: torch.device) -> None:
    digest = hashlib.blake2b(f"{seed} {step} {rank()}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(number)


def _clear_gradients(weights: list[nn.Parameter]) -> None:
    for p in weights:
        p.grad = None


def _check_finite(tensors: Mapping[str, Tensor], trained: set[str], step: int) -> None:
    for name, tensor in tensors.items():
        # A buffer may be infinite on purpose (the mask of an attention); a weight may not.
        if tensor.isnan().any() or (name in trained and tensor.isinf().any()):
            raise NotFinite(
                f"'{name}' is not finite after step {step}: train anew with a lower learning rate.",
                code="weights-not-finite",
            )


def _to_channels_last(weights: Iterable[nn.Parameter]) -> None:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for p in weights:
        if p.ndim in formats:
            p.data = p.data.contiguous(memory_format=formats[p.ndim])


def _persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    skipped = module._non_persistent_buffers_set
    return {name: b for name, b in module.named_buffers(recurse=False) if name not in skipped}


def other_state(key: str, theirs: object, ours: object) -> VeilError:
    """The error of a state that was saved by another phase."""
    return VeilError(
        f"the state is of another phase: its '{key}' is {theirs}, here it is {ours}: use the recipe of its run.",
        code="state-mismatch",
    )


def from_modules(modules: Iterable[nn.Module], get: Callable[[nn.Module], Iterable[T]]) -> Iterator[T]:
    """What `get` returns for all modules, one after the other."""
    return chain.from_iterable(get(module) for module in modules)


def distinct(items: Iterable[T]) -> list[T]:
    """The items without repetitions, by identity."""
    return list({id(item): item for item in items}.values())


def shape_of(tensor: Tensor | None) -> str:
    """The shape of a tensor in an error message."""
    return "missing" if tensor is None else str(tuple(tensor.shape))
