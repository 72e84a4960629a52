"""SPLAVU: anonymize features instead of pixels (Self-supervised Privacy-preservation via Latent Anonymization, 2025).

A small adapter changes what a frozen video encoder makes of clips, so that actions are still recognised, found in long videos and told
from what is unusual, while what a single frame shows of the people is lost. No label says what is private.

Players: the adapter A, a head T for each task (a linear one for actions, TriDet for where actions are, MGFN for what is
unusual). With x the features of a clip, y its label, s and s' those of two static clips (one frame, again and again) of the same video::

    L_T  = L_action(T(A(x)), y) + L_detection + L_anomaly         of as many tasks as are trained
    L_B  = NT-Xent(A(s), A(s'))
    L_LC = mean (A(x) − x)²                                       of the action videos
    draw    A     ←  descend |A(x) − x|₁
    warm    T     ←  descend L_T                                  A holds still
    play    A, T  ←  descend ω_T L_T − ω_B min(L_B, c + m) + ω_LC L_LC        all step together

c = ln(2N − 1) is L_B where all static clips look the same.

**Ours** has no network: A takes out in closed form all that the tasks do not need (`veil.features.erasure.telling`), which no attacker can bring
back, and then puts in place of each clip the mean of the k clips of training videos that are nearest to it (k-same, Newton et al. 2005, in
features; `veil.features.adapter`). Nothing is played; heads are trained to show what is left.

**Match** asks another question of the paper's network, after the same erasure. In the paper's game A can make static clips alike and leave moving
ones as they are. Here a matcher M must find, for a *moving* clip after A, the static clips of its video among those of videos with the
same action, so that the action cannot help it; i runs over clips, J(i) over videos of the same action, s̄ is the mean of a video's static
clips before A::

    p_ij = softmax_{j ∈ J(i)} ( M(A(x_i)) · M'(s̄_j) / τ )
    play    A, T  ←  descend ω_T L_T + ω_B mean_i KL(uniform over J(i) ‖ p_i) + ω_LC L_LC
            M, M' ←  descend −mean_i ln p_ii, the next batches

A brings the matcher to ignorance, not to error, and is told how even where the matcher is sure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from veil.core import VeilError
from veil.data import read as read_data
from veil.data.synthetic import painted_on
from veil.features import encoders
from veil.features.adapter import Adapter, Context, check_others
from veil.features.bank import Bank, extract
from veil.features.erasure import leace, moving, telling
from veil.features.heads.action import Action
from veil.features.heads.anomaly import MGFN, binned
from veil.features.heads.detection import TriDet, on_grid
from veil.training import config
from veil.training.fit import Phase, PhaseSequence, Setup, Step, Terms
from veil.training.losses import chance_loss, clamped, nt_xent
from veil.training.recipe import STRICT, Seed, Training
from veil.training.run import recipe_in, weights_in

MATCH = 128  # numbers in which a matcher compares


# The recipe


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Source:
    """Features of a task: from a store, or of a dataset, extracted when training begins."""

    store: str | None = None  # of `veil features extract`
    data: str | None = None  # the name of a dataset
    root: str | None = None
    options: dict[str, str | int] = Field(default_factory=dict)  # of its reader
    stride: Annotated[int, Field(ge=1)] | None = None  # frames from clip to clip; none: as many as a clip has

    def __post_init__(self) -> None:
        if (self.store is None) == (self.data is None):
            raise VeilError("features come from a store or from data: name one of them.")

    def bank(self, encoder: str, weights: str | None, device: torch.device) -> Bank:
        """The features, in memory."""
        if self.store is not None:
            from veil.features.store import Store

            return Store.open(self.store).bank()
        assert self.data is not None
        made = encoders.make(encoder, weights, device)
        if self.data == "synthetic":
            size = int(self.options.get("size", made.size))
            dataset = read_data(self.data, self.root, **{**self.options, "size": size})
            dataset = painted_on(dataset, device, size=size)
        else:
            dataset = read_data(self.data, self.root, **self.options)
        return extract(dataset, made, stride=self.stride, device=device)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Detector:
    """The sizes of TriDet; the defaults are those for THUMOS14."""

    width: Annotated[int, Field(ge=16, multiple_of=16)] = 512
    hidden: Annotated[int, Field(ge=16)] = 768
    levels: Annotated[int, Field(ge=1, le=8)] = 6
    bins: Annotated[int, Field(ge=1)] = 16


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Watcher:
    """The sizes of MGFN; the defaults are the paper's."""

    widths: tuple[int, int, int] = (64, 128, 1024)
    depths: tuple[int, int, int] = (3, 3, 2)
    top: Annotated[int, Field(ge=1, le=32)] = 3


