"""Scenarios of synthetic videos: the people, their places, their actions and the times.

A scenario is a function of the seed, the kind of video and its index. Actions, identities and backgrounds are balanced:
each is as frequent as the others, and independent of them; everything else is random. The kinds are in `dataset`.

The names of random streams are part of the seed: renaming one changes the videos.
"""

from __future__ import annotations

import zlib
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from veil.data.sample import Split
from veil.data.synthetic.backgrounds import BACKGROUNDS
from veil.data.synthetic.motion import ACTIONS, RUN, STAND, WALK, Gait, speeds
from veil.data.synthetic.people import (
    ACCESSORIES,
    TRAITS,
    People,
    people,
    shuffled,
    uniform,
    with_equal_looks,
)

Kind = Literal["clips", "stills", "untrimmed", "surveillance", "bias", "gait", "gait-alike"]
KINDS: tuple[Kind, ...] = get_args(Kind)

ATTRIBUTES = (*TRAITS, "company")
ANOMALIES = ("normal", "fall", "fight", "run")  # labels of surveillance videos
FLIPPED = "wave"  # the action with the opposite gender in the bias split
VIEWS = (0, 45, 90, 135, 180)  # degrees: towards the camera, ..., away from it
WALKS = ("nm-01", "nm-05", "nm-04", "bg-01", "nm-02", "cl-01", "nm-03", "nm-06", "bg-02", "cl-02")
IDENTITIES = 32
FPS = 10
LENGTHS: dict[Kind, int] = {
    "clips": 16,
    "stills": 1,
    "untrimmed": 256,
    "surveillance": 400,
    "bias": 16,
    "gait": 32,
    "gait-alike": 32,
}
COUNTS: dict[Kind, int] = {
    "clips": 1920,
    "stills": 4000,
    "untrimmed": 80,
    "surveillance": 80,
    "bias": 1920,
    "gait": 1600,
    "gait-alike": 1600,
}

FIGHT, PICK_UP = ACTIONS.index("fight"), ACTIONS.index("pick up")
# The splits of ten blocks of indices, mixed so that a few blocks already have all three.
_TEN: dict[int, Split] = {1: "test", 3: "val", 6: "test"}
_SPLITS: tuple[Split, ...] = tuple(_TEN.get(i, "train") for i in range(10))
_MINORITY = 20  # one in 20 is against the bias
_ACTS = 6  # at most, in an untrimmed video
_PASSERS, _EVENTS = 4, 3  # in a surveillance video; in half of the videos one of the events is an anomaly
_LONG = 1e4  # seconds: without end


class Scenario(NamedTuple):
    """The scenarios of B videos: P people, each with S actions in sequence; times in seconds."""

    number: Tensor  # (B, P)
    outfit: Tensor  # (B, P) the number of the person whose clothes they have
    present: Tensor  # (B, P) whether the person is in the video
    action: Tensor  # (B, P, S)
    start: Tensor  # (B, P, S)
    stop: Tensor  # (B, P, S)
    heading: Tensor  # (B, P, S) degrees
    phase: Tensor  # (B, P)
    vigour: Tensor  # (B, P)
    mirror: Tensor  # (B, P)
    ground: Tensor  # (B, P, 2) positions at time 0: to the right of the centre and towards the camera
    accessories: Tensor  # (B, P, WORN)
    label: Tensor  # (B,)
    background: Tensor  # (B,)
    start_time: Tensor  # (B,) the time of the first frame


class VideoRng:
    """Random numbers of one kind of video, by index."""

    def __init__(self, seed: int, kind: Kind, identities: int) -> None:
        self.seed, self.kind, self.identities = seed, kind, identities
        # The walks of both gait kinds are the same.
        self._salt = zlib.crc32(kind.removesuffix("-alike").encode()) & 0x7FFFFFF

    def keys(self, index: Tensor) -> Tensor:
        """Keys that differ between kinds, as far as 32 bits allow."""
        return index * 31 + self._salt

    def uniform(self, stream: str, index: Tensor, count: int) -> Tensor:
        """Uniform numbers in [0, 1): ``(B, count)``."""
        return uniform(self.seed, stream, self.keys(index), count)

    def balanced_choice(self, stream: str, group: Tensor | int, ordinal: Tensor, count: int) -> Tensor:
        """The choice among ``count`` of the ordinal-th in a group: all come once before one comes again."""
        round_ = ordinal.div(count, rounding_mode="floor")
        order = shuffled(self.seed, stream, self.keys(round_ * 1009 + group), count)
        return order.gather(1, ordinal.remainder(count)[:, None])[:, 0]


