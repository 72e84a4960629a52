"""The one training loop: a phase in which modules take turns, each with a batch of its own.

A `Step` says who learns and what they descend; everybody else holds still. A plain supervised training is a phase of one
step. `Phase` holds the steps with their optimizers and everything that must survive a restart; `fit` plays it over
batches and yields what each turn measured, so that whoever consumes it logs, saves, draws and stops::

    for measured in fit([Step("task", (net,), loss, lr=1e-3)], batches):
        ...

Randomness is a function of the seed and the number of the step, so a run that is resumed with the same batches gives
the same numbers as one that was never interrupted. Several processes (`launch`, or torchrun) play the same phase on
different batches and keep identical replicas: N processes with a batch of B do what one does with a batch of N·B.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import math
import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import ProcessRaisedException

from veil.core import VeilError

T = TypeVar("T")
BatchT = TypeVar("BatchT")
Terms = dict[str, Tensor]  # signed, weighted terms; their sum is descended, each is logged


class NotFinite(VeilError):
    """A term, or a weight, is no longer a number."""


@dataclass(frozen=True)
class LRSchedule:
    """The factor on the learning rate, by the number of the state's own updates."""

    warmup: int = 0  # updates of linear rise
    shape: Literal["constant", "cosine", "plateau"] = "constant"
    updates: int | None = None  # of this step in all, with the warm-up; cosine needs it
    floor: float = 0.0  # the factor at the end of a cosine, and the least factor of a plateau
    patience: int = 10  # of a plateau: as many reports may pass without improvement
    factor: float = 0.1  # of a plateau: by what it falls after one more

    def __post_init__(self) -> None:
        if self.shape == "cosine" and (self.updates is None or self.updates <= self.warmup):
            raise VeilError(
                f"a cosine schedule needs the number of updates in all, more than its warm-up of {self.warmup}; "
                f"got updates={self.updates}"
            )

    def at(self, update: int, plateau: float = 1.0) -> float:
        """The factor of an update, counted from 0; `plateau` is how far its reports have brought it down."""
        if update < self.warmup:
            return (update + 1) / self.warmup
        if self.shape == "plateau":
            return plateau
        if self.shape == "constant" or self.updates is None:
            return 1.0
        progress = min(1.0, (update - self.warmup) / (self.updates - self.warmup))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class Step(Generic[BatchT]):
    """One turn: the modules learn while everybody else holds still."""

    name: str
    modules: tuple[nn.Module, ...]
    loss: Callable[[BatchT], Terms]
    lr: float
    optimizer: Literal["adam", "adamw", "sgd"] = "adamw"
    weight_decay: float = 0.0
    schedule: LRSchedule = LRSchedule()
    repeats: int = 1  # how many consecutive updates are its; one batch each, unless gradients are accumulated
    batch_stats: tuple[
        nn.Module, ...
    ] = ()  # hold still in train(): fresh batch statistics, running ones untouched
    momentum: float = 0.9  # of sgd
    lr_scale: tuple[float, ...] = ()  # of each module, a factor on the learning rate; none: 1 for all

    def __post_init__(self) -> None:
        if self.lr_scale and len(self.lr_scale) != len(self.modules):
            raise ValueError(f"'{self.name}' has {len(self.modules)} modules and {len(self.lr_scale)} paces")
        if self.repeats < 1:
            raise VeilError(f"a step takes at least one turn, got repeats={self.repeats} for '{self.name}'")


@dataclass(frozen=True)
class Setup:
    """How a phase is played, whatever its steps are."""

    seed: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"  # autocast on the modules' device
    accumulate: int = 1  # batches to one update, all of the same step
    clip: float | None = None  # of the gradient's norm, over all modules of the step
    ema: float | None = None  # decay of the averaged copy of every module
    channels_last: bool = False  # 4-d weights channels_last, 5-d weights channels_last_3d
    compile: bool = False  # torch.compile the modules' forward
    devices: int = 1  # processes; see `launch`

    def __post_init__(self) -> None:
        if self.accumulate < 1 or self.devices < 1:
            raise VeilError(
                f"accumulate and devices are at least 1, got {self.accumulate} and {self.devices}"
            )