PAPER = {
    "net": "attention", "layers": 3, "heads": 8, "ratio": 2.0, "start": "drawn", "budget": "static", "erase": "none", "neighbours": 0,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SPLAVU:
    """SPLAVU's training. Defaults: ours; the other presets are the paper, the released code, and the game of matchers."""

    encoder: str = "veil"  # of sources that are extracted
    encoder_weights: str | None = None
    action: Source
    detection: Source | None = None
    anomaly: Source | None = None
    net: Literal["attention", "mlp", "none"] = "none"  # none: what is erased, and who stands for whom
    layers: Annotated[int, Field(ge=1, le=12)] = 3
    heads: Annotated[int, Field(ge=1)] = 8
    ratio: Annotated[float, Field(ge=0, le=8)] = 2.0  # of the feed-forward's width; 0: none
    normed: bool = True  # LayerNorm before attention and feed-forward
    context: Context = "clip"
    standardise: bool = True  # the adapter sees features with mean 0 and deviation 1
    start: Literal["drawn", "identity"] = "identity"  # descended to by L1, or made so
    # What is taken out in closed form first.
    erase: Literal["none", "rest", "looks", "stills", "identity", "attributes"] = "rest"
    # Directions that are left at most; none: all that tell, without looks an eighth.
    keep: Annotated[int, Field(ge=1)] | None = 20
    rank: Annotated[int, Field(ge=1)] | None = None  # directions that LEACE takes of the others; none: all
    neighbours: Annotated[int, Field(ge=0)] = 16  # k, who stand for one; 0: everyone stands for himself
    budget: Literal["static", "match", "none"] = "none"
    task_weight: Annotated[float, Field(ge=0)] = 1.0
    budget_weight: Annotated[float, Field(ge=0)] = 1.0
    consistency: Annotated[float, Field(ge=0)] = 1.0  # ω_LC
    temperature: Annotated[float, Field(gt=0)] = 0.1
    cap: Annotated[float, Field(ge=0)] | None = 0.5  # m of the static budget; none: without bound
    matchers: Annotated[int, Field(ge=1)] = 2
    repeats: Annotated[int, Field(ge=1)] = 3  # of the matchers to one of the adapter
    detector: Detector = Field(default_factory=Detector)
    watcher: Watcher = Field(default_factory=Watcher)
    batch: Annotated[int, Field(ge=2)] = 512  # action videos
    pairs: Annotated[int, Field(ge=2)] | None = None  # of them, how many lend static clips; none: all
    detection_batch: Annotated[int, Field(ge=1)] = 2
    anomaly_batch: Annotated[int, Field(ge=2)] = 8  # normal and as many abnormal
    drawing: Annotated[int, Field(ge=0)] = 0
    warming: Annotated[int, Field(ge=0)] = 200
    playing: Annotated[int, Field(ge=0)] = 0
    lr_draw: Annotated[float, Field(gt=0)] = 1e-4
    lr: Annotated[float, Field(gt=0)] = 3e-4  # of the adapter
    lr_action: Annotated[float, Field(gt=0)] = 1e-3
    lr_detection: Annotated[float, Field(gt=0)] = 1e-3
    lr_anomaly: Annotated[float, Field(gt=0)] = 1e-3
    lr_match: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    seed: Seed = 0

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            **PAPER, "normed": False, "standardise": False, "consistency": 100.0, "cap": 0.5, "drawing": 700,
            "warming": 0, "playing": 700, "lr": 1e-4, "lr_draw": 2e-5, "lr_action": 1e-4,
        },
        "released": {
            **PAPER, "normed": False, "standardise": False, "consistency": 100.0, "cap": "none", "drawing": 500,
            "warming": 0, "playing": 700, "lr": 1e-4, "ratio": 0.0, "context": "batch", "lr_action": 1e-4,
        },
        "match": {"net": "attention", "keep": "none", "neighbours": 0, "budget": "match", "playing": 1000},
        "ours": {},
    }  # fmt: skip

    def __post_init__(self) -> None:
        if self.net == "none" and self.erase == "none":
            raise VeilError(
                "without a network and without erasing nothing is anonymized: choose net or erase."
            )
        if self.steps < 1:
            raise VeilError("drawing, warming and playing are all 0: nothing is trained.")
        if self.pairs is not None and self.pairs > self.batch:
            raise VeilError(
                f"pairs = {self.pairs} of {self.batch} videos are too many: lower pairs or raise batch."
            )

    @property
    def steps(self) -> int:
        """Batches in all."""
        return self.drawing + self.warming + self.playing

    def adapter(self, dim: int) -> Adapter:
        """A fresh adapter."""
        return Adapter(
            dim,
            net=self.net,
            layers=self.layers,
            heads=self.heads,
            ratio=self.ratio,
            normed=self.normed,
            context=self.context,
            identity=self.start == "identity",
            neighbours=self.neighbours,
        )

    def sources(self) -> dict[str, Source]:
        """By the name of its task."""
        every = {"action": self.action, "detection": self.detection, "anomaly": self.anomaly}
        return {name: source for name, source in every.items() if source is not None}

    def training(self, device: torch.device, devices: int) -> Training:
        """See `Recipe`."""
        banks = {
            name: source.bank(self.encoder, self.encoder_weights, device)
            for name, source in self.sources().items()
        }
        return trained_on(self, banks, device, devices)


