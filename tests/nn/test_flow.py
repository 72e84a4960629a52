"""Flow has the stated sign and size, occlusions are found, and weights of RAFT are read under both naming schemes."""

from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest

from conftest import SHARED, needs_shared
from errors import refuses
from motion_clips import texture, view
from veil.nn.flow import (
    Dis,
    MotionEstimator,
    dense_flow,
    enlarge,
    flow_estimator,
    inconsistent,
    is_cut,
    warp,
)
from veil.nn.raft import CorrelationPyramid, Raft, read_raft

RANDOM = np.random.default_rng(3)


def test_warp_takes_the_pixel_that_the_flow_points_to():
    image = RANDOM.integers(0, 256, (6, 9, 3), np.uint8)
    flow = RANDOM.uniform(-2, 2, (6, 9, 2)).astype(np.float32)
    moved, mixed = warp(image, flow), warp(image.astype(np.float32), flow, nearest=False)
    for y in range(6):
        for x in range(9):
            at_x, at_y = np.clip(x + flow[y, x, 0], 0, 8), np.clip(y + flow[y, x, 1], 0, 5)
            assert np.array_equal(moved[y, x], image[round(at_y), round(at_x)])
            x0, y0 = min(int(at_x), 7), min(int(at_y), 4)
            fx, fy = at_x - x0, at_y - y0
            four = image[y0 : y0 + 2, x0 : x0 + 2].astype(float)
            expected = (1 - fy) * ((1 - fx) * four[0, 0] + fx * four[0, 1]) + fy * (
                (1 - fx) * four[1, 0] + fx * four[1, 1]
            )
            assert np.abs(mixed[y, x] - expected).max() < 0.05 * 255


@pytest.mark.parametrize("speed", ["fast", "medium", "fine"])
@pytest.mark.parametrize("size", [(240, 320), (360, 640)])
def test_a_known_motion_is_found_both_ways(speed, size):
    scene = texture(size[0] + 80, size[1] + 80)
    motions = MotionEstimator(Dis(speed))
    assert motions.step(view(scene, 0, 0, size)) is None
    motion = motions.step(view(scene, 3.3, -1.6, size))
    assert motion is not None and not motion.cut and motion.occluded.mean() < 0.1
    for flow, sign in ((motion.forward, 1), (motion.backward, -1)):
        error = np.linalg.norm(enlarge(flow, size) - np.array([3.3 * sign, -1.6 * sign]), axis=-1)
        assert np.median(error) < 0.3
    before, after = view(scene, 0, 0, size), view(scene, 3.3, -1.6, size)
    left = np.abs(warp(before, enlarge(motion.backward, size), nearest=False).astype(float) - after)
    assert left.mean() < 0.3 * np.abs(before.astype(float) - after).mean()


def test_inconsistent_is_the_equation():
    there, back = (RANDOM.normal(0, 2, (12, 15, 2)).astype(np.float32) for _ in range(2))
    there = np.rint(there)  # so that the way back is that of one pixel
    occluded = inconsistent(there, back)
    for y in range(12):
        for x in range(15):
            f = there[y, x]
            b = back[int(np.clip(y + f[1], 0, 11)), int(np.clip(x + f[0], 0, 14))]
            assert occluded[y, x] == (((f + b) ** 2).sum() > 0.01 * ((f**2).sum() + (b**2).sum()) + 0.5)


def test_occlusions_are_found():
    scene, thing = texture(320, 400), texture(100, 80, 2.0, seed=9)
    frames = []
    for x in (100, 112):
        frame = view(scene, 0, 0, (240, 320))
        frame[70:170, x : x + 80] = thing
        frames.append(frame)
    motions = MotionEstimator()
    motions.step(frames[0])
    motion = motions.step(frames[1])
    assert motion is not None and not motion.cut
    occluded = cv2.resize(
        motion.occluded.astype(np.uint8), (320, 240), interpolation=cv2.INTER_NEAREST
    ).astype(bool)
    assert occluded[80:160, 101:111].mean() > 0.5
    assert occluded[80:160, 130:180].mean() < 0.1 and occluded[:, 230:].mean() < 0.02


def test_cuts_are_found():
    one, other = texture(320, 400), texture(320, 400, 6.0, seed=4)
    motions = MotionEstimator()
    frames = [view(one, 4 * t, 0, (240, 320)) for t in range(3)] + [
        view(other, 0, 4 * t, (240, 320)) for t in range(2)
    ]
    estimated = [motions.step(frame) for frame in frames]
    assert [motion is not None and motion.cut for motion in estimated] == [False, False, False, True, False]
    grey, still = frames[0][..., 0], np.zeros((240, 320, 2), np.float32)
    assert is_cut(grey, 255 - grey, still, still[..., 0] > 0)
    assert not is_cut(grey, grey, still, still[..., 0] > 0)