def people_in(rng: VideoRng, scenario: Scenario) -> People:
    """The people of a video; companions share attributes, so that labels are true of both."""
    number = scenario.number
    kin = None if rng.kind in ("gait", "gait-alike", "surveillance") else number[:, :1]
    persons = people(rng.seed, number, rng.identities, like=kin, outfit=scenario.outfit)
    if rng.kind == "gait-alike":
        return with_equal_looks(persons)
    if rng.kind in ("untrimmed", "surveillance"):  # the second has the gait of the first
        keep = torch.tensor([0, 0, *range(2, number.shape[1])], device=number.device)
        persons = persons._replace(gait=Gait(*(value[:, keep] for value in persons.gait)))
    return persons


def split_of(block: int) -> Split:
    """The split of a block of indices: 7, 1 and 2 in 10."""
    return _SPLITS[block % len(_SPLITS)]


def block_size(kind: Kind) -> int:
    """The number of consecutive indices in the same split."""
    return {"clips": len(ACTIONS), "bias": len(ACTIONS), "surveillance": 2}.get(kind, 1)


def _clips(rng: VideoRng, index: Tensor) -> Scenario:
    block = index.div(len(ACTIONS), rounding_mode="floor")
    action = rng.balanced_choice("action", 0, index, len(ACTIONS))
    identity = rng.balanced_choice("identity", action, block, rng.identities)
    return _act_alone_or_not(rng, index, block, action, identity)