# The game


class Batch(NamedTuple):
    """What is drawn for one step; who is not trained has nothing."""

    clips: Tensor  # (B, N, D) of action videos
    mask: Tensor  # (B, N)
    action: Tensor  # (B,), or (B, K) where a video shows several
    stills: Tensor  # (P, 2, D): two static clips of each of the first P of them
    looks: Tensor  # (P, D): the mean of all their static clips
    detection: tuple[Tensor, Tensor, list[Any]] | None = None  # features, mask, segments on the grid
    anomaly: tuple[Tensor, Tensor, Tensor] | None = None  # features, mask, which are abnormal


class Batches:
    """Batches by their number, from 0: the same number, the same batch."""

    def __init__(self, recipe: SPLAVU, banks: dict[str, Bank], device: torch.device) -> None:
        self.recipe = recipe
        self.banks = {name: bank.split("train").to(device) for name, bank in banks.items()}
        for name, bank in self.banks.items():
            if not len(bank):
                raise VeilError(f"the features for {name} have no training videos: check their splits.")
        self.action = self.banks["action"]
        check_others(int(self.action.mask.sum()), recipe.neighbours)  # before hours of training, not after
        if recipe.budget != "none" and self.action.stills.shape[1] < 2:
            raise VeilError(
                f"the features for action have {self.action.stills.shape[1]} static clips a video, and the budget needs two: "
                "extract them with --stills."
            )
        self.truth = self.action.truth("action")
        if (self.truth < 0).any():
            raise VeilError("some features for action are of videos without an action: leave these out.")
        self.segments: list[Any] = []
        if "detection" in self.banks:
            bank = self.banks["detection"]
            places = zip(bank.samples, bank.starts.cpu().numpy(), bank.counts.tolist(), strict=True)
            self.segments = [on_grid(s.segments, starts[:count], bank.length) for s, starts, count in places]
            if not any(self.segments):
                raise VeilError(
                    "the features for detection are of videos without segments: there is nothing to find."
                )
        if "anomaly" in self.banks:
            bank = self.banks["anomaly"]
            abnormal = bank.truth("action") > 0  # 0 is normal
            self.kinds = [abnormal.logical_not().nonzero()[:, 0], abnormal.nonzero()[:, 0]]
            if not all(map(len, self.kinds)):
                raise VeilError("the features for anomaly need videos of both kinds, normal and abnormal.")

    def __call__(self, number: int) -> Batch:
        """Batch ``number``."""
        recipe, bank = self.recipe, self.action
        dice = torch.Generator().manual_seed(1_000_003 * recipe.seed + number)
        device = bank.clips.device
        rows = _some(len(bank), recipe.batch, dice).to(device)
        pairs = rows[: recipe.pairs]
        which = torch.rand(len(pairs), max(2, bank.stills.shape[1]), generator=dice).argsort(1)[:, :2]
        has = bank.stills.shape[1] >= 2
        blank = bank.clips.new_zeros(len(pairs), 2, bank.dim)
        return Batch(
            clips=bank.clips[rows],
            mask=bank.mask[rows],
            action=self.truth[rows],
            stills=bank.stills[pairs[:, None], which.to(device)] if has else blank,
            looks=bank.stills[pairs].mean(1) if has else blank[:, 0],
            detection=self._detection(dice),
            anomaly=self._anomaly(dice),
        )

    def _detection(self, dice: torch.Generator) -> tuple[Tensor, Tensor, list[Any]] | None:
        bank = self.banks.get("detection")
        if bank is None:
            return None
        rows = _some(len(bank), self.recipe.detection_batch, dice)
        there = rows.to(bank.clips.device)
        return bank.clips[there], bank.mask[there], [self.segments[row] for row in rows.tolist()]

    def _anomaly(self, dice: torch.Generator) -> tuple[Tensor, Tensor, Tensor] | None:
        bank = self.banks.get("anomaly")
        if bank is None:
            return None
        half = self.recipe.anomaly_batch
        rows = torch.cat([kind[_some(len(kind), half, dice).to(kind.device)] for kind in self.kinds])
        return bank.clips[rows], bank.mask[rows], torch.arange(2 * half, device=rows.device) >= half


