"""Optical flow: how far each small piece of a picture moved to the next one, and what came into sight.

Flow is a field ``(h, w, 2)`` of displacements in pixels, x before y. Whichever way it points, it is given at the
pixels it starts from::

    forward    F(p)   p is a pixel of the frame before;  p + F(p) is its place in this frame
    backward   B(p)   p is a pixel of this frame;        p + B(p) is its place in the frame before

so that ``warp(before, B)``, which takes from `before` at ``p + B(p)``, looks like this frame. A pixel of this frame
that was not to be seen before (it came out from behind something, or into the picture) is told by going there and back::

    lost(p)    |B(p) + F(p + B(p))|² > 0.01 (|B(p)|² + |F(p + B(p))|²) + 0.5

`Motions` tells the motion of a video frame by frame. The flow is found on a small picture: by DIS (Kroeger et al., 2016)
on the CPU, or by RAFT (Teed and Deng, 2020) where torch, a GPU and its weights are at hand.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from veil.core import VeilError
from veil.nn import weights

if TYPE_CHECKING:
    from torch import Tensor

Image = npt.NDArray[np.uint8]  # (H, W, 3)
Images = npt.NDArray[np.uint8]  # (N, H, W, 3)
Grey = npt.NDArray[np.uint8]  # (h, w)
Flow = npt.NDArray[np.float32]  # (h, w, 2): x and y displacement in pixels of the (small) picture
Flows = npt.NDArray[np.float32]  # (N, h, w, 2)
Mask = npt.NDArray[np.bool_]  # (h, w)
Speed = Literal["fast", "medium", "fine"]
By = Literal["fast", "medium", "fine", "raft-small", "raft-large"]


class _Kept(threading.local):
    """DIS for each size of picture, of this thread: its buffers must be shared neither by threads nor by sizes.

    Threads would write into each other's memory; and after a larger picture the flow of a smaller one is another.
    """

    def __init__(self) -> None:
        self.of_size = lru_cache(8)(
            lambda shape: cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        )


_kept = _Kept()


def small_grey(frame: Image, longest: int = 384) -> Grey:
    """A frame ``(H, W, 3)`` as a grey picture whose longer side is at most `longest`: enough to see motion."""
    return cv2.cvtColor(_small(frame, longest), cv2.COLOR_RGB2GRAY).astype(np.uint8, copy=False)


def _small(frame: Image, longest: int) -> Image:
    height, width = frame.shape[:2]
    scale = min(1.0, longest / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(frame, size, interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)


def dense_flow(before: Grey, after: Grey) -> Flow:
    """Displacement of every pixel of `before` that takes it to its place in `after` (DIS, very fast preset)."""
    return _calc(_kept.of_size(before.shape), before, after)


def _calc(dis: cv2.DISOpticalFlow, before: Grey, after: Grey) -> Flow:
    if min(before.shape) < 16:  # DIS works on 8 x 8 patches over a pyramid
        return np.zeros((*before.shape, 2), np.float32)
    return dis.calc(before, after, None)  # type: ignore[arg-type]


class Estimator(Protocol):
    """Finds the flow between two pictures, each seen once."""

    def see(self, image: Image) -> Image | Grey:
        """What is kept of a frame ``(H, W, 3)``: a smaller picture."""
        ...

    def between(self, before: Any, after: Any) -> tuple[Flow, Flow]:
        """Forward and backward flow between two pictures that `see` gave, in their pixels."""
        ...


class _Setting(NamedTuple):
    preset: int
    finest: int  # the finest level of the pyramid that is matched: 1 is half the size of the small picture
    stride: int  # of the patches that are matched
    smoothings: int
    longest: int  # the longer side of the small picture


# At 640 x 480 about 3, 14 and 80 ms a frame for both ways. Where things move, the median end-point error against RAFT
# (small) is 1.5, 1.2 and 1.2 px, on five pairs of frames of real videos.
SETTINGS: dict[Speed, _Setting] = {
    "fast": _Setting(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST, 1, 6, 0, 256),
    "medium": _Setting(cv2.DISOPTICAL_FLOW_PRESET_FAST, 1, 4, 5, 320),
    "fine": _Setting(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM, 1, 3, 5, 640),
}


class Dis:
    """Dense inverse search, on the CPU. It keeps buffers: one for each video."""

    def __init__(self, speed: Speed = "fast"):
        preset, finest, stride, smoothings, self.longest = SETTINGS[speed]
        self._dis = cv2.DISOpticalFlow.create(preset)
        self._dis.setFinestScale(finest)
        self._dis.setPatchStride(stride)
        self._dis.setVariationalRefinementIterations(smoothings)

    def see(self, image: Image) -> Grey:
        """See `Estimator.see`."""
        return small_grey(image, self.longest)

    def between(self, before: Grey, after: Grey) -> tuple[Flow, Flow]:
        """See `Estimator.between`."""
        return _calc(self._dis, before, after), _calc(self._dis, after, before)


@cache
def _raft(name: str) -> Raft:
    import torch

    known = ("raft_large",) if name == "raft-large" else ("raft_small", "raft_small_princeton")
    here = next((one for one in known if weights.look_up(one)), known[0])
    return Raft(weights.find(here), "cuda" if torch.cuda.is_available() else "cpu")


def estimator(name: By) -> Estimator:
    """The estimator of that name: DIS in one of three speeds, or RAFT, on a GPU where there is one."""
    return _raft(name) if name.startswith("raft") else Dis(name)  # type: ignore[arg-type]


class Motion(NamedTuple):
    """How a frame came out of the one before it, on a small grid; `enlarge` brings a flow to the frame's size."""

    forward: Flow  # (h, w, 2) in pixels of the frame, from the frame before
    back: Flow  # (h, w, 2) in pixels of the frame, to the frame before
    lost: Mask  # (h, w): was not to be seen in the frame before
    cut: bool  # a new scene begins here: nothing was