class Measured(NamedTuple):
    """What one turn measured."""

    step: int  # number of the batch, from 1
    step_name: str  # of the `Step` that was taken
    terms: dict[str, Tensor]  # detached, on the device: reading one waits for the GPU, so read seldom
    lr: float


@dataclass
class _Progress:
    """How far a step has come: its updates, and its reports to a plateau schedule."""

    updates: int = 0
    plateau: float = 1.0  # the factor they have brought it to
    best: float | None = None
    without: int = 0  # reports since the best one


class _StepState(Generic[BatchT]):
    """A step with what it has learned so far."""

    def __init__(self, step: Step[BatchT]) -> None:
        self.step = step
        # What is frozen when the phase begins (a backbone kept as it is) stays frozen.
        self.weights = [p for p in _distinct(_each(step.modules, nn.Module.parameters)) if p.requires_grad]
        if not self.weights:
            raise ValueError(f"the modules of step '{step.name}' have no weights to learn")
        self.device = self.weights[0].device
        self.optimizer = _optimizer(step, self.weights)
        self.progress = _Progress()

    @property
    def lr(self) -> float:
        """Of the next update."""
        return self.step.lr * self.step.schedule.at(self.progress.updates, self.progress.plateau)

    def placed(self, key: str, saved: Tensor, weight: Tensor) -> Tensor:
        """A saved value of the optimizer, laid out as the optimizer would have made it."""
        if key == "step":
            return saved.to(self.device if self.optimizer.defaults.get("fused") else "cpu", copy=True)
        return torch.empty_like(weight, requires_grad=False).copy_(saved)