def _some(count: int, wanted: int, dice: torch.Generator) -> Tensor:
    """Places in 0..count−1: each once, or, where more are wanted than there are, anew from the start."""
    rounds = [torch.randperm(count, generator=dice) for _ in range(math.ceil(wanted / count))]
    return torch.cat(rounds)[:wanted]


class Matcher(nn.Module):
    """M and M': moving clips after A and what static ones look like, in one space of unit vectors."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.moving, self.still = (
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, MATCH))
            for _ in range(2)
        )

    def forward(self, clips: Tensor, looks: Tensor, temperature: float, allowed: Tensor) -> Tensor:
        """Logits ``(P, P)``: clip i against look j; −inf where j is not among its candidates."""
        a = F.normalize(self.moving(clips).float(), dim=-1)
        b = F.normalize(self.still(looks).float(), dim=-1)
        return (a @ b.T / temperature).masked_fill(~allowed, -math.inf)


def candidates(action: Tensor) -> Tensor:
    """Which of the videos each may be taken for, ``(P, P)`` bool: those with the same action, itself among them."""
    if action.ndim == 1:
        return action[:, None] == action
    return (action[:, None] == action).all(-1)


def knowledge(answers: Tensor, allowed: Tensor) -> Tensor:
    """KL(uniform over the candidates ‖ p), ``(M, P)``; ln p is ``(M, P, P)`` and the candidates ``(P, P)`` bool."""
    count = allowed.sum(1)
    return -answers.masked_fill(~allowed, 0).sum(-1) / count - count.log()


class Players:
    """The adapter, the heads and the matchers, and what each of them descends."""

    def __init__(self, recipe: SPLAVU, banks: dict[str, Bank], device: torch.device) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        action = banks["action"]
        _alike(list(banks.values()))
        self.adapter = recipe.adapter(action.dim)
        _prepare(self.adapter, recipe, {name: bank.split("train") for name, bank in banks.items()})
        self.heads: dict[str, nn.Module] = {"action": Action(action.dim, len(action.actions))}
        if "detection" in banks:
            classes = len(banks["detection"].actions)
            self.heads["detection"] = TriDet(action.dim, classes, **config.as_dict(recipe.detector))
        if "anomaly" in banks:
            self.heads["anomaly"] = MGFN(
                action.dim, widths=recipe.watcher.widths, depths=recipe.watcher.depths, top=recipe.watcher.top
            )
        self.matchers = nn.ModuleList(
            Matcher(action.dim) for _ in range(recipe.matchers if recipe.budget == "match" else 0)
        )
        for module in self.all().values():
            module.to(device)

    def all(self) -> dict[str, nn.Module]:
        """By the name under which a checkpoint knows them."""
        return {"adapter": self.adapter, **self.heads, "matchers": self.matchers}

    def standard(self, x: Tensor) -> Tensor:
        """Features as the adapter's network sees them."""
        return (x - self.adapter.mean) / self.adapter.scale

    def draw(self, batch: Batch) -> Terms:
        """A learns to change nothing."""
        x = batch.stills.flatten(0, 1)[:, None]
        moving = (self.adapter(batch.clips, batch.mask) - batch.clips)[batch.mask]
        return {"clips": moving.abs().mean(), "stills": (self.adapter(x) - x).abs().mean()}

    def tasks(self, batch: Batch, clips: Tensor) -> Terms:
        """L_T, term by term; ``clips`` are the action videos after A."""
        head = self.heads["action"]
        assert isinstance(head, Action)
        terms = head.loss(head(clips, batch.mask), batch.action, batch.mask)
        if batch.detection is not None:
            x, mask, segments = batch.detection
            head = self.heads["detection"]
            assert isinstance(head, TriDet)
            found = head.loss(head(self.adapter(x, mask), mask), segments)
            terms |= {f"detection {name}": value for name, value in found.items()}
        if batch.anomaly is not None:
            x, mask, abnormal = batch.anomaly
            head = self.heads["anomaly"]
            assert isinstance(head, MGFN)
            found = head.loss(head(binned(self.adapter(x, mask), mask)), abnormal)
            terms |= {f"anomaly {name}": value for name, value in found.items()}
        return {name: self.recipe.task_weight * value for name, value in terms.items()}

    def static_loss(self, batch: Batch) -> Tensor:
        """L_B as published."""
        after = self.adapter(batch.stills.flatten(0, 1)[:, None])[:, 0].unflatten(0, (-1, 2))
        return nt_xent(after[:, 0], after[:, 1], self.recipe.temperature)

    def matched(self, batch: Batch, clips: Tensor) -> tuple[Tensor, Tensor]:
        """Ours: ln p of each matcher ``(M, P, P)``, and which are candidates ``(P, P)``."""
        count = len(batch.looks)
        allowed = candidates(batch.action[:count])
        weights = batch.mask[:count].float()
        one = torch.multinomial(weights, 1)[:, 0]  # a clip of each video
        moving = self.standard(clips[torch.arange(count, device=one.device), one])
        looks = self.standard(batch.looks)
        answers = [matcher(moving, looks, self.recipe.temperature, allowed) for matcher in self.matchers]
        return torch.stack(answers).log_softmax(-1), allowed

    def hide(self, batch: Batch) -> Terms:
        """What A and the heads descend."""
        r = self.recipe
        after = self.adapter(batch.clips, batch.mask)
        moved = (self.standard(after) - self.standard(batch.clips))[batch.mask]
        terms = {**self.tasks(batch, after), "consistency": r.consistency * moved.square().mean()}
        if r.budget == "static":
            loss, ignorant = self.static_loss(batch), chance_loss(len(batch.stills))
            terms["budget"] = -r.budget_weight * (loss if r.cap is None else clamped(loss, ignorant + r.cap))
        elif r.budget == "match":
            terms["budget"] = +r.budget_weight * knowledge(*self.matched(batch, after)).mean()
        return terms

    def keep(self, batch: Batch) -> Terms:
        """What the heads descend while A holds still; the matchers, too."""
        after = self.adapter(batch.clips, batch.mask)
        return {**self.tasks(batch, after), **(self.match(batch) if len(self.matchers) else {})}

    def match(self, batch: Batch) -> Terms:
        """What the matchers descend."""
        with torch.no_grad():
            after = self.adapter(batch.clips, batch.mask)
        answers, _ = self.matched(batch, after)
        return {"match": -answers.diagonal(dim1=1, dim2=2).mean()}

    @torch.no_grad()
    def check(self, val: Bank, device: torch.device) -> dict[str, float]:
        """How well actions of validation videos are recognised, and how far features have moved."""
        if not len(val):
            return {}
        head = self.heads["action"]
        assert isinstance(head, Action)
        modes = [(module, module.training) for module in (self.adapter, head)]
        for module, _ in modes:
            module.eval()
        bank = val.to(device)
        after = self.adapter(bank.clips, bank.mask)
        answers = head.probabilities(after, bank.mask)
        moved = (self.standard(after) - self.standard(bank.clips))[bank.mask].square().mean()
        for module, mode in modes:
            module.train(mode)
        right = (answers.argmax(1) == bank.truth("action")).float().mean()
        return {"action accuracy": float(right), "moved": float(moved)}


