"""Motion of synthetic people: actions as key poses, an individual gait, and a skeleton.

An action is a table of key poses, eight per cycle, in degrees. Everyone starts from the same standing pose and eases
into the action, so that the first frame does not reveal it. A `Gait` modifies the table when its owner walks or runs;
nothing else about a person does.

A *bone* is an origin and three axes: along (as long as the bone), side (to the person's left) and front.
Body coordinates are x forward, y up, z left; scene coordinates are x right, y up, z towards the camera. Lengths are
metres.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

# fmt: off
JOINTS = ("hips", "torso", "head", "arm_r", "arm_l", "forearm_r", "forearm_l",
          "thigh_r", "thigh_l", "shin_r", "shin_l", "foot_r", "foot_l")  # where each bone begins
# Degrees, forward is positive: of the whole body, torso, head, thighs, knees, arms and elbows; "out" and
# "fore" lead an upper arm and a forearm away from the body. lift and step are metres.
DOFS = ("pitch", "roll", "bend", "twist", "nod", "lift", "step",
        "hip_r", "hip_l", "knee_r", "knee_l", "spread_r", "spread_l",
        "arm_r", "arm_l", "out_r", "out_l", "elbow_r", "elbow_l", "fore_r", "fore_l")
# fmt: on
KEYS = 8

Keys = tuple[float, ...]


class Action(NamedTuple):
    """An action: its key poses, evenly spaced; joints without keys stay as in standing."""

    seconds: float  # for a cycle, or from the first pose to the last
    loops: bool
    speed: float  # metres a second, forward
    keys: dict[str, Keys]


def _half_cycle_later(keys: Keys) -> Keys:
    """The keys half a cycle later, for the other side of the body."""
    return keys[KEYS // 2 :] + keys[: KEYS // 2]


def _both(**keys: Keys) -> dict[str, Keys]:
    return {f"{name}_{side}": values for name, values in keys.items() for side in "rl"}


def _alternate(**keys: Keys) -> dict[str, Keys]:
    return {
        f"{name}_{side}": values if side == "r" else _half_cycle_later(values)
        for name, values in keys.items()
        for side in "rl"
    }


# fmt: off
_STANDING = {
    "bend": (2,), **_both(hip=(2,), knee=(4,), spread=(5,), arm=(2,), out=(11,), elbow=(16,), fore=(6,))}
_STEPS = _alternate(hip=(26, 21, 9, -6, -18, -13, 8, 23), knee=(4, 15, 10, 6, 16, 50, 60, 26),
                  arm=(-24, -19, -7, 7, 22, 17, 4, -14))
ACTION_POSES: dict[str, Action] = {
    "walk": Action(1.05, True, 1.25, {**_STEPS, "twist": (-7, -5, 0, 5, 7, 5, 0, -5)}),
    "run": Action(0.66, True, 2.7, {
        **_alternate(hip=(36, 18, -8, -26, -20, 16, 50, 52), knee=(22, 36, 26, 18, 62, 108, 96, 50),
                   arm=(-52, -36, -6, 26, 46, 36, 4, -34), elbow=(84, 88, 92, 96, 100, 96, 90, 86)),
        "bend": (15,), "twist": (-13, -9, 0, 9, 13, 9, 0, -9),
        "lift": (0, 0, 0.05, 0.09, 0, 0, 0.05, 0.09)}),
    "wave": Action(0.85, True, 0, {
        "arm_r": (96,), "out_r": (44, 46, 48, 46, 44, 42, 40, 42), "elbow_r": (76,),
        "fore_r": (-22, -10, 18, 44, 56, 44, 18, -10), "roll": (-2,), "nod": (-4,)}),
    "clap": Action(0.56, True, 0, _both(
        arm=(62,), out=(2, 6, 14, 20, 22, 20, 14, 6), elbow=(28,), fore=(-30, -18, 8, 32, 40, 32, 8, -18))),
    "box": Action(0.8, True, 0, {
        **_alternate(arm=(34, 62, 90, 94, 70, 38, 30, 30), elbow=(118, 60, 8, 4, 50, 112, 122, 122),
                   hip=(24, 25, 26, 26, 22, 17, 16, 18)),
        **_both(knee=(30,), out=(14,), spread=(9,), fore=(-6,)),
        "bend": (9,), "twist": (4, 16, 24, 16, -4, -16, -24, -16)}),
    "kick": Action(1.1, True, 0, {
        "hip_r": (2, -22, -14, 48, 92, 84, 40, 10), "knee_r": (6, 62, 84, 58, 6, 14, 44, 16),
        "knee_l": (8, 16, 16, 10, 8, 10, 14, 10), "bend": (4, 6, 2, -10, -18, -14, -4, 2),
        "arm_r": (10, 24, 20, -12, -34, -22, 0, 8), "arm_l": (10, 0, 16, 42, 56, 46, 26, 14),
        **_both(out=(24,), elbow=(46,))}),
    "jump": Action(0.95, True, 0, {
        **_both(hip=(12, 46, 56, 22, 2, 6, 16, 40), knee=(16, 76, 92, 34, 4, 12, 26, 62),
                arm=(0, -36, -46, 60, 158, 150, 90, 24), elbow=(16, 20, 22, 26, 22, 20, 22, 18)),
        "bend": (8, 26, 32, 12, -2, 0, 8, 22), "lift": (0, 0, 0, 0.1, 0.29, 0.3, 0.15, 0)}),
    "squat": Action(1.5, True, 0, {
        **_both(hip=(4, 22, 66, 104, 118, 106, 68, 24), knee=(6, 36, 92, 130, 142, 132, 94, 38),
                arm=(6, 30, 66, 86, 92, 86, 66, 30), spread=(9,)),
        "bend": (3, 12, 26, 33, 35, 33, 26, 12)}),
    "sit down": Action(1.3, False, 0, {
        **_both(hip=(2, 34, 82, 112, 124, 126, 124, 124), knee=(4, 60, 118, 128, 116, 104, 100, 100),
                arm=(2, 26, 38, 12, -18, -30, -34, -34), spread=(7,)),
        "bend": (2, 22, 36, 26, 8, -4, -8, -8)}),
    "pick up": Action(1.6, False, 0, {
        **_both(hip=(2, 26, 62, 78, 76, 54, 22, 2), knee=(4, 36, 74, 92, 88, 60, 24, 4)),
        "bend": (2, 28, 62, 80, 76, 50, 20, 2), "nod": (0, 4, 6, 4, 2, 0, 2, 0),
        "arm_r": (2, 18, 30, 34, 32, 40, 58, 62), "elbow_r": (16, 14, 10, 8, 14, 42, 62, 66),
        "arm_l": (2, 8, 2, -12, -8, 4, 6, 4)}),
    "fall": Action(1.15, False, 0, {
        "pitch": (0, 6, 20, 46, 76, 88, 88, 88), **_both(arm=(2, 26, 66, 104, 128, 136, 138, 138), out=(18,)),
        "hip_r": (2, 18, 28, 24, 10, 0, -2, -2), "hip_l": (2, 10, 22, 20, 8, 6, 8, 8),
        "knee_r": (4, 34, 56, 50, 28, 8, 4, 4), "knee_l": (4, 28, 60, 60, 42, 26, 22, 22),
        "bend": (2, 12, 16, 10, 2, 0, 0, 0), "nod": (0, -4, -14, -26, -30, -24, -22, -22),
        "step": (0, 0.05, 0.1, 0.1, 0.04, 0, 0, 0)}),
    "fight": Action(1.3, True, 0, {
        "arm_r": (36, 74, 94, 50, 34, 30, 34, 34), "elbow_r": (116, 40, 2, 90, 116, 120, 116, 116),
        "arm_l": (44, 36, 34, 40, 62, 96, 60, 44), "elbow_l": (104, 116, 118, 110, 60, 2, 64, 104),
        "hip_r": (18, 34, 40, 20, 8, -8, 4, 14), "hip_l": (18, 4, -8, 14, 30, 36, 26, 20),
        **_both(knee=(34, 30, 26, 36, 34, 28, 36, 36), out=(15,), spread=(9,), fore=(-6,)),
        "bend": (6, 14, 20, 2, -14, 16, -16, -6), "twist": (6, 24, 34, 4, -20, -34, -10, 0),
        "step": (0, 0.12, 0.2, 0.06, -0.12, 0.12, -0.14, -0.06), "nod": (0, 0, 0, -8, -14, 0, -14, -6)}),
    "stand": Action(3.1, True, 0, {
        "roll": (-1.5, -1, 0, 1, 1.5, 1, 0, -1), "twist": (-3, 0, 3, 5, 4, 0, -4, -5),
        "nod": (0, 2, 3, 1, -1, -2, -1, 0),
        **_alternate(arm=(2, 4, 6, 5, 2, 0, -1, 0), elbow=(16, 20, 24, 24, 20, 16, 15, 15))}),
}
# fmt: on
ACTIONS = tuple(name for name in ACTION_POSES if name != "stand")
STAND = len(ACTIONS)
WALK, RUN = ACTIONS.index("walk"), ACTIONS.index("run")


class Gait(NamedTuple):
    """How one walks, whatever one wears: numbers around 0, or around 1 for what scales."""

    tempo: Tensor
    stride: Tensor
    swing: Tensor  # of the arms
    lag: Tensor  # of the arms behind the legs, in cycles
    lean: Tensor  # degrees
    bounce: Tensor  # metres
    sway: Tensor  # degrees, from side to side
    elbow: Tensor  # degrees more than usual


# The range of each, wide enough to be seen at ten frames a second.
GAIT_RANGES: dict[str, tuple[float, float]] = {
    "tempo": (0.78, 1.25),
    "stride": (0.72, 1.32),
    "swing": (0.25, 1.8),
    "lag": (-0.13, 0.13),
    "lean": (-4.0, 11.0),
    "bounce": (0.0, 0.05),
    "sway": (0.0, 5.0),
    "elbow": (-8.0, 48.0),
}


class ActionState(NamedTuple):
    """What each person does in each frame; every tensor is ``(F, P)``."""

    action: Tensor  # index into MOVES
    time: Tensor  # seconds since it began
    rest: Tensor  # seconds until it ends
    phase: Tensor  # where in the cycle it began, in [0, 1); meaningless where nothing loops
    vigour: Tensor  # scales the movement
    mirror: Tensor  # True where right and left are swapped
    stoop: Tensor  # degrees


class BodyBuild(NamedTuple):
    """The proportions of the body that matter for its skeleton; every tensor is ``(F, P)``."""

    height: Tensor
    shoulders: Tensor  # half the width, as a share of the height
    hips: Tensor


class Skeleton(NamedTuple):
    """The position and axes of each bone, in scene coordinates."""

    origin: Tensor  # (F, P, 13, 3)
    axes: Tensor  # (F, P, 13, 3, 3): along, side, front


@functools.cache
def _tables(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    poses = torch.zeros(len(ACTION_POSES), KEYS, len(DOFS), dtype=torch.float64)
    for i, move in enumerate(ACTION_POSES.values()):
        for name, values in {**_STANDING, **move.keys}.items():
            poses[i, :, DOFS.index(name)] = torch.tensor(values, dtype=torch.float64)
    seconds = torch.tensor([move.seconds for move in ACTION_POSES.values()], dtype=torch.float64)
    loops = torch.tensor([move.loops for move in ACTION_POSES.values()])
    speed = torch.tensor([move.speed for move in ACTION_POSES.values()], dtype=torch.float64)
    return poses.to(device), seconds.to(device), loops.to(device), speed.to(device)


def smooth(x: Tensor) -> Tensor:
    """From 0 to 1 while x goes from 0 to 1, with rest at both ends."""
    x = x.clamp(0, 1)
    return x * x * (3 - 2 * x)


def speeds(action: Tensor, gait: Gait) -> Tensor:
    """Metres a second at which somebody of this gait does the action."""
    speed = _tables(action.device)[3][action]
    return speed * gait.tempo * gait.stride


def pose(state: ActionState, gait: Gait) -> Tensor:
    """The angles ``(F, P, DOFS)`` of every body."""
    poses, seconds, loops, _ = _tables(state.action.device)
    goes = (state.action == WALK) | (state.action == RUN)
    tempo = torch.where(goes, gait.tempo, 0.9 + 0.1 * gait.tempo)
    cycles = state.time * tempo / seconds[state.action]
    looped = loops[state.action]
    phase = torch.where(looped, (state.phase + cycles) * KEYS, cycles.clamp(0, 1) * (KEYS - 1))
    late = torch.where(goes, phase - gait.lag * KEYS, phase)
    body, arms = _between(poses, state.action, looped, phase), _between(poses, state.action, looped, late)
    of_arm = torch.tensor([name[:-2] in ("arm", "out", "elbow", "fore") for name in DOFS], device=body.device)
    body = torch.where(of_arm, arms, body)
    still = poses[-1, 0]
    # Getting up takes longer than stopping.
    ease = smooth(state.time / 0.25) * smooth(state.rest / torch.where(looped, 0.35, 0.8))
    body = still + (body - still) * (ease * state.vigour)[..., None]
    return _swap(_style(body, state, gait, torch.where(goes, ease, 0.0)), state.mirror)


def _between(poses: Tensor, action: Tensor, loops: Tensor, phase: Tensor) -> Tensor:
    """Key poses joined by Catmull-Rom curves."""
    first = phase.floor()
    t = (phase - first)[..., None]
    keys = []
    for k in (-1, 0, 1, 2):
        index = first.long() + k
        index = torch.where(loops, index.remainder(KEYS), index.clamp(0, KEYS - 1))
        keys.append(poses[action, index])
    a, b, c, d = keys
    bend = 2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)
    return b + 0.5 * t * (c - a + t * bend)


def _style(body: Tensor, state: ActionState, gait: Gait, goes: Tensor) -> Tensor:
    """Add a person's own gait (where ``goes`` > 0) and posture."""
    dof = {name: body[..., i] for i, name in enumerate(DOFS)}
    turn = 2 * torch.pi * (state.phase + state.time * gait.tempo / ACTION_POSES["walk"].seconds)
    for side in "rl":
        dof[f"hip_{side}"] = dof[f"hip_{side}"] * (1 + goes * (gait.stride - 1))
        dof[f"knee_{side}"] = dof[f"knee_{side}"] * (1 + goes * 0.5 * (gait.stride - 1))
        dof[f"arm_{side}"] = dof[f"arm_{side}"] * (1 + goes * (gait.swing - 1))
        dof[f"elbow_{side}"] = dof[f"elbow_{side}"] + goes * gait.elbow
    dof["twist"] = dof["twist"] * (1 + goes * (gait.swing - 1))
    dof["roll"] = dof["roll"] + goes * gait.sway * turn.cos()
    dof["lift"] = dof["lift"] + goes * gait.bounce * (0.5 - 0.5 * (2 * turn + 1.2).cos())
    upright = 1 - (dof["pitch"].abs() / 88).clamp(0, 1)
    dof["bend"] = dof["bend"] + goes * gait.lean + state.stoop * upright
    dof["nod"] = dof["nod"] + 0.5 * state.stoop * upright
    return torch.stack([dof[name] for name in DOFS], dim=-1)