def _bias(rng: VideoRng, index: Tensor) -> Scenario:
    block = index.div(len(ACTIONS), rounding_mode="floor")
    action = rng.balanced_choice("action", 0, index, len(ACTIONS))
    split = torch.tensor([("train", "val", "test").index(name) for name in _SPLITS], device=index.device)
    before = torch.tensor([_SPLITS[:i].count(name) for i, name in enumerate(_SPLITS)], device=index.device)
    inside = torch.tensor([_SPLITS.count(name) for name in _SPLITS], device=index.device)
    place = block.remainder(len(_SPLITS))
    # The ordinal of the block in its split, so that exactly one in twenty is against the bias.
    ordinal = block.div(len(_SPLITS), rounding_mode="floor") * inside[place] + before[place]
    against = rng.balanced_choice("minority", action + 100 * split[place], ordinal, _MINORITY)
    odd = torch.where(split[place] == 2, against < _MINORITY // 2, against == 0)  # test is balanced
    female = (action == ACTIONS.index(FLIPPED)) ^ odd
    women = people(rng.seed, torch.arange(rng.identities, device=index.device), rng.identities).trait(
        "female"
    )
    order, half = (~women).long().argsort(stable=True), int(women.sum())  # women first
    pick = rng.balanced_choice("identity", action + 100 * female, ordinal, rng.identities)
    men = half + pick.remainder(rng.identities - half)
    identity = order[torch.where(female, pick.remainder(half), men)]
    return _act_alone_or_not(rng, index, block, action, identity)


def _stills(rng: VideoRng, index: Tensor) -> Scenario:
    u = rng.uniform("still", index, 3)
    action = (u[:, 0] * len(ACTIONS)).long()
    unseen = rng.identities + 1 + 2 * index
    scenario = _act_alone_or_not(rng, index, index, action, unseen)
    return scenario._replace(start_time=0.3 + 1.1 * u[:, 1])


def _act_alone_or_not(
    rng: VideoRng, index: Tensor, block: Tensor, action: Tensor, number: Tensor
) -> Scenario:
    """One action; half of all videos have a second person, who stands by unless there is a fight."""
    apart = 2 * (
        len(ACTIONS) - 1
    )  # every fight has two people; this share of the others makes it half of all
    company = (rng.balanced_choice("company", action, block, apart) < apart // 2 - 1) | (action == FIGHT)
    u = rng.uniform("act", index, 16)
    side = torch.where(u[:, 0] < 0.5, -1.0, 1.0)
    turn = torch.where(company, side * (35 + 40 * u[:, 1]), side * (20 + 55 * u[:, 1]))
    heading = torch.stack([turn, -side * (35 + 45 * u[:, 2])], dim=1)[..., None]  # (B, 2, 1)
    x = torch.where(company, -0.2 * side, 0.0) + 0.2 * (u[:, 3] - 0.5)
    ground = torch.stack([x, 0.2 * (u[:, 4] - 0.5), x + 0.84 * side, -0.38 + 0.1 * u[:, 5]], dim=1)
    actions = torch.stack([action, torch.where(action == FIGHT, FIGHT, STAND)], dim=1)[..., None]
    start = (0.12 * u[:, 6:8])[..., None]
    phase = torch.stack([u[:, 8], torch.where(action == FIGHT, u[:, 8] + 0.45, u[:, 9])], dim=1)
    numbers = torch.stack([number, _unseen_identity(rng, index)], dim=1)
    return Scenario(
        number=numbers,
        outfit=numbers,
        present=torch.stack([torch.ones_like(company), company], dim=1),
        action=actions,
        start=start,
        stop=torch.full_like(start, _LONG),
        heading=heading,
        phase=phase.remainder(1.0),
        vigour=0.88 + 0.2 * u[:, 10:12],
        mirror=u[:, 12:14] < 0.5,
        ground=ground.view(-1, 2, 2),
        accessories=torch.zeros(len(index), 2, len(ACCESSORIES), dtype=torch.bool, device=index.device),
        label=action,
        background=rng.balanced_choice("place", action, block, len(BACKGROUNDS)),
        start_time=torch.zeros(len(index), dtype=torch.float64, device=index.device),
    )


def _unseen_identity(rng: VideoRng, index: Tensor) -> Tensor:
    return 1_000_000 + (rng.uniform("companion", index, 1)[:, 0] * 1e8).long()


def _untrimmed(rng: VideoRng, index: Tensor) -> Scenario:
    """Actions and pauses in turn; a companion follows, and takes part in a fight."""
    number, first = (
        rng.balanced_choice("who", 0, index, rng.identities),
        rng.balanced_choice("first", 0, index, STAND),
    )
    scenario = _act_alone_or_not(rng, index, index, first, number)
    u = rng.uniform("acts", index, 2 * _ACTS + 1)
    total = LENGTHS["untrimmed"] / FPS
    used = (
        torch.arange(_ACTS, device=index.device)
        < 3 + rng.balanced_choice("count", 0, index, _ACTS - 2)[:, None]
    )
    act = torch.where(used, 1.8 + 1.4 * u[:, :_ACTS], 0.0)  # (B, 6) seconds
    pause = torch.where(used, 0.5 + u[:, _ACTS:-1], 0.0)
    pause = torch.cat([pause, 0.5 + u[:, -1:]], dim=1)  # (B, 7) before, between and after
    pause = pause / pause.sum(1, keepdim=True) * (total - act.sum(1, keepdim=True))
    stop = _alternate(pause, act).cumsum(1)  # (B, 13)
    start = torch.cat([torch.zeros_like(stop[:, :1]), stop[:, :-1]], dim=1)
    order = [rng.balanced_choice("acts", 0, index * _ACTS + i, len(ACTIONS)) for i in range(_ACTS)]
    still = torch.full((len(index), _ACTS + 1), STAND, device=index.device)
    does = _alternate(still, torch.where(used, torch.stack(order, dim=1), STAND))
    goes = (does == WALK) | (does == RUN)
    other = torch.where(goes | (does == FIGHT), does, STAND)
    company = (scenario.present[:, 1] & (first != FIGHT)) | (does == FIGHT).any(1)
    ahead, back = scenario.heading.expand(-1, -1, does.shape[1]).unbind(1)
    return scenario._replace(
        present=torch.stack([torch.ones_like(company), company], dim=1),
        action=torch.stack([does, other], dim=1),
        start=start[:, None].repeat(1, 2, 1),
        stop=stop[:, None].repeat(1, 2, 1),
        heading=torch.stack([ahead, torch.where(goes, ahead, back)], dim=1),
        label=torch.full_like(index, -1),
        background=rng.balanced_choice("place", 0, index, len(BACKGROUNDS)),
    )


def _alternate(outer: Tensor, inner: Tensor) -> Tensor:
    """The first of ``outer`` (B, N + 1), the first of ``inner`` (B, N), the second of ``outer``, ..."""
    both = torch.stack([outer[:, :-1], inner], dim=2).flatten(1)
    return torch.cat([both, outer[:, -1:]], dim=1)


def _surveillance(rng: VideoRng, index: Tensor) -> Scenario:
    """Two people walk one behind the other, two in other lanes; three times the first one stops for an event."""
    block = index.div(2, rounding_mode="floor")
    bad = rng.balanced_choice("bad", 0, index, 2) == 0
    label = torch.where(bad, 1 + rng.balanced_choice("anomaly", 0, block, len(ANOMALIES) - 1), 0)
    u = rng.uniform("passing", index, 40)
    nth = torch.arange(_EVENTS, device=index.device)
    total = LENGTHS["surveillance"] / FPS
    at = (nth + 0.2 + 0.4 * u[:, :3]) * (total / _EVENTS)  # (B, 3) seconds
    usual = torch.tensor([STAND, ACTIONS.index("wave"), PICK_UP, STAND], device=index.device)
    anomaly = torch.tensor([STAND, *(ACTIONS.index(name) for name in ANOMALIES[1:])], device=index.device)
    which = (u[:, 9] * _EVENTS).long()
    hit = bad[:, None] & (nth == which[:, None])
    events = torch.where(hit, anomaly[label][:, None], usual[(u[:, 6:9] * len(usual)).long()])
    walks = torch.full((len(index), _EVENTS + 1), WALK, device=index.device)
    first = _alternate(walks, events)  # (B, 7)
    # The second waits during an event, unless it is a fight or the first runs away.
    second = torch.where(first == FIGHT, FIGHT, STAND)
    second = torch.where((first == WALK) | (first == RUN), WALK, second)
    others = torch.full_like(first, WALK)
    bounds = torch.stack([at, at + 2.6 + 2.0 * u[:, 3:6]], dim=2).flatten(1)
    edge = torch.full_like(at[:, :1], _LONG)
    start, stop = torch.cat([-edge, bounds], dim=1), torch.cat([bounds, edge], dim=1)
    side = torch.where(u[:, 10:11] < 0.5, -1.0, 1.0).expand_as(start)
    ahead, away = side * (80 + 20 * u[:, 11:12]), -side * (80 + 20 * u[:, 12:13])
    turned = torch.where(
        (first == FIGHT) | (first == STAND), -ahead, ahead
    )  # the first turns round to the second
    lanes = torch.stack(
        [0.4 * u[:, 15], 0.4 * u[:, 15] - 0.15, 0.9 + 0.2 * u[:, 16], -0.55 - 0.2 * u[:, 17]], dim=1
    )
    present = torch.stack([torch.ones_like(bad), torch.ones_like(bad), u[:, 18] < 0.8, u[:, 19] < 0.6], dim=1)
    companions = [_unseen_identity(rng, index * 8 + i) for i in range(1, _PASSERS)]
    number = torch.stack([rng.balanced_choice("who", 0, index, rng.identities), *companions], dim=1)
    scenario = Scenario(
        number=number,
        outfit=number,
        present=present,
        action=torch.stack([first, second, others, others], dim=1),
        start=start[:, None].repeat(1, _PASSERS, 1),
        stop=stop[:, None].repeat(1, _PASSERS, 1),
        heading=torch.stack([turned, ahead, away, 88 * side], dim=1),
        phase=u[:, 20:24],
        vigour=0.92 + 0.16 * u[:, 24:28],
        mirror=u[:, 28:32] < 0.5,
        ground=torch.stack([torch.zeros_like(lanes), lanes], dim=2),
        accessories=u[:, 32:40].view(-1, _PASSERS, len(ACCESSORIES)) < 0.2,
        label=label,
        background=rng.balanced_choice("place", 0, block, len(BACKGROUNDS)),
        start_time=torch.zeros_like(at[:, 0]),
    )
    # The first is near the centre of the frame at the chosen event.
    start_time = at.gather(1, which[:, None])
    gone = displacement(scenario, people_in(rng, scenario), start_time[..., None])[:, 0, 0]
    scenario.ground[:, 0, 0] = 1.6 * (u[:, 13] - 0.5) - gone
    scenario.ground[:, 1, 0] = scenario.ground[:, 0, 0] - 0.85 * side[:, 0]
    scenario.ground[:, 2:, 0] = 6 * (u[:, 13:15] - 0.5)
    return scenario


def _gait(rng: VideoRng, index: Tensor) -> Scenario:
    number, walk, view = gait_of(index, rng.identities)
    u = rng.uniform("walk", index, 6)
    heading = torch.tensor(VIEWS, device=index.device, dtype=torch.float64)[view] + 8 * (u[:, 0] - 0.5)
    accessories = torch.tensor(
        [[name.startswith(word) for word in ("bg", "cl")] for name in WALKS], device=index.device
    )
    start = torch.full((len(index), 1, 1), -5.0, dtype=torch.float64, device=index.device)
    return Scenario(
        number=number[:, None],
        outfit=torch.where(accessories[walk][:, 1], _unseen_identity(rng, index), number)[
            :, None
        ],  # a coat, and all else
        present=torch.ones_like(number, dtype=torch.bool)[:, None],
        action=torch.full_like(number, WALK)[:, None, None],
        start=start,
        stop=torch.full_like(start, _LONG),
        heading=heading[:, None, None],
        phase=u[:, 1:2],
        vigour=0.97 + 0.06 * u[:, 2:3],
        mirror=u[:, 3:4] < 0.5,
        ground=0.2 * (u[:, 4:6] - 0.5)[:, None],
        accessories=accessories[walk][:, None],
        label=torch.full_like(number, WALK),
        background=rng.balanced_choice("place", 0, index, len(BACKGROUNDS)),
        start_time=torch.zeros(len(index), dtype=torch.float64, device=index.device),
    )


def gait_of(index: Tensor, identities: int) -> tuple[Tensor, Tensor, Tensor]:
    """The person, the index into WALKS and the index into VIEWS of gait videos."""
    number, turn = index.remainder(identities), index.div(identities, rounding_mode="floor")
    walk = turn.remainder(len(WALKS))
    return number, walk, (turn.div(len(WALKS), rounding_mode="floor") + walk).remainder(len(VIEWS))


def make_scenario(rng: VideoRng, index: Tensor) -> Scenario:
    """The scenarios of the videos with these indices."""
    return _SCENARIOS[rng.kind](rng, index)


_SCENARIOS = {
    "clips": _clips,
    "stills": _stills,
    "untrimmed": _untrimmed,
    "surveillance": _surveillance,
    "bias": _bias,
    "gait": _gait,
    "gait-alike": _gait,
}


def select_people(persons: People, which: Tensor) -> People:
    """The people of the videos ``which``, with repetitions."""
    taken = {name: value[which] for name, value in persons._asdict().items() if name != "gait"}
    return People(**taken, gait=Gait(*(value[which] for value in persons.gait)))


def current_segment(scenario: Scenario, time: Tensor) -> Tensor:
    """The index of the current action of each person: times (B, T) to (B, T, P)."""
    return ((time[:, :, None, None] >= scenario.start[:, None]).sum(-1) - 1).clamp_min(0)


def displacement(scenario: Scenario, persons: People, time: Tensor) -> Tensor:
    """The displacement of people since time 0, to the right and towards the camera: times (B, 1, 1) to (B, P, 2)."""
    speed = speeds(scenario.action, Gait(*(value[..., None] for value in persons.gait)))  # (B, P, S)
    begin = scenario.start.clamp_min(0)
    spent = (torch.minimum(time, scenario.stop) - begin).clamp_min(0) * speed
    turn = scenario.heading.deg2rad()
    return torch.stack([(spent * turn.sin()).sum(-1), (spent * turn.cos()).sum(-1)], dim=-1)