def trained_on(recipe: SPLAVU, banks: dict[str, Bank], device: torch.device, devices: int = 1) -> Training:
    """The training of a recipe on features that are at hand, by task."""
    batches = Batches(recipe, banks, device)
    players = Players(recipe, banks, device)
    # TriDet's and MGFN's losses are steep at first.
    setup = Setup(seed=recipe.seed, clip=1.0, devices=devices)
    heads, lr = players.heads, recipe.lr
    rates = {"action": recipe.lr_action, "detection": recipe.lr_detection, "anomaly": recipe.lr_anomaly}
    pace = tuple(rates[name] / lr for name in heads)
    learned = recipe.net != "none"

    def warm() -> Phase[Batch]:
        more = (players.matchers,) if len(players.matchers) else ()
        paces = (*pace, *((recipe.lr_match / lr,) if more else ()))
        move = Step(
            "warm", (*heads.values(), *more), players.keep, lr, "adamw", recipe.weight_decay, lr_scale=paces
        )
        return Phase([move], setup)

    def play() -> Phase[Batch]:
        everyone = (
            ((players.adapter, *heads.values()), (1.0, *pace)) if learned else (tuple(heads.values()), pace)
        )
        moves = [
            Step(
                "hide", everyone[0], players.hide if learned else players.keep, lr, "adamw", recipe.weight_decay,
                lr_scale=everyone[1],
            )
        ]  # fmt: skip
        if len(players.matchers) and learned:
            moves.append(
                Step("match", (players.matchers,), players.match, recipe.lr_match, "adamw", recipe.weight_decay, repeats=recipe.repeats)
            )  # fmt: skip
        return Phase(moves, setup)

    def draw() -> Phase[Batch]:
        return Phase([Step("draw", (players.adapter,), players.draw, recipe.lr_draw, "adamw")], setup)

    drawing = recipe.drawing if learned else 0
    # Where there is nothing to draw with, its steps are the heads'.
    games = [(drawing, draw), (recipe.warming, warm), (recipe.playing + recipe.drawing - drawing, play)]
    val = banks["action"].split("val")

    def weights() -> dict[str, Tensor]:
        if recipe.neighbours:
            players.adapter.eval().remember(batches.action)
        return players.adapter.state_dict()

    return Training(PhaseSequence(players.all(), games), batches, lambda: players.check(val, device), weights)