def _swap(body: Tensor, mirror: Tensor) -> Tensor:
    other = [DOFS.index(n[:-1] + ("l" if n[-1] == "r" else "r")) if n[-2:] in ("_r", "_l") else i
             for i, n in enumerate(DOFS)]  # fmt: skip
    sign = torch.tensor([-1.0 if n in ("roll", "twist") else 1.0 for n in DOFS], device=body.device)
    return torch.where(mirror[..., None], body[..., other] * sign, body)


# How much flesh is around each joint, hands and toes included, as a share of the height.
_FLESH = (
    0.075,
    0.075,
    0.095,
    *4 * (0.04,),
    *2 * (0.06,),
    *2 * (0.04,),
    *2 * (0.035,),
    *2 * (0.03,),
    *2 * (0.022,),
)


def bones(body: Tensor, build: BodyBuild, heading: Tensor, ground: Tensor) -> Skeleton:
    """Skeletons in the poses ``(F, P, DOFS)``, on the floor at ``ground`` (F, P, 2).

    A ``heading`` (F, P) of 0 degrees faces the camera, of 90 faces right.
    """
    dof = {name: body[..., i] for i, name in enumerate(DOFS)}
    dof = {name: v if name in ("lift", "step") else v.deg2rad() for name, v in dof.items()}
    tall, zero = build.height, torch.zeros_like(build.height)
    forward, up, left = (_vector(*(zero + float(i == k) for i in range(3))) for k in range(3))
    shoulder = _vector(-dof["twist"].sin(), zero, dof["twist"].cos())  # to the left
    facing = _vector(dof["twist"].cos(), zero, dof["twist"].sin())
    spine = _vector(
        dof["bend"].sin() * dof["roll"].cos(), dof["bend"].cos() * dof["roll"].cos(), dof["roll"].sin()
    )
    look = 0.55 * dof["bend"] + dof["nod"]
    skull = _vector(look.sin(), look.cos(), 0.5 * dof["roll"].sin())
    pelvis, trunk = zero[..., None] * up, spine * (0.285 * tall)[..., None]
    neck = pelvis + trunk
    head = neck + skull * (0.118 * tall)[..., None]
    size = (0.106 * (0.72 * tall + 0.28 * 1.72))[..., None]  # small people have larger heads
    rows = [
        (pelvis, up * tall[..., None], left, forward),
        (pelvis, trunk, shoulder, _cross(spine, shoulder)),
        (head, skull * size, shoulder * size, _cross(skull, shoulder) * size),
    ]
    arms, forearms, thighs, shins, feet = [], [], [], [], []
    for side, sign in (("r", -1.0), ("l", 1.0)):
        at = pelvis + 0.9 * trunk + shoulder * (sign * build.shoulders * tall)[..., None]
        raised, out = dof[f"arm_{side}"], dof[f"out_{side}"]
        arm = _limb(raised, sign * out, facing, up, shoulder, 0.158 * tall)
        arms.append((at, arm, shoulder, _cross(shoulder, arm)))
        forearm = _limb(
            raised + dof[f"elbow_{side}"], sign * dof[f"fore_{side}"], facing, up, shoulder, 0.142 * tall
        )
        forearms.append((at + arm, forearm, shoulder, _cross(shoulder, forearm)))
        at = pelvis + left * (sign * build.hips * tall)[..., None]
        hip, spread = dof[f"hip_{side}"], sign * dof[f"spread_{side}"]
        thigh = _limb(hip, spread, forward, up, left, 0.24 * tall)
        thighs.append((at, thigh, left, _cross(left, thigh)))
        swing = hip - dof[f"knee_{side}"]
        shin = _limb(swing, 0.4 * spread, forward, up, left, 0.235 * tall)
        shins.append((at + thigh, shin, left, _cross(left, shin)))
        foot = _limb(swing + torch.pi / 2, 2.2 * spread, forward, up, left, 0.115 * tall)
        feet.append((at + thigh + shin, foot, left, up))
    rows += [*arms, *forearms, *thighs, *shins, *feet]
    origin = torch.stack([row[0] for row in rows], dim=-2)  # (F, P, 13, 3)
    axes = torch.stack([torch.stack(row[1:], dim=-2) for row in rows], dim=-3)  # (F, P, 13, 3, 3)
    pitch = dof["pitch"][..., None]
    origin, axes = _pitch(origin, pitch), _pitch(axes, pitch[..., None])
    low = torch.cat(
        [origin, (origin + axes[..., 0, :])[..., 5:7, :], (origin + axes[..., 0, :])[..., 11:13, :]], -2
    )
    sunk = (low[..., 1] - torch.tensor(_FLESH, device=low.device, dtype=low.dtype) * tall[..., None]).amin(-1)
    base = _vector(dof["step"], dof["lift"] - sunk, zero)[..., None, :]
    turn = heading.deg2rad()[..., None]
    origin, axes = _yaw(origin + base, turn), _yaw(axes, turn[..., None])
    place = torch.stack([ground[..., 0], zero, ground[..., 1]], dim=-1)
    return Skeleton(origin + place[..., None, :], axes)


def _vector(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.stack([x, y, z], dim=-1)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    """A unit vector at right angles to both."""
    c = torch.linalg.cross(a, b, dim=-1)
    return c / c.square().sum(-1, keepdim=True).sqrt().clamp_min(1e-9)


def _limb(forward: Tensor, out: Tensor, front: Tensor, up: Tensor, left: Tensor, length: Tensor) -> Tensor:
    """A limb that hangs down where both angles are 0."""
    x, y, z = forward.sin() * out.cos(), -forward.cos() * out.cos(), out.sin()
    return (x[..., None] * front + y[..., None] * up + z[..., None] * left) * length[..., None]


def _pitch(v: Tensor, angle: Tensor) -> Tensor:
    x, y, z = v.unbind(-1)
    return _vector(x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin(), z)


def _yaw(v: Tensor, angle: Tensor) -> Tensor:
    """From body to scene coordinates."""
    x, y, z = v.unbind(-1)
    return _vector(x * angle.sin() + z * angle.cos(), y, x * angle.cos() - z * angle.sin())