class Motions:
    """The motion of one video, frame by frame."""

    def __init__(self, estimator: Estimator | None = None):
        self._estimator = Dis() if estimator is None else estimator
        self._before: Image | Grey | None = None
        self._size: tuple[int, ...] = ()

    def step(self, image: Image) -> Motion | None:
        """How the next frame came out of the one before it; None for the first frame."""
        before, size = self._before, self._size
        self._before, self._size = self._estimator.see(image), image.shape[:2]
        if before is None:
            return None
        if size != self._size:
            raise ValueError(f"the frames of a video have one size, got {size} and then {self._size}")
        forward, back = self._estimator.between(before, self._before)
        lost = inconsistent(back, forward)
        cut = is_cut(before, self._before, back, lost)
        scale = np.array([size[1] / before.shape[1], size[0] / before.shape[0]], np.float32)
        return Motion(forward * scale, back * scale, lost, cut)


def inconsistent(there: Flow, and_back: Flow) -> Mask:
    """Where going `there` and `and_back` does not lead to where one began: it is hidden in the other picture.

    The test is made in pixels of the picture in which the flow was found, for so large are its errors.
    """
    x, y = grid(*there.shape[:2])
    over, far = np.full(x.shape, -0.5, np.float32), np.zeros(x.shape, np.float32)
    returned = cv2.remap(
        and_back, x + there[..., 0], y + there[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )
    for axis in (0, 1):
        one, other = there[..., axis], returned[..., axis]
        over += np.square(one + other)
        far += np.float32(0.01) * (one * one + other * other)
    return over > far


def is_cut(before: Image | Grey, after: Image | Grey, back: Flow, lost: Mask) -> bool:
    """Whether a new scene begins: half of it was not to be seen before, or is not explained by what was."""
    if lost.mean() > 0.5:
        return True
    if cv2.absdiff(before, after).mean() < 15:
        return False
    left = cv2.absdiff(after, warp(before, back, nearest=False))
    return float(left.mean()) > 30 and float((left > 20).mean()) > 0.5


def enlarge(field: Flow, size: tuple[int, int]) -> Flow:
    """A flow of a `Motion` at the frame's size ``(H, W)``; the outer edges of both grids coincide."""
    return cv2.resize(field, size[::-1], interpolation=cv2.INTER_LINEAR).astype(np.float32, copy=False)


@lru_cache(4)
def grid(height: int, width: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The x and the y of every pixel, each ``(H, W)``; read only."""
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    x.flags.writeable = y.flags.writeable = False
    return x, y


def warp(image: npt.NDArray[Any], flow: Flow, *, nearest: bool = True) -> npt.NDArray[Any]:
    """The picture whose pixel p is that of `image` ``(h, w[, C])`` at ``p + flow(p)``; outside, the nearest there is.

    `nearest` takes the value of one pixel, so that values are moved and never mixed; else it is bilinear.
    """
    x, y = grid(*flow.shape[:2])
    x, y = x + flow[..., 0], y + flow[..., 1]
    if not nearest:
        return cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    height, width = image.shape[:2]
    return image[
        np.clip(np.rint(y), 0, height - 1).astype(np.intp), np.clip(np.rint(x), 0, width - 1).astype(np.intp)
    ]


class Raft:
    """RAFT by its weights in a file, torchvision's (small or large) or Princeton's ``raft-small.pth``.

    The layers are torchvision's; the way through them is Veil's: each frame is encoded once for both directions, and only
    the last flow is brought to full size. On a GPU it computes in 16 bits.
    """

    def __init__(self, file: Path, device: str = "cpu", *, longest: int = 640, updates: int = 12):
        import torch
        from torchvision.models import optical_flow

        state = read_raft(file)
        large = any(name.startswith("mask_predictor.") for name in state)
        net = (optical_flow.raft_large if large else optical_flow.raft_small)(weights=None)
        try:
            net.load_state_dict(state)
        except RuntimeError as error:
            raise VeilError(
                f"{file} holds no weights of RAFT: {str(error).splitlines()[1].strip()}"
            ) from error
        self._net = net.eval().requires_grad_(False).to(device)
        self.device, self.longest, self.updates = device, longest, updates
        self._one_at_a_time = threading.Lock()
        self._type, self._run = torch.float32, self._flows
        if device.startswith("cuda"):
            # Halved outright, because autocast would halve the weights anew in each update.
            self._type = torch.float16
            self._net.half().to(memory_format=torch.channels_last)
            for layer in self._net.modules():
                if isinstance(layer, torch.nn.BatchNorm2d):
                    layer.float()
            self._run = _Recorded(self._flows)

    def see(self, image: Image) -> Image:
        """See `Estimator.see`."""
        return _small(image, self.longest)

    def between(self, before: Image, after: Image) -> tuple[Flow, Flow]:
        """See `Estimator.between`."""
        forward, back = self.many(np.stack([before, after]))
        return forward[0], back[0]

    def many(self, frames: Images) -> tuple[Flows, Flows]:
        """Forward and backward flows ``(N, h, w, 2)`` between N + 1 pictures in a row, ``(N + 1, h, w, 3)``, at once."""
        if len(frames) < 2:
            raise ValueError(f"motion is between two pictures or more, got {len(frames)}")
        height, width = frames.shape[1:3]
        with self._one_at_a_time:  # videos share it, and a recorded graph has one place for its answer
            flows = self.flows(self.tensor(frames))[..., :height, :width].permute(0, 2, 3, 1).cpu().numpy()
            flows = np.array(flows, order="C")
        forward, back = flows.reshape(2, len(frames) - 1, height, width, 2)
        return forward, back

    def tensor(self, frames: Images) -> Tensor:
        """Pictures ``(N, h, w, 3)`` as the network takes them: ``(N, 3, H, W)`` from -1 to 1, on its device.

        H and W are multiples of 8, and at least 128; what is added continues the right and the lower edge.
        """
        import torch

        extra = [(0, max(128, -(-side // 8) * 8) - side) for side in frames.shape[1:3]]
        padded = np.pad(frames, ((0, 0), *extra, (0, 0)), "edge") if any(map(any, extra)) else frames
        pictures = torch.from_numpy(np.ascontiguousarray(padded)).to(self.device).permute(0, 3, 1, 2)
        return pictures.float().div_(127.5).sub_(1).to(self._type)

    def flows(self, pictures: Tensor, *, back: bool = True) -> Tensor:
        """Flows between pictures that `tensor` gave: the N forward ones, then, with `back`, the N backward ones.

        They are ``(N, 2, H, W)`` or ``(2 N, 2, H, W)``, and hold until the next call.
        """
        import torch

        with torch.inference_mode():
            return self._run(pictures, back)

    def _flows(self, pictures: Tensor, back: bool) -> Tensor:
        import torch
        from torchvision.models.optical_flow.raft import upsample_flow

        net = self._net
        seen = net.feature_encoder(pictures)
        about = net.context_encoder(pictures if back else pictures[:-1])
        one, other = seen[:-1], seen[1:]
        if back:
            one, other = torch.cat([one, other]), torch.cat([other, one])
            about = torch.cat([about[:-1], about[1:]])
        hidden, context = about.split(
            [net.update_block.hidden_state_size, about.shape[1] - net.update_block.hidden_state_size], 1
        )
        hidden, context = hidden.tanh(), context.relu()
        block = net.corr_block
        lookup = _Lookup(one, other, block.num_levels, block.radius)
        flow = torch.zeros(len(one), 2, *one.shape[2:], device=one.device)
        for _ in range(self.updates):
            alike = lookup(flow).to(self._type)
            hidden, change = net.update_block(hidden, context, alike, flow.to(self._type))
            flow = flow + change
        mask = None if net.mask_predictor is None else net.mask_predictor(hidden).float()
        return upsample_flow(flow, None if mask is None else mask.contiguous())


class _Lookup:
    """How alike the places of one picture are to those of another, and of its halves, around where a flow leads.

    The pictures are features ``(N, C, h, w)``. What RAFT calls the correlation pyramid is made once, in 32 bits; the
    offsets lie on the device from the start, so that looking up waits for nothing.
    """

    def __init__(self, one: Tensor, other: Tensor, levels: int, radius: int):
        import torch
        import torch.nn.functional as F

        count, channels, height, width = one.shape
        place = torch.stack(
            torch.meshgrid(
                torch.arange(height, device=one.device), torch.arange(width, device=one.device), indexing="ij"
            )[::-1]
        )
        self._place = place.float()  # (2, h, w): x and y
        steps = torch.arange(-radius, radius + 1, device=one.device)
        around = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1).float()  # x changes slowest
        rows = one.flatten(2).transpose(1, 2) / channels**0.5  # (N, h w, C)
        self._levels: list[tuple[Tensor, Tensor, float, float]] = []
        for level in range(levels):
            h, w = other.shape[2:]
            alike = (rows @ other.flatten(2)).float().view(count * height * width, 1, h, w)
            # Places from -1 to 1, as grid_sample counts them: 2 x / (w - 1) - 1.
            across, down = 2 / (w - 1), 2 / (h - 1)
            scaled = torch.stack([around[..., 0] * across - 1, around[..., 1] * down - 1], -1)
            self._levels.append((alike, scaled, across / 2**level, down / 2**level))
            other = F.avg_pool2d(other, 2)

    def __call__(self, flow: Tensor) -> Tensor:
        """Likeness ``(N, levels (2 radius + 1)², h, w)`` around where `flow` ``(N, 2, h, w)`` leads."""
        import torch
        import torch.nn.functional as F

        count, _, height, width = flow.shape
        x, y = (self._place + flow).unbind(1)  # (N, h, w)
        found = []
        for alike, around, across, down in self._levels:
            middle = torch.stack([x * across, y * down], -1).view(-1, 1, 1, 2)
            sampled = F.grid_sample(alike, middle + around, align_corners=True)  # (N h w, 1, side, side)
            found.append(sampled.view(count, height, width, -1))
        return torch.cat(found, -1).permute(0, 3, 1, 2)


class _Recorded:
    """A function of pictures recorded as a CUDA graph for each shape, because starting its kernels takes longer than they do."""

    KEPT = 4  # shapes

    def __init__(self, function: Callable[[Tensor, bool], Tensor]):
        self._function = function
        self._graphs: dict[tuple[Any, ...], tuple[Any, Tensor, Tensor]] = {}

    def __call__(self, pictures: Tensor, back: bool) -> Tensor:
        key = (*pictures.shape, back)
        if key not in self._graphs:
            while len(self._graphs) >= self.KEPT:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[key] = self._record(pictures, back)
        graph, inlet, outlet = self._graphs[key]
        inlet.copy_(pictures)
        graph.replay()
        return outlet

    def _record(self, pictures: Tensor, back: bool) -> tuple[Any, Tensor, Tensor]:
        import torch

        inlet, aside = pictures.clone(), torch.cuda.Stream(pictures.device)
        with torch.cuda.device(pictures.device), torch.backends.cudnn.flags(enabled=True, benchmark=True):
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(3):  # libraries choose their algorithms in the first calls
                    self._function(inlet, back)
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outlet = self._function(inlet, back)
        return graph, inlet, outlet


def read_raft(path: Path) -> dict[str, Tensor]:
    """The weights in a file of RAFT, by torchvision's names."""
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise VeilError(f"there is no file {path} with the weights of RAFT.") from error
    except Exception as error:  # what torch raises for a file that is none of its own is not documented
        raise VeilError(
            f"{path} cannot be read as weights: it is damaged, or no file of PyTorch's."
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise VeilError(f"{path} holds no weights of RAFT: it is not a table of tensors.")
    return {_torchvision_name(name): value for name, value in state.items()}


# Princeton's names and torchvision's, in the order in which they are replaced.
_NAMES = [
    (r"^module\.", ""),
    (r"^fnet\.", "feature_encoder."),
    (r"^cnet\.", "context_encoder."),
    (r"^(\w+_encoder)\.conv1\.", r"\1.convnormrelu.0."),
    (r"^(\w+_encoder)\.conv2\.", r"\1.conv."),
    (r"^(\w+_encoder\.layer\d\.\d)\.conv(\d)\.", r"\1.convnormrelu\2.0."),
    (r"^update_block\.encoder\.convc(\d)\.", r"update_block.motion_encoder.convcorr\1.0."),
    (r"^update_block\.encoder\.convf(\d)\.", r"update_block.motion_encoder.convflow\1.0."),
    (r"^update_block\.encoder\.conv\.", "update_block.motion_encoder.conv.0."),
    (r"^update_block\.gru\.conv([zrq])\.", r"update_block.recurrent_block.convgru1.conv\1."),
]


def _torchvision_name(name: str) -> str:
    for old, new in _NAMES:
        name = re.sub(old, new, name)
    return name