def _alike(banks: Sequence[Bank]) -> None:
    first = banks[0]
    for bank in banks[1:]:
        if (bank.encoder, bank.fingerprint, bank.dim) != (first.encoder, first.fingerprint, first.dim):
            raise VeilError(
                f"features of {first.encoder} ({first.fingerprint[:12]}) and of {bank.encoder} ({bank.fingerprint[:12]}) "
                "do not mix: extract all with one encoder."
            )


@torch.no_grad()
def _prepare(adapter: Adapter, recipe: SPLAVU, banks: dict[str, Bank]) -> None:
    """What the adapter knows before it learns: which features these are, their scale, and what is erased."""
    train = banks["action"]
    adapter.tell(train)
    clips = train.clips[train.mask]
    if recipe.standardise:
        adapter.mean = clips.mean(0)
        adapter.scale = clips.std(0).clamp_min(1e-4 * float(clips.std()))
    if recipe.erase == "none":
        return
    if recipe.erase == "rest":
        told = [_told(bank) for name, bank in banks.items() if name != "anomaly"]
        if all(bool((labels == labels[:1]).all()) for _, labels in told):
            raise VeilError(
                "the training videos of the features for action all have the same label: there is nothing that tells them apart."
            )
        adapter.eraser = telling(
            [((x - adapter.mean) / adapter.scale, labels) for x, labels in told], recipe.keep
        )
        return
    x, concept = ((train.clips - adapter.mean) / adapter.scale)[train.mask], _concept(recipe, train)
    if recipe.erase == "looks":
        stills = (concept - adapter.mean) / adapter.scale
        adapter.eraser = moving(x, stills, min(train.dim, recipe.keep or max(1, train.dim // 8)))
    else:
        adapter.eraser = leace(x, concept, recipe.rank)


def _told(bank: Bank) -> tuple[Tensor, Tensor]:
    """The clips of training videos ``(N, D)`` and what is known of each ``(N, C)``: its segment's label, or its video's."""
    places = bank.mask.nonzero()
    if any(sample.segments for sample in bank.samples):
        middle = (bank.starts + bank.length / 2)[bank.mask].tolist()
        label = [
            next((s.label + 1 for s in bank.samples[row].segments if s.start <= at < s.end), 0)
            for row, at in zip(places[:, 0].tolist(), middle, strict=True)
        ]
        return bank.clips[bank.mask], F.one_hot(torch.tensor(label, device=places.device)).float()
    truth = bank.truth("action")[places[:, 0]]
    return bank.clips[bank.mask], (F.one_hot(truth) if truth.ndim == 1 else truth).float()


def _concept(recipe: SPLAVU, train: Bank) -> Tensor:
    """What is to be erased from each clip of the training videos, ``(clips, C)``."""
    if recipe.erase in ("looks", "stills"):
        if not train.stills.shape[1]:
            raise VeilError(
                "the features for action have no static clips to erase: extract them with --stills."
            )
        each = train.stills.mean(1)
    else:
        each = train.truth(recipe.erase)
        if not bool((each >= 0).all()):  # nan is not, either
            raise VeilError(
                f"some training videos of the features for action do not say their {recipe.erase}, which is to be erased: leave these out."
            )
        each = F.one_hot(each).float() if each.ndim == 1 else each
    return each[:, None].expand(-1, train.clips.shape[1], -1)[train.mask]


def load(run: str | Path) -> Adapter:
    """The adapter of a run folder."""
    folder = Path(run)
    kind, plain = recipe_in(folder)
    if kind != "splavu":
        raise VeilError(f"{folder} is a run of '{kind}', which changes no features: name a run of splavu.")
    path = weights_in(folder)
    recipe = config.checked(plain, SPLAVU, lambda key: str(folder / "run.json"))
    try:
        tensors = load_file(path)
        adapter = recipe.adapter(len(tensors["mean"]))
        adapter.fill(tensors)
    except (SafetensorError, RuntimeError, OSError, KeyError) as error:
        why = str(error).strip().splitlines()[0]
        raise VeilError(f"{path} does not hold the weights of its run ({why}): train it again.") from error
    return adapter.eval().requires_grad_(False)
