"""Video networks have the published layout, load published files, and treat every clip alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import video as torchvision

from errors import refuses
from published_files import Shapes, digest, holds, norm, shapes_of, small_file
from veil.nn.video import VIDEO_NETS, make

# SHA-256 of the sorted lines "name shape" of the state dict, taken from pytorchvideo 0.1.5, whose hub loads its
# files strictly, and from the networks of DavideA/c3d-pytorch and piergiaj/pytorch-i3d.
DIGESTS = {
    "c3d": "7056f7dcf1cfd68174114fe67a200a4ffcebd702e633620937db793bee3c4857",
    "i3d": "97cd133f75d479bd193d224cd327569cbd043318de072c887d2101ad9f5ac36d",
    "i3d_r50": "60fa99d35e662721706727b13ccf3e786755082dd44580fc62359481ae29817a",
    "c2d_r50": "7b67fbaf620347b7e0a1e21cec7901d175d8c75146e1d9900f52fd0a34a4c7aa",
    "slow_r50": "908b21ac4c77775a1ee481341a9eaf4600a3aea17615a6f20e3423c530a222c8",
    "slowfast_r50": "b64258d537dd0d36112ed878c11546389102ac459f198d1924d33a3dbf2ebe30",
    "csn_r101": "8cc407142dadb3c8292819d2557985bab1b34f1ca3713e3ddca092e93db090c4",
    "x3d_s": "92cf6db9a1a738225146f7437e37d7696dcce71a7dd76afdd119768769bb9421",
    "x3d_m": "92cf6db9a1a738225146f7437e37d7696dcce71a7dd76afdd119768769bb9421",
    "x3d_l": "c883ba03734c236de43aa45d27cd7f1ee037bdc01fe21b5a7e9d0cdd58fe0fd1",
}
TORCHVISION = {
    "r3d_18": torchvision.r3d_18,
    "r3d_18_spact": torchvision.r3d_18,
    "r2plus1d_18": torchvision.r2plus1d_18,
    "mvit_v2_s": torchvision.mvit_v2_s,
}


def head(at: str, inputs: int) -> Shapes:
    return {f"{at}.proj.weight": (400, inputs), f"{at}.proj.bias": (400,)}


def stage(at: str, depth: int, inputs: int, inner: int, outputs: int, time: int) -> Shapes:
    """The published tensors of a stage of bottlenecks: (time)×1×1, 1×3×3, 1×1×1."""
    shapes: Shapes = {}
    for i in range(depth):
        block, first = f"{at}.res_blocks.{i}", inputs if i == 0 else outputs
        if i == 0:
            shapes |= {f"{block}.branch1_conv.weight": (outputs, inputs, 1, 1, 1)}
            shapes |= norm(f"{block}.branch1_norm", outputs)
        two = f"{block}.branch2"
        shapes |= {
            f"{two}.conv_a.weight": (inner, first, time, 1, 1),
            f"{two}.conv_b.weight": (inner, inner, 1, 3, 3),
            f"{two}.conv_c.weight": (outputs, inner, 1, 1, 1),
        }
        shapes |= norm(f"{two}.norm_a", inner) | norm(f"{two}.norm_b", inner) | norm(f"{two}.norm_c", outputs)
    return shapes


def slow() -> Shapes:
    shapes: Shapes = {"blocks.0.conv.weight": (64, 3, 1, 7, 7)} | norm("blocks.0.norm", 64)
    shapes |= stage("blocks.1", 3, 64, 64, 256, 1) | stage("blocks.2", 4, 256, 128, 512, 1)
    shapes |= stage("blocks.3", 6, 512, 256, 1024, 3) | stage("blocks.4", 3, 1024, 512, 2048, 3)
    return shapes | head("blocks.5", 2048)


def slowfast() -> Shapes:
    shapes: Shapes = {}
    for path, width, time in ((0, 64, 1), (1, 8, 5)):
        at = f"blocks.0.multipathway_blocks.{path}"
        shapes |= {f"{at}.conv.weight": (width, 3, time, 7, 7)} | norm(f"{at}.norm", width)
    rows = ((3, 80, 64, 8, 1), (4, 320, 128, 32, 1), (6, 640, 256, 64, 3), (3, 1280, 512, 128, 3))
    for i, (depth, inputs, inner, fast, time) in enumerate(rows, start=1):
        at = f"blocks.{i}.multipathway_blocks"
        shapes |= stage(f"{at}.0", depth, inputs, inner, 4 * inner, time)
        shapes |= stage(f"{at}.1", depth, fast, inner // 8, inner // 2, 3)
    for i, width in enumerate((8, 32, 64, 128)):
        at = f"blocks.{i}.multipathway_fusion"
        shapes |= {f"{at}.conv_fast_to_slow.weight": (2 * width, width, 7, 1, 1)} | norm(
            f"{at}.norm", 2 * width
        )
    return shapes | head("blocks.6", 2304)


def x3d() -> Shapes:
    shapes: Shapes = {
        "blocks.0.conv.conv_t.weight": (24, 3, 1, 3, 3),
        "blocks.0.conv.conv_xy.weight": (24, 1, 5, 1, 1),
    }
    shapes |= norm("blocks.0.norm", 24)
    rows = ((3, 24, 54, 24, 8), (5, 24, 108, 48, 8), (11, 48, 216, 96, 16), (7, 96, 432, 192, 32))
    for number, (depth, inputs, inner, outputs, squeeze) in enumerate(rows, start=1):
        for i in range(depth):
            block, first = f"blocks.{number}.res_blocks.{i}", inputs if i == 0 else outputs
            two = f"{block}.branch2"
            if i == 0:
                shapes |= {f"{block}.branch1_conv.weight": (outputs, inputs, 1, 1, 1)}
                shapes |= norm(f"{block}.branch1_norm", outputs) if inputs != outputs else {}
            shapes |= {
                f"{two}.conv_a.weight": (inner, first, 1, 1, 1),
                f"{two}.conv_b.weight": (inner, 1, 3, 3, 3),
                f"{two}.conv_c.weight": (outputs, inner, 1, 1, 1),
            }
            shapes |= (
                norm(f"{two}.norm_a", inner) | norm(f"{two}.norm_b.0", inner) | norm(f"{two}.norm_c", outputs)
            )
            if i % 2 == 0:
                at = f"{two}.norm_b.1.block"
                shapes |= {f"{at}.0.weight": (squeeze, inner, 1, 1, 1), f"{at}.0.bias": (squeeze,)}
                shapes |= {f"{at}.2.weight": (inner, squeeze, 1, 1, 1), f"{at}.2.bias": (inner,)}
    shapes |= {
        "blocks.5.pool.pre_conv.weight": (432, 192, 1, 1, 1),
        "blocks.5.pool.post_conv.weight": (2048, 432, 1, 1, 1),
    }
    return shapes | norm("blocks.5.pool.pre_norm", 432) | head("blocks.5", 2048)


def i3d() -> Shapes:
    def unit(at: str, inputs: int, outputs: int, kernel: int) -> Shapes:
        return {f"{at}.conv3d.weight": (outputs, inputs, *(kernel,) * 3)} | norm(f"{at}.bn", outputs)

    shapes = (
        unit("Conv3d_1a_7x7", 3, 64, 7) | unit("Conv3d_2b_1x1", 64, 64, 1) | unit("Conv3d_2c_3x3", 64, 192, 3)
    )
    rows = {
        "3b": (192, 64, 96, 128, 16, 32, 32),
        "3c": (256, 128, 128, 192, 32, 96, 64),
        "4b": (480, 192, 96, 208, 16, 48, 64),
        "4c": (512, 160, 112, 224, 24, 64, 64),
        "4d": (512, 128, 128, 256, 24, 64, 64),
        "4e": (512, 112, 144, 288, 32, 64, 64),
        "4f": (528, 256, 160, 320, 32, 128, 128),
        "5b": (832, 256, 160, 320, 32, 128, 128),
        "5c": (832, 384, 192, 384, 48, 128, 128),
    }
    for name, (inputs, a, b, bb, c, cc, d) in rows.items():
        at = f"Mixed_{name}"
        shapes |= unit(f"{at}.b0", inputs, a, 1)
        shapes |= unit(f"{at}.b1a", inputs, b, 1) | unit(f"{at}.b1b", b, bb, 3)
        shapes |= unit(f"{at}.b2a", inputs, c, 1) | unit(f"{at}.b2b", c, cc, 3)
        shapes |= unit(f"{at}.b3b", inputs, d, 1)
    return shapes | {"logits.conv3d.weight": (400, 1024, 1, 1, 1), "logits.conv3d.bias": (400,)}


PUBLISHED = {"x3d_s": x3d(), "slow_r50": slow(), "slowfast_r50": slowfast(), "i3d": i3d()}


@pytest.mark.parametrize("name", VIDEO_NETS)
def test_published_number_of_parameters(name):
    with torch.device("meta"):
        net = VIDEO_NETS[name].build(VIDEO_NETS[name].classes)
    assert sum(p.numel() for p in net.parameters()) == VIDEO_NETS[name].parameters


@pytest.mark.parametrize("name", DIGESTS)
def test_published_layout(name):
    with torch.device("meta"):
        shapes = shapes_of(VIDEO_NETS[name].build(VIDEO_NETS[name].classes))
    assert digest(shapes) == DIGESTS[name]
    if name in PUBLISHED:
        assert shapes == PUBLISHED[name]


@pytest.mark.parametrize("name", TORCHVISION)
def test_layout_of_torchvision(name):
    with torch.device("meta"):
        assert shapes_of(VIDEO_NETS[name].build(400)) == shapes_of(TORCHVISION[name]())


@pytest.mark.parametrize("name", VIDEO_NETS)
def test_any_size(name):
    """The size of the papers on privacy, the published one, and odd ones."""
    published = VIDEO_NETS[name].frames, VIDEO_NETS[name].size, VIDEO_NETS[name].size
    with torch.device("meta"):
        net = VIDEO_NETS[name].build(7).eval()
    for frames, height, width in ((16, 112, 112), published, (1, 33, 70)):
        assert net(torch.empty(2, 3, frames, height, width, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", VIDEO_NETS)
@torch.inference_mode()
def test_a_clip_is_classified_alone_and_by_its_features(name):
    torch.manual_seed(0)
    net, clip = make(name, 7, frames=8, size=32).eval(), torch.randn(2, 3, 8, 32, 32)
    both = net(clip)
    near = {"rtol": 1e-3, "atol": 1e-3 * both.abs().max().item()}
    assert torch.allclose(both, torch.cat([net(clip[:1]), net(clip[1:])]), **near)
    assert not torch.allclose(both[0], both[1], **near)
    features = net.features(clip)
    assert features.shape == (2, net.dim)
    if name != "i3d":  # its last layer is a convolution
        assert torch.allclose(both, net.get_submodule(net.last)(features), **near)


@pytest.mark.parametrize("name", ["small3d", "x3d_s"])
def test_a_seed_makes_the_same_network(name):
    states = []
    for _ in range(2):
        torch.manual_seed(0)
        states.append(make(name, 7).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_is_loaded_whole(tmp_path, name):
    shapes = PUBLISHED[name]
    path = small_file(tmp_path / f"{name}.pyth", shapes, wrap="model_state")
    net = make(name, 400, weights=path)
    assert net.loaded == len(shapes) and holds(net, shapes)


def test_a_file_of_another_network_is_refused(tmp_path):
    path = small_file(tmp_path / "X3D_S.pyth", x3d(), wrap="model_state")
    with refuses("weights-mismatch") as raised:
        make("slow_r50", 400, weights=path)
    assert "X3D_S.pyth" in str(raised.value) and "blocks.0.conv.weight" in str(raised.value)
    with refuses("weights-mismatch") as raised:
        make("x3d_l", 400, weights=path)
    assert "blocks.1.res_blocks.3" in str(raised.value)


def test_a_file_of_before_2018(tmp_path):
    old = {name: shape for name, shape in i3d().items() if not name.endswith("tracked")}
    net = make("i3d", 12, weights=small_file(tmp_path / "rgb_imagenet.pt", old))
    assert net.loaded == len(old) - 2 and net.get_parameter("logits.conv3d.weight").shape == (
        12,
        1024,
        1,
        1,
        1,
    )


@torch.inference_mode()
def test_loaded_weights_do_the_same(tmp_path):
    own, clip = make("x3d_s", 9).eval(), torch.randn(1, 3, 4, 32, 32)
    torch.save({"model_state": {f"module.{k}": v for k, v in own.state_dict().items()}}, tmp_path / "x.pyth")
    assert torch.equal(make("x3d_s", 9, weights=tmp_path / "x.pyth").eval()(clip), own(clip))


def test_an_unknown_name_and_no_hub():
    with refuses("network-unknown") as raised:
        make("slow_fast_r50", 7)
    assert "'slowfast_r50'" in str(raised.value)
    with refuses("no-hub"):
        make("x3d_s", 7, weights="hub")


def watch(module: nn.Module, seen: list[tuple[int, ...]]) -> None:
    def note(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> None:
        seen.append(tuple(out.shape))

    module.register_forward_hook(note)


@pytest.mark.parametrize("name, kept", [("r3d_18", 2), ("r3d_18_spact", 4)])
def test_spact_keeps_the_frames_of_the_last_stage(name, kept):
    seen: list[tuple[int, ...]] = []
    with torch.device("meta"):
        net = VIDEO_NETS[name].build(7)
    watch(net.get_submodule("layer4"), seen)
    net(torch.empty(1, 3, 16, 112, 112, device="meta"))
    assert seen == [(1, 512, kept, 7, 7)]


@pytest.mark.parametrize("name", ["slow_r50", "x3d_s", "i3d"])
@torch.inference_mode()
def test_a_large_clip_is_classified_in_windows_of_the_published_size(name):
    """Windows change nothing for a clip of one window; a larger clip gets more weight in its middle."""
    torch.manual_seed(0)
    small, large = make(name, 5, frames=8, size=32).eval(), make(name, 5, frames=64, size=320).eval()
    large.load_state_dict(small.state_dict())
    clip = torch.randn(1, 3, 8, 32, 32)
    assert torch.allclose(small(clip), large(clip), rtol=1e-3, atol=1e-4)
    clip = torch.randn(1, 3, 24, 96, 96)
    assert torch.equal(small.features(clip), large.features(clip)) == (name == "i3d")  # its window is fixed


def test_the_slow_pathway_gets_a_quarter_of_the_frames():
    seen: list[tuple[int, ...]] = []
    with torch.device("meta"):
        net = VIDEO_NETS["slowfast_r50"].build(7)
    for path in range(2):
        watch(net.get_submodule(f"blocks.0.multipathway_blocks.{path}"), seen)
    for frames in (32, 13):
        net(torch.empty(1, 3, frames, 32, 32, device="meta"))
    assert [shape[2] for shape in seen] == [8, 32, 4, 13]


@pytest.mark.slow
def test_the_small_one_learns_motion():
    """Noise that moves in one of four directions: a single frame is not enough."""
    torch.manual_seed(0)
    sides = ((1, 0), (-1, 0), (0, 1), (0, -1))

    def moving(count: int) -> tuple[Tensor, Tensor]:
        label = torch.arange(count) % 4
        coarse = F.interpolate(torch.randn(count, 3, 12, 12), scale_factor=2, mode="bilinear")
        clips = [
            torch.stack([picture.roll((2 * t * y, 2 * t * x), (1, 2)) for t in range(8)], dim=1)
            for picture, (y, x) in (
                (picture, sides[i]) for picture, i in zip(coarse, label.tolist(), strict=True)
            )
        ]
        return torch.stack(clips), label

    net = make("small3d", 4)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(24):
        clip, label = moving(24)
        optimizer.zero_grad()
        F.cross_entropy(net(clip), label).backward()
        optimizer.step()
    clip, label = moving(64)
    with torch.inference_mode():
        assert (net.eval()(clip).argmax(1) == label).float().mean() > 0.8