@pytest.mark.parametrize("size", [(1, 1), (33, 2), (2, 33), (15, 200), (17, 17), (9, 700)])
def test_any_size(size):
    motions = MotionEstimator()
    frames = RANDOM.integers(0, 256, (3, *size, 3), np.uint8)
    motion = [motions.step(frame) for frame in frames][-1]
    assert motion is not None and enlarge(motion.backward, size).shape == (*size, 2)


def test_frames_of_two_sizes_are_refused():
    motions = MotionEstimator()
    motions.step(np.zeros((20, 30, 3), np.uint8))
    with pytest.raises(ValueError, match=r"\(20, 30\) and then \(30, 20\)"):
        motions.step(np.zeros((30, 20, 3), np.uint8))


def princeton() -> dict[str, tuple[int, ...]]:
    """The names and shapes in Princeton's file of RAFT (small), written down apart from the code that reads it."""
    shapes: dict[str, tuple[int, ...]] = {}

    def conv(name: str, out: int, into: int, side: int) -> None:
        shapes[f"module.{name}.weight"], shapes[f"module.{name}.bias"] = (out, into, side, side), (out,)

    for net, out in (("fnet", 128), ("cnet", 160)):
        conv(f"{net}.conv1", 32, 3, 7)
        into = 32
        for layer, width in ((1, 32), (2, 64), (3, 96)):
            for block in (0, 1):
                name = f"{net}.layer{layer}.{block}"
                conv(f"{name}.conv1", width // 4, into, 1)
                conv(f"{name}.conv2", width // 4, width // 4, 3)
                conv(f"{name}.conv3", width, width // 4, 1)
                if into != width:
                    conv(f"{name}.downsample.0", width, into, 1)
                into = width
        conv(f"{net}.conv2", out, 96, 1)
    for name, out, into, side in (
        ("encoder.convc1", 96, 196, 1),
        ("encoder.convf1", 64, 2, 7),
        ("encoder.convf2", 32, 64, 3),
        ("encoder.conv", 80, 128, 3),
        ("gru.convz", 96, 242, 3),
        ("gru.convr", 96, 242, 3),
        ("gru.convq", 96, 242, 3),
        ("flow_head.conv1", 128, 96, 3),
        ("flow_head.conv2", 2, 128, 3),
    ):
        conv(f"update_block.{name}", out, into, side)
    return shapes


def test_every_weight_of_a_princeton_file_is_loaded(tmp_path):
    import torch

    state = {name: torch.randn(shape) * 0.01 for name, shape in princeton().items()}
    torch.save(state, tmp_path / "raft.pth")
    raft = Raft(tmp_path / "raft.pth", updates=1)
    loaded = raft._net.state_dict()
    assert len(loaded) == len(state)
    # Both list their tensors in the order of the network's layers, so that they pair up by order alone.
    by_order = dict(zip(loaded, state.values(), strict=True))
    moved = [
        n for n in loaded if "downsample" in n or ".conv." in n
    ]  # torchvision lists these elsewhere or alike
    for name in set(loaded) - set(moved):
        assert loaded[name].shape == by_order[name].shape
    assert {tuple(v.flatten()[:2].tolist()) for v in loaded.values()} == {
        tuple(v.flatten()[:2].tolist()) for v in state.values()
    }
    z = "update_block.recurrent_block.convgru1.convz.weight"
    assert torch.equal(loaded[z], state["module.update_block.gru.convz.weight"])
    c = "context_encoder.layer2.0.convnormrelu3.0.bias"
    assert torch.equal(loaded[c], state["module.cnet.layer2.0.conv3.bias"])
    torch.save(loaded, tmp_path / "torchvision.pth")
    again = Raft(tmp_path / "torchvision.pth", updates=1)
    images = [RANDOM.integers(0, 256, (50, 61, 3), np.uint8) for _ in range(2)]
    for one, other in zip(raft.estimate(*images), again.estimate(*images), strict=True):
        assert one.shape == (50, 61, 2) and np.array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["small", "large"])
def test_flows_are_those_of_torchvision(size, tmp_path):
    import torch
    from torchvision.models import optical_flow

    torch.manual_seed(0)
    net = getattr(optical_flow, f"raft_{size}")(weights=None).eval()
    for parameter in net.parameters():
        parameter.data *= 1.4  # so that the flow is of some pixels, and leads out of the picture too
    torch.save(net.state_dict(), tmp_path / "raft.pth")
    raft = Raft(tmp_path / "raft.pth", updates=4)
    frames = np.stack([view(texture(220, 240), 3 * t, 5 * t, (131, 150)) for t in range(3)])
    pictures = raft.tensor(frames)
    assert pictures.shape == (3, 3, 136, 152)
    with torch.inference_mode():
        forward = net(pictures[:-1], pictures[1:], num_flow_updates=4)[-1]
        back = net(pictures[1:], pictures[:-1], num_flow_updates=4)[-1]
    expected = torch.cat([forward, back])
    assert expected.abs().max() > 8
    assert (raft.flows(pictures) - expected).abs().max() < 1e-5 * expected.abs().max()
    assert (raft.flows(pictures, back=False) - forward).abs().max() < 1e-5 * expected.abs().max()
    cut = expected[..., :131, :150].permute(0, 2, 3, 1).numpy()
    for many, one in zip(raft.many(frames), (cut[:2], cut[2:]), strict=True):
        assert many.shape == (2, 131, 150, 2) and np.allclose(many, one, atol=1e-4 * np.abs(cut).max())
    for one, direction in zip(raft.estimate(frames[1], frames[2]), (cut[1], cut[3]), strict=True):
        assert np.allclose(one, direction, atol=1e-4 * np.abs(cut).max())
    with pytest.raises(ValueError, match="got 1"):
        raft.many(frames[:1])


@pytest.mark.gpu
@pytest.mark.parametrize("size", ["small", "large"])
def test_a_gpu_finds_nearly_the_same(size, tmp_path):
    import torch
    from torchvision.models import optical_flow

    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    torch.manual_seed(0)
    torch.save(getattr(optical_flow, f"raft_{size}")(weights=None).state_dict(), tmp_path / "raft.pth")
    here, there = Raft(tmp_path / "raft.pth"), Raft(tmp_path / "raft.pth", "cuda")
    scene = texture(220, 240)
    for shift in (3, -5):  # the second time the recorded graph runs on other frames
        frames = np.stack([view(scene, shift * t, 5 * t, (131, 150)) for t in range(3)])
        expected, found = np.stack(here.many(frames)), np.stack(there.many(frames))
        assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
        ahead = there.flows(there.tensor(frames), back=False)[..., :131, :150].cpu().permute(0, 2, 3, 1)
        assert np.allclose(ahead, found[0], atol=0.02 * np.abs(expected).max())


def test_the_correlation_pyramid_is_that_of_torchvision():
    import torch
    from torchvision.models.optical_flow.raft import CorrBlock, make_coords_grid

    torch.manual_seed(0)
    one, other = torch.randn(2, 2, 24, 17, 22)
    theirs = CorrBlock(num_levels=4, radius=3)
    theirs.build_pyramid(one, other)
    flow = torch.randn(2, 2, 17, 22) * 8
    expected = theirs.index_pyramid(make_coords_grid(2, 17, 22) + flow)
    assert (CorrelationPyramid(one, other, 4, 3)(flow) - expected).abs().max() < 1e-4


def test_a_file_that_is_not_raft_is_refused(tmp_path):
    import torch

    with refuses("raft-missing"):
        read_raft(tmp_path / "absent.pth")
    (tmp_path / "text.pth").write_text("nothing")
    with refuses("raft-damaged"):
        read_raft(tmp_path / "text.pth")
    torch.save({"fnet.conv1.weight": 3}, tmp_path / "odd.pth")
    with refuses("raft-mismatch"):
        read_raft(tmp_path / "odd.pth")
    torch.save({"fnet.conv1.weight": torch.zeros(3)}, tmp_path / "part.pth")
    with refuses("raft-mismatch"):
        Raft(tmp_path / "part.pth")


@needs_shared
def test_raft_finds_a_known_motion_with_the_published_weights():
    import torch

    path = SHARED / "weights" / "raft-small.pth"
    assert {
        k: tuple(v.shape) for k, v in torch.load(path, map_location="cpu", weights_only=True).items()
    } == princeton()
    size = (150, 200)
    scene = texture(size[0] + 80, size[1] + 80)
    motions = MotionEstimator(Raft(path, longest=200))
    motions.step(view(scene, 0, 0, size))
    motion = motions.step(view(scene, 4.4, -2.7, size))
    assert motion is not None and not motion.cut
    for flow, sign in ((motion.forward, 1), (motion.backward, -1)):
        error = np.linalg.norm(flow - np.array([4.4 * sign, -2.7 * sign]), axis=-1)
        assert np.median(error) < 0.3


def test_flow_does_not_depend_on_other_images_or_threads():
    """DIS has buffers: sharing them between threads crashes it, between sizes it changes results."""
    rng = np.random.default_rng(0)
    sizes = ((120, 160), (288, 384), (56, 56), (216, 384))
    pairs = [tuple(rng.integers(0, 256, (2, *size), np.uint8)) for size in sizes]
    alone = []
    for pair in pairs:
        with ThreadPoolExecutor(1) as fresh:  # a new thread begins with nothing
            alone.append(fresh.submit(dense_flow, *pair).result())
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda index: dense_flow(*pairs[index % 4]), range(80)))
    assert all(np.array_equal(flow, alone[index % 4]) for index, flow in enumerate(together))


def test_raft_is_loaded_by_its_checksum_alone(tmp_path, monkeypatch):
    (tmp_path / "raft-small.pth").write_bytes(b"something else")
    monkeypatch.setenv("VEIL_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with refuses("weights-checksum"):
        flow_estimator("raft-small")
    with refuses("weights-missing"):
        flow_estimator("raft-large")
