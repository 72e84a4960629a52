"""RAFT: optical flow by a network (Teed and Deng, 2020), with torchvision's layers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.models import optical_flow
from torchvision.models.optical_flow.raft import upsample_flow

from veil.core import VeilError
from veil.nn.flow import Flow, Flows, Image, Images, shrink


class Raft:
    """RAFT with the weights of a file, torchvision's (small or large) or Princeton's ``raft-small.pth``.

    The layers are torchvision's, the forward pass is Veil's: each frame is encoded once for both directions, and only the
    last flow is upsampled. On a GPU it computes in 16 bits.
    """

    def __init__(self, file: Path, device: str = "cpu", *, longest: int = 640, updates: int = 12):

        state = read_raft(file)
        large = any(name.startswith("mask_predictor.") for name in state)
        net = (optical_flow.raft_large if large else optical_flow.raft_small)(weights=None)
        try:
            net.load_state_dict(state)
        except RuntimeError as error:
            reason = str(error).splitlines()[1].strip().rstrip(".")
            raise VeilError(
                f"{file} does not hold weights of RAFT ({reason}): use a published file.",
                code="raft-mismatch",
            ) from error
        self._net = net.eval().requires_grad_(False).to(device)
        self.device, self.longest, self.updates = device, longest, updates
        self._lock = threading.Lock()
        self._type, self._run = torch.float32, self._flows
        if device.startswith("cuda"):
            # Converted once, because autocast would convert the weights in each update.
            self._type = torch.float16
            self._net.half().to(memory_format=torch.channels_last)
            for layer in self._net.modules():
                if isinstance(layer, torch.nn.BatchNorm2d):
                    layer.float()
            self._run = _CudaGraphs(self._flows)

    def prepare(self, image: Image) -> Image:
        """See `FlowEstimator.prepare`."""
        return shrink(image, self.longest)

    def estimate(self, before: Image, after: Image) -> tuple[Flow, Flow]:
        """See `FlowEstimator.estimate`."""
        forward, back = self.many(np.stack([before, after]))
        return forward[0], back[0]

    def many(self, frames: Images) -> tuple[Flows, Flows]:
        """Forward and backward flows ``(N, h, w, 2)`` between N + 1 consecutive images ``(N + 1, h, w, 3)``, in one batch."""
        if len(frames) < 2:
            raise ValueError(f"flow needs two images or more, got {len(frames)}")
        height, width = frames.shape[1:3]
        with self._lock:  # videos share it, and a recorded graph has one output buffer
            flows = self.flows(self.tensor(frames))[..., :height, :width].permute(0, 2, 3, 1).cpu().numpy()
            flows = np.array(flows, order="C")
        forward, back = flows.reshape(2, len(frames) - 1, height, width, 2)
        return forward, back

    def tensor(self, frames: Images) -> Tensor:
        """Images ``(N, h, w, 3)`` as input of the network: ``(N, 3, H, W)`` from -1 to 1, on its device.

        H and W are multiples of 8, and at least 128; the right and the lower edge are replicated.
        """

        padding = [(0, max(128, -(-side // 8) * 8) - side) for side in frames.shape[1:3]]
        padded = np.pad(frames, ((0, 0), *padding, (0, 0)), "edge") if any(map(any, padding)) else frames
        images = torch.from_numpy(np.ascontiguousarray(padded)).to(self.device).permute(0, 3, 1, 2)
        return images.float().div_(127.5).sub_(1).to(self._type)

    def flows(self, images: Tensor, *, back: bool = True) -> Tensor:
        """Flows between images from `tensor`: the N forward ones, then, with `back`, the N backward ones.

        They are ``(N, 2, H, W)`` or ``(2 N, 2, H, W)``, and valid until the next call.
        """

        with torch.inference_mode():
            return self._run(images, back)

    def _flows(self, images: Tensor, back: bool) -> Tensor:

        net = self._net
        features = net.feature_encoder(images)
        about = net.context_encoder(images if back else images[:-1])
        one, other = features[:-1], features[1:]
        if back:
            one, other = torch.cat([one, other]), torch.cat([other, one])
            about = torch.cat([about[:-1], about[1:]])
        hidden, context = about.split(
            [net.update_block.hidden_state_size, about.shape[1] - net.update_block.hidden_state_size], 1
        )
        hidden, context = hidden.tanh(), context.relu()
        block = net.corr_block
        lookup = CorrelationPyramid(one, other, block.num_levels, block.radius)
        flow = torch.zeros(len(one), 2, *one.shape[2:], device=one.device)
        for _ in range(self.updates):
            correlation = lookup(flow).to(self._type)
            hidden, change = net.update_block(hidden, context, correlation, flow.to(self._type))
            flow = flow + change
        mask = None if net.mask_predictor is None else net.mask_predictor(hidden).float()
        return upsample_flow(flow, None if mask is None else mask.contiguous())


class CorrelationPyramid:
    """RAFT's correlation pyramid of two feature maps ``(N, C, h, w)``, sampled around the target of a flow.

    The pyramid is computed once, in 32 bits; the offsets are on the device from the start, so that sampling never waits.
    """

    def __init__(self, one: Tensor, other: Tensor, levels: int, radius: int):

        count, channels, height, width = one.shape
        grid = torch.stack(
            torch.meshgrid(
                torch.arange(height, device=one.device), torch.arange(width, device=one.device), indexing="ij"
            )[::-1]
        )
        self._grid = grid.float()  # (2, h, w): x and y
        steps = torch.arange(-radius, radius + 1, device=one.device)
        around = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1).float()  # x changes slowest
        rows = one.flatten(2).transpose(1, 2) / channels**0.5  # (N, h w, C)
        self._levels: list[tuple[Tensor, Tensor, float, float]] = []
        for level in range(levels):
            h, w = other.shape[2:]
            correlation = (rows @ other.flatten(2)).float().view(count * height * width, 1, h, w)
            # Coordinates from -1 to 1, as in grid_sample: 2 x / (w - 1) - 1.
            across, down = 2 / (w - 1), 2 / (h - 1)
            scaled = torch.stack([around[..., 0] * across - 1, around[..., 1] * down - 1], -1)
            self._levels.append((correlation, scaled, across / 2**level, down / 2**level))
            other = F.avg_pool2d(other, 2)

    def __call__(self, flow: Tensor) -> Tensor:
        """Correlations ``(N, levels (2 radius + 1)², h, w)`` around the targets of `flow` ``(N, 2, h, w)``."""

        count, _, height, width = flow.shape
        x, y = (self._grid + flow).unbind(1)  # (N, h, w)
        samples = []
        for correlation, around, across, down in self._levels:
            middle = torch.stack([x * across, y * down], -1).view(-1, 1, 1, 2)
            sampled = F.grid_sample(
                correlation, middle + around, align_corners=True
            )  # (N h w, 1, side, side)
            samples.append(sampled.view(count, height, width, -1))
        return torch.cat(samples, -1).permute(0, 3, 1, 2)


class _CudaGraphs:
    """A function of images, recorded as a CUDA graph for each shape, because launching its kernels takes longer than they do."""

    MAX_GRAPHS = 4

    def __init__(self, function: Callable[[Tensor, bool], Tensor]):
        self._function = function
        self._graphs: dict[tuple[Any, ...], tuple[Any, Tensor, Tensor]] = {}

    def __call__(self, images: Tensor, back: bool) -> Tensor:
        key = (*images.shape, back)
        if key not in self._graphs:
            while len(self._graphs) >= self.MAX_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[key] = self._record(images, back)
        graph, static_input, static_output = self._graphs[key]
        static_input.copy_(images)
        graph.replay()
        return static_output

    def _record(self, images: Tensor, back: bool) -> tuple[Any, Tensor, Tensor]:

        static_input, stream = images.clone(), torch.cuda.Stream(images.device)
        with torch.cuda.device(images.device), torch.backends.cudnn.flags(enabled=True, benchmark=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):  # libraries choose their algorithms in the first calls
                    self._function(static_input, back)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                static_output = self._function(static_input, back)
        return graph, static_input, static_output


def read_raft(path: Path) -> dict[str, Tensor]:
    """The weights of RAFT in a file, by torchvision's names."""

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise VeilError(
            f"{path} does not exist: name a file with weights of RAFT.", code="raft-missing"
        ) from error
    except Exception as error:  # what torch raises for other files is not documented
        raise VeilError(
            f"{path} is damaged, or not a file of PyTorch: download it again.", code="raft-damaged"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise VeilError(f"{path} does not map names to tensors: use a published file.", code="raft-mismatch")
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