class Phase(Generic[BatchT]):
    """The steps with their optimizers, schedules, averages and step."""

    def __init__(self, steps: Sequence[Step[BatchT]], setup: Setup = Setup()) -> None:
        names = [step.name for step in steps]
        if not names or len({*names}) < len(names) or any("/" in name for name in names):
            raise ValueError(f"the steps of a phase have different names without '/', got {names}")
        self.setup, self.step = setup, 0
        self.before = 0  # steps of the phases before this one, in a series
        self._states = {step.name: _StepState(step) for step in steps}
        self._order = [state for state in self._states.values() for _ in range(state.step.repeats)]
        self._modules_by_name: dict[
            str, nn.Module
        ] = {}  # and the batch_stats ones, each under its first name
        for step in steps:
            for number, module in enumerate((*step.modules, *step.batch_stats)):
                if all(module is not known for known in self._modules_by_name.values()):
                    self._modules_by_name[f"{step.name}.{number}"] = module
        self._modules = _distinct(_each(self._modules_by_name.values(), nn.Module.modules))
        self._weights = _distinct(_each(self._modules_by_name.values(), nn.Module.parameters))
        _join(setup.devices, self._weights[0].device.type)
        if setup.channels_last:
            _to_channels_last(self._weights)
        if setup.compile:
            for module in self._modules_by_name.values():
                module.compile()
        if world() > 1:
            for tensor in self._named().values():
                tensor.detach().copy_(_from_first(tensor.detach()))
        learned = _distinct(chain.from_iterable(state.weights for state in self._states.values()))
        self._ema: dict[Tensor, Tensor] = {}
        if setup.ema is not None:
            self._ema = {p: p.detach().clone() for p in learned}

    def train_step(self, batch: BatchT) -> Measured:
        """Play one batch; modes and `requires_grad` are afterwards as they were before.

        `NotFinite` where a term is no number; the weights are then those of the step before.
        """
        number = self.step + 1
        state = self._order[(number - 1) // self.setup.accumulate % len(self._order)]
        lr, step, device = state.lr, state.step, state.device
        _seed(self.setup.seed, number, device)
        with self._posed(step, state.weights):
            with torch.autocast(device.type, torch.bfloat16, enabled=self.setup.precision == "bf16"):
                terms = step.loss(batch)
            stacked = _stacked(step.name, terms)
            measured = _averaged(stacked.detach())
            arrived = _read(measured)
            torch.autograd.backward(stacked.sum() / self.setup.accumulate, inputs=state.weights)
            # On a GPU the values are on their way while it works on the backward pass, so looking at every one of
            # them before the weights change costs next to nothing.
            for name, value in zip(terms, arrived(), strict=True):
                if not math.isfinite(value):
                    _forget(state.weights)
                    raise NotFinite(
                        f"the term '{name}' of step '{step.name}' is {value} at step {self.before + number}: "
                        "begin anew with a lower learning rate"
                    )
            if number % self.setup.accumulate == 0:
                self._update(state, lr)
        if world() > 1:
            for buffer in _distinct(_each(step.modules, nn.Module.buffers)):
                if buffer.is_floating_point():
                    buffer.copy_(_averaged(buffer))
        self.step = number
        return Measured(number, step.name, dict(zip(terms, measured.unbind(), strict=True)), lr)

    def _update(self, state: _StepState[BatchT], lr: float) -> None:
        if world() > 1:
            _average_gradients(state.weights)
        if self.setup.clip is not None:
            nn.utils.clip_grad_norm_(state.weights, self.setup.clip)
        for group in state.optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        state.optimizer.step()
        state.progress.updates += 1
        _forget(state.weights)
        if self.setup.ema is not None:
            copies = [self._ema[p] for p in state.weights]
            latest = [p.detach() for p in state.weights]
            torch._foreach_lerp_(copies, latest, 1 - self.setup.ema)  # pyright: ignore[reportPrivateImportUsage]

    @contextmanager
    def _posed(self, step: Step[BatchT], learning: list[nn.Parameter]) -> Iterator[None]:
        """Players of the step ready to learn, everybody else still."""
        modes = [(module, module.training) for module in self._modules]
        flags = [(p, p.requires_grad) for p in self._weights]
        held = _distinct(_each(step.batch_stats, nn.Module.buffers))
        if held:
            own = {id(buffer) for buffer in _each(step.modules, nn.Module.buffers)}
            held = [buffer for buffer in held if id(buffer) not in own]
        kept = [buffer.detach().clone() for buffer in held]
        try:
            for module in self._modules_by_name.values():
                module.eval()
            for module in (*step.batch_stats, *step.modules):
                module.train()
            for p, _ in flags:
                p.requires_grad_(False)
            for p in learning:
                p.requires_grad_(True)
            yield
        finally:
            with torch.no_grad():
                for buffer, before in zip(held, kept, strict=True):
                    buffer.copy_(before)
            for p, flag in flags:
                p.requires_grad_(flag)
            for module, mode in modes:
                if module.training != mode:
                    module.training = mode

    def _named(self) -> dict[str, Tensor]:
        """The live weights and buffers, each once: ``step.0/conv.weight`` is of the first module of `step`."""
        found: dict[str, Tensor] = {}
        seen: set[int] = set()
        for key, owner in self._modules_by_name.items():
            for path, module in owner.named_modules():
                own = dict(module.named_parameters(recurse=False))
                for name, tensor in (own | _persistent(module)).items():
                    if id(tensor) not in seen:
                        seen.add(id(tensor))
                        found[f"{key}/{path}.{name}" if path else f"{key}/{name}"] = tensor
        return found

    def averaged(self, module: nn.Module) -> dict[str, Tensor]:
        """The state of a module with its averaged weights, for `load_state_dict`; its buffers are as they are."""
        if self.setup.ema is None:
            raise ValueError("this phase keeps no averages; give it Setup(ema=…)")
        state = module.state_dict(keep_vars=True)
        return {
            name: self._ema.get(tensor, tensor).detach().clone() if isinstance(tensor, Tensor) else tensor
            for name, tensor in state.items()
        }

    def report(self, step: str, value: float) -> None:
        """Tell a plateau schedule how well its step does: lower is better; with several processes, from each."""
        state = self._states[step]
        if world() > 1:
            value = float(_averaged(torch.tensor([value], device=state.device)))
        schedule, progress = state.step.schedule, state.progress
        if math.isfinite(value) and (progress.best is None or value < progress.best):
            progress.best, progress.without = value, 0
            return
        progress.without += 1
        if progress.without > schedule.patience:
            progress.plateau, progress.without = max(schedule.floor, progress.plateau * schedule.factor), 0

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that the phase is, copied: tensors, and values that JSON can hold.

        Refuses what is no longer finite (a gradient can overflow where every term was fine), so that no checkpoint
        is poisoned. Gradients that wait for the rest of their update are part of it; where there are several
        processes, only those of this one.
        """
        named = self._named()
        names = {id(tensor): name for name, tensor in named.items()}
        tensors: dict[str, Tensor] = {f"weights/{name}": tensor for name, tensor in named.items()}
        for p, average in self._ema.items():
            tensors[f"average/{names[id(p)]}"] = average
        for step, state in self._states.items():
            for p in state.weights:
                for key, value in state.optimizer.state.get(p, {}).items():
                    if isinstance(value, Tensor):
                        tensors[f"optimizer/{step}/{key}/{names[id(p)]}"] = value
                if p.grad is not None and self.step % self.setup.accumulate:
                    tensors[f"gradient/{names[id(p)]}"] = p.grad
        copied = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
        learned = {f"weights/{names[id(p)]}" for state in self._states.values() for p in state.weights}
        _refuse_poison(copied, learned, self.before + self.step)
        steps = {name: asdict(state.progress) for name, state in self._states.items()}
        return copied, {"step": self.step, "rules": self._rules(), "steps": steps}

    def _rules(self) -> dict[str, Any]:
        """What must be the same for a state to be of this phase, besides the weights' names and shapes."""
        steps = {name: [state.step.optimizer, state.step.repeats] for name, state in self._states.items()}
        return {
            "steps": steps,
            "accumulate": self.setup.accumulate,
            "averages": self.setup.ema is not None,
            "seed": self.setup.seed,
        }

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; a `VeilError`, and nothing changed, when it is of another phase."""
        try:
            number, rules = int(values["step"]), dict(values["rules"])
            progress = {name: _Progress(**values["steps"][name]) for name in self._states}
        except (KeyError, TypeError, ValueError) as error:
            raise VeilError(f"this is not the state of a phase with these steps ({error!r})") from error
        for key, ours in self._rules().items():
            if rules.get(key) != ours:
                raise VeilError(
                    f"this is the state of another phase: its '{key}' is {rules.get(key)}, here it is {ours}"
                )
        named = self._named()
        names = {id(tensor): name for name, tensor in named.items()}
        live: dict[str, Tensor] = {f"weights/{name}": tensor for name, tensor in named.items()}
        live |= {f"average/{names[id(p)]}": average for p, average in self._ema.items()}
        learned = {names[id(p)]: p for state in self._states.values() for p in state.weights}
        memories: dict[str, dict[Tensor, dict[str, Tensor]]] = {step: {} for step in self._states}
        gradients: dict[Tensor, Tensor] = {}
        for name in (*live, *tensors):
            theirs, ours = tensors.get(name), live.get(name)
            part, _, rest = name.partition("/")
            if part in ("optimizer", "gradient"):
                ours = learned.get(rest.split("/", 2)[-1] if part == "optimizer" else rest)
            if theirs is None or ours is None or (theirs.shape != ours.shape and "/step/" not in name):
                raise VeilError(
                    f"this is the state of another phase: its '{name}' is {_shape(theirs)}, here it is {_shape(ours)}"
                )
            if part == "gradient":
                gradients[ours] = torch.empty_like(ours, requires_grad=False).copy_(theirs)
            elif part == "optimizer":
                step, key, _ = rest.split("/", 2)
                memories[step].setdefault(ours, {})[key] = self._states[step].placed(key, theirs, ours)
        with torch.no_grad():
            for name, tensor in live.items():
                tensor.copy_(tensors[name])
        for step, state in self._states.items():
            state.progress = progress[step]
            state.optimizer.state.clear()
            state.optimizer.state.update(memories[step])
            for p in state.weights:
                p.grad = gradients.get(p)
        self.step = number


class PhaseSequence(Generic[BatchT]):
    """Games that are played one after the other with the same networks; to whoever plays it, one phase.

    Each is made when its turn comes, of the networks as the ones before left them.
    """

    def __init__(
        self, networks: Mapping[str, nn.Module], phases: Sequence[tuple[int, Callable[[], Phase[BatchT]]]]
    ) -> None:
        """`networks`: all that play, by name; `phases`: how many steps of each, and what makes it."""
        self._networks, self._phases = dict(networks), [(steps, make) for steps, make in phases if steps > 0]
        if not self._phases:
            raise ValueError("a series of phases has at least one step")
        self._enter(0)

    def _enter(self, place: int) -> None:
        self._place = place
        for network in self._networks.values():
            network.eval()  # who is not in the phase holds still
        self.phase = self._phases[place][1]()  # the one that is being played
        self.phase.before = sum(steps for steps, _ in self._phases[:place])

    @property
    def step(self) -> int:
        """Of all phases together."""
        return self.phase.before + self.phase.step

    def train_step(self, batch: BatchT) -> Measured:
        """Play one batch of the phase whose turn it is."""
        if self.phase.step >= self._phases[self._place][0] and self._place + 1 < len(self._phases):
            self._enter(self._place + 1)
        return self.phase.train_step(batch)._replace(step=self.step)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """That of the phase that is being played, and the networks that are not in it."""
        tensors, values = self.phase.state()
        playing = {id(tensor) for tensor in self.phase._named().values()}
        for name, tensor in self._tensors().items():
            if id(tensor) not in playing:
                tensors[f"rest/{name}"] = tensor.detach().to("cpu", copy=True).contiguous()
        return tensors, {"step": self.step, "place": self._place, "phase": values}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; a `VeilError` when it is of another series."""
        try:
            place, phase = int(values["place"]), dict(values["phase"])
            self._enter(place)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise VeilError(f"this is not the state of a series of phases ({error!r})") from error
        playing = {id(tensor) for tensor in self.phase._named().values()}
        live = {f"rest/{name}": t for name, t in self._tensors().items() if id(t) not in playing}
        for name, tensor in live.items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                theirs = _shape(tensors.get(name))
                raise VeilError(
                    f"this is the state of another phase: its '{name}' is {theirs}, here it is {_shape(tensor)}"
                )
        self.phase.restore({name: t for name, t in tensors.items() if name not in live}, phase)
        with torch.no_grad():
            for name, tensor in live.items():
                tensor.copy_(tensors[name])

    def _tensors(self) -> dict[str, Tensor]:
        """The live weights and buffers of all networks, each once."""
        found: dict[int, tuple[str, Tensor]] = {}
        for name, network in self._networks.items():
            for key, tensor in network.state_dict(keep_vars=True).items():
                found.setdefault(id(tensor), (f"{name}/{key}", tensor))
        return dict(found.values())


def fit(
    steps: Sequence[Step[BatchT]] | Phase[BatchT] | PhaseSequence[BatchT],
    batches: Iterable[BatchT],
    setup: Setup = Setup(),
) -> Iterator[Measured]:
    """Play a phase, one batch a turn, and yield what each turn measured."""
    if isinstance(steps, Phase | PhaseSequence):
        if setup != Setup():
            raise ValueError("a phase has its setup already; give it to Phase, not to fit")
        phase = steps
    else:
        phase = Phase(steps, setup)
    for batch in batches:
        yield phase.train_step(batch)


def with_smaller_batches(train: Callable[[int], T], batch: int, least: int = 1) -> tuple[T, int]:
    """What `train` gives for the largest of batch, batch/2, … that fits into memory, and that batch size.

    `train` is called anew each time, so it builds its networks itself.
    """
    size = batch
    while True:
        try:
            result = train(size)
        except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
            if not is_out_of_memory(error):
                raise
            why = str(error).strip().partition("\n")[0]
        else:
            if size < batch:
                warnings.warn(
                    f"a batch of {batch} does not fit into memory; a batch of {size} does", stacklevel=2
                )
            return result, size
        # Only here are the traceback's frames gone, and with them the tensors they held.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if size <= least:
            raise VeilError(
                f"even a batch of {size} does not fit into memory ({why}); "
                "use smaller clips, a smaller network or a larger GPU"
            )
        size = max(least, size // 2)


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory, of the GPU or the machine, was full."""
    told = str(error).lower()
    forms = ("out of memory", "can't allocate memory", "alloc_failed")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(form in told for form in forms)


def is_too_few(error: BaseException) -> bool:
    """Whether a network that standardises over its batch saw a single value in it."""
    return isinstance(error, ValueError) and str(error).startswith("Expected more than 1 ")


def usable(device: str) -> torch.device:
    """The device of that name, where something can be put on it."""
    try:
        where = torch.device(device)
        torch.empty(1, device=where)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise VeilError(f"device '{device}' cannot be used here: {str(error).splitlines()[0]}") from error
    return where


def rank() -> int:
    """Which of the processes this is; 0 where there is only one."""
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def world() -> int:
    """How many processes play this phase together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def shard(items: Iterable[T]) -> Iterator[T]:
    """This process's share of the items, as many for every process; an incomplete last round is left out.

    Give it what is cheap to pass over, such as the numbers of batches: ``map(batch_of, shard(range(n)))``.
    """
    mine, count, rest = rank(), world(), iter(items)
    while len(group := list(islice(rest, count))) == count:
        yield group[mine]


def launch(
    function: Callable[..., T],
    devices: int,
    *arguments: Any,
    accelerator: Literal["auto", "cpu", "cuda"] = "auto",
) -> T:
    """Call the function in as many processes, which then play one phase; what that of rank 0 gives is returned.

    The function and its arguments are pickled. Under torchrun the processes are there already, and this is one of them.
    """
    if devices < 1:
        raise VeilError(f"{devices} processes do nothing: choose 1 device or more.")
    where = accelerator if accelerator != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if _under_torchrun():
        _join(devices, where)
        return function(*arguments)
    if devices == 1:
        return function(*arguments)
    if where == "cuda" and torch.cuda.device_count() < devices:
        raise VeilError(f"{devices} GPUs were asked for, but this machine has {torch.cuda.device_count()}")
    fabric = _fabric(accelerator=where, devices=devices, strategy="ddp_spawn")
    try:
        return pickle.loads(fabric.launch(_called, function, arguments))
    except ProcessRaisedException as error:  # it holds the text of a traceback, not the error itself
        _, found, sentence = str(error).strip().rpartition(f"{VeilError.__module__}.VeilError: ")
        if not found or "\n" in sentence:
            raise
    raise VeilError(sentence)


def _called(fabric: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    # As bytes, since a tensor that is passed on by handle is gone with the process that made it.
    result = pickle.dumps(function(*arguments))
    distributed.destroy_process_group()  # not after an error, when the others may wait in vain
    return result


def _under_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "LOCAL_RANK" in os.environ


def _join(devices: int, accelerator: str) -> None:
    """Find the other processes, where there are any."""
    if world() == 1 and _under_torchrun():
        here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        nodes = int(os.environ["WORLD_SIZE"]) // here
        _fabric(accelerator=accelerator, devices=here, num_nodes=nodes, strategy="ddp").launch()
    if devices not in (1, world()):
        raise VeilError(
            f"{devices} processes are asked for, but there are {world()}; start them with veil.training.fit.launch or "
            f"`torchrun --nproc-per-node {devices}`"
        )


def _fabric(**options: Any) -> Any:
    try:
        from lightning_fabric import Fabric
    except ImportError:
        try:
            from lightning.fabric import Fabric  # type: ignore[no-redef]
        except ImportError:
            raise VeilError(
                "training with several processes needs Lightning Fabric: pip install 'veil-video[train]'"
            ) from None
    for name in ("lightning_fabric", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return Fabric(**options)


def _averaged(tensor: Tensor) -> Tensor:
    """The mean over all processes."""
    if world() == 1:
        return tensor
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total)
    return total / world()


def _from_first(tensor: Tensor) -> Tensor:
    """What the process of rank 0 has."""
    copy = tensor.clone(memory_format=torch.contiguous_format)
    distributed.broadcast(copy, 0)
    return copy


def _average_gradients(weights: list[nn.Parameter]) -> None:
    """The same mean gradients in every process; a weight that none of them reached stays without."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in weights]
    reached = torch.tensor([p.grad is not None for p in weights], dtype=parts[0].dtype).to(parts[0].device)
    mean = _averaged(torch.cat([*(part.flatten() for part in parts), reached]))
    *means, anywhere = mean.split([*(p.numel() for p in weights), len(weights)])
    for p, gradient, some in zip(weights, means, anywhere.tolist(), strict=True):
        p.grad = torch.empty_like(p).copy_(gradient.view(p.shape)) if some else None


def _optimizer(step: Step[Any], weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = []
    left = {id(p) for p in weights}  # who plays twice learns at the first one's lr_scale
    for module, lr_scale in zip(step.modules, step.lr_scale or (1.0,) * len(step.modules), strict=True):
        own = [p for p in _distinct(module.parameters()) if id(p) in left]
        left -= {id(p) for p in own}
        if own:
            groups.append({"params": own, "lr_scale": lr_scale})
    if step.optimizer == "sgd":
        return torch.optim.SGD(groups, step.lr, momentum=step.momentum, weight_decay=step.weight_decay)
    kind = torch.optim.Adam if step.optimizer == "adam" else torch.optim.AdamW
    fused = all(p.is_cuda and p.is_floating_point() for p in weights)
    return kind(groups, step.lr, weight_decay=step.weight_decay, fused=fused)


def _stacked(step: str, terms: Terms) -> Tensor:
    if not terms:
        raise ValueError(f"the loss of step '{step}' gives no term")
    for name, term in terms.items():
        if term.ndim:
            raise ValueError(f"the term '{name}' of step '{step}' is one number, got {tuple(term.shape)}")
    stacked = torch.stack([term.float() for term in terms.values()])
    if not stacked.requires_grad:
        raise ValueError(f"no term of step '{step}' ({', '.join(terms)}) depends on its modules")
    return stacked


def _read(values: Tensor) -> Callable[[], list[float]]:
    """The values' way to the CPU, begun now and waited for when the result is called."""
    if not values.is_cuda:
        return values.tolist
    copy = values.to("cpu", non_blocking=True)
    there = torch.cuda.Event()
    there.record(torch.cuda.current_stream(values.device))

    def wait() -> list[float]:
        there.synchronize()
        return copy.tolist()

    return wait


def _seed(seed: int, step: int, device: torch.device) -> None:
    digest = hashlib.blake2b(f"{seed} {step} {rank()}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(number)


def _forget(weights: list[nn.Parameter]) -> None:
    for p in weights:
        p.grad = None


def _refuse_poison(tensors: Mapping[str, Tensor], learned: set[str], step: int) -> None:
    for name, tensor in tensors.items():
        # A buffer may be infinite on purpose (the mask of an attention); a weight may not.
        if tensor.isnan().any() or (name in learned and tensor.isinf().any()):
            raise NotFinite(
                f"'{name}' holds values that are not finite after step {step}: "
                "begin anew with a lower learning rate"
            )


def _to_channels_last(weights: Iterable[nn.Parameter]) -> None:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for p in weights:
        if p.ndim in formats:
            p.data = p.data.contiguous(memory_format=formats[p.ndim])


def _persistent(module: nn.Module) -> dict[str, Tensor]:
    skipped = module._non_persistent_buffers_set
    return {name: b for name, b in module.named_buffers(recurse=False) if name not in skipped}


def _each(modules: Iterable[nn.Module], of: Callable[[nn.Module], Iterable[T]]) -> Iterator[T]:
    return chain.from_iterable(of(module) for module in modules)


def _distinct(things: Iterable[T]) -> list[T]:
    return list({id(thing): thing for thing in things}.values())


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else str(tuple(tensor.shape))
