"""Everyone: what it is taught, what it sees, and that it comes with Veil."""

import numpy as np
import pytest
import torch

from veil.core import VeilError
from veil.methods import make
from veil.methods.prototypes import PHASES, Means, Prototypes, PrototypesRecipe, halves, to_onnx
from veil.nn.onnx import session
from veil.training.data import DataConfig, Source, TrainingData

STAGE = DataConfig(
    use=Source(name="synthetic", options={"count": 60}), size=32, length=8, skip=1, batch=6, augment="none"
)
pytestmark = pytest.mark.usefixtures("drawn_once")


@pytest.fixture(scope="module")
def means(drawn_once) -> Means:
    recipe = PrototypesRecipe(stage=STAGE, cell=8, width=8)
    return Means(recipe, TrainingData(STAGE, torch.device("cpu"), 0))


def test_half_cells_are_means_in_grey():
    clip = torch.rand(2, 3, 4, 32, 48)
    light = halves(clip, 8)
    assert light.shape == (2, 4, 8, 12)
    assert torch.isclose(light[1, 2, 3, 5], clip[1, :, 2, 12:16, 20:24].mean())
    with pytest.raises(VeilError, match="do not fit into cells of 8"):
        halves(torch.rand(1, 3, 4, 30, 32), 8)


def test_what_everybody_shows_is_the_mean_of_the_training_videos(means):
    reel, actions = means.staged.train, means.staged.actions
    action = int(actions[0])
    rows = (actions == action).nonzero()[:, 0].tolist()
    for phase, place in ((0.0, 0), (1.0, PHASES - 1)):
        naive = []
        for row in rows:
            frame = reel.frames[reel.first[row] + round(phase * (int(reel.lengths[row]) - 1))]
            grey = frame.float().mean(-1) / 255
            naive.append(
                torch.stack([cell.mean() for cell in grey.reshape(4, 8, 4, 8).transpose(1, 2).flatten(0, 1)])
            )
        assert torch.allclose(means.everyone[action, place].flatten(), torch.stack(naive).mean(0), atol=1e-5)


def test_two_people_who_do_the_same_are_taught_the_same(means):
    """The target knows the action and how far it has come, and nothing else."""
    actions = means.staged.actions
    action = torch.tensor([int(actions[0])] * 2)
    phase = torch.tensor([[0.1, 0.5, 0.9]] * 2)
    wanted = means.wanted(action, phase)
    assert torch.equal(wanted[0], wanted[1])
    other = (actions != actions[0]).nonzero()[0]
    assert not torch.equal(means.wanted(actions[other], phase[:1])[0], wanted[0])


def test_batches_follow_from_their_number(means):
    one, two, other = means(3), means(3), means(4)
    assert torch.equal(one.light, two.light) and torch.equal(one.wanted, two.wanted)
    assert not torch.equal(one.light, other.light)
    assert one.light.shape == (6, 8, 8, 8) and one.wanted.shape == (6, 8, 4, 4)


def filled(snap: bool = True, loose: float = 0.03) -> Prototypes:
    torch.manual_seed(0)
    net = Prototypes(cell=8, width=8, snap=snap, loose=loose).eval()
    net.pictures = torch.randn(3, 5, 4, 4)
    net.pace.fill_(0.5)
    net.mean.fill_(0.5)
    net.deviation.fill_(0.1)
    return net


def test_distances_are_those_of_runs_of_pictures():
    net = filled()
    drawn = torch.randn(2, 6, 4, 4)
    far = net.far(drawn)
    assert far.shape == (2, 3, 5)
    for action, phase in ((0, 0), (2, 4), (1, 2)):
        at = [min(4, max(0, phase + round((k - 2.5) * 0.5))) for k in range(6)]
        naive = (drawn[1] - net.pictures[action, at]).square().mean()
        assert torch.isclose(far[1, action, phase], naive, atol=1e-5)


def test_what_leaves_is_a_picture_of_everybody():
    """Whatever comes in: no other picture can leave."""
    net = filled()
    known = (net.pictures * net.deviation + net.mean).clamp(0, 1).flatten(0, 1).flatten(1)  # (15, 16)
    with torch.no_grad():
        shown = net.shown(torch.rand(4, 16, 8, 8)).flatten(0, 1).flatten(1)  # (64, 16)
    assert torch.cdist(shown, known, compute_mode="donot_use_mm_for_euclid_dist").amin(1).max() < 1e-5
    with torch.no_grad():
        free = filled(snap=False).shown(torch.rand(4, 16, 8, 8)).flatten(0, 1).flatten(1)
    assert torch.cdist(free, known).amin(1).max() > 0.1


def test_a_block_is_one_action_and_one_moment_however_dense_its_frames_are():
    net = filled(loose=0)
    net.pictures = torch.randn(3, 9, 4, 4)
    with torch.no_grad():
        shown = net.shown(torch.rand(6, 48, 8, 8))
    runs = net.pictures * net.deviation + net.mean
    for clip in shown:
        far = torch.cdist(clip.flatten(1), runs.clamp(0, 1).flatten(0, 1).flatten(1))
        action, phase = far.argmin(1) // 9, far.argmin(1) % 9
        assert far.amin(1).max() < 1e-2 and action.unique().numel() == 1
        # From one frame to the next a third of what lies between frames that are looked at: in 48 frames 8 pictures.
        assert (phase.diff() >= 0).all() and phase.diff().max() <= 1 and phase[-1] - phase[0] >= 3


def test_moments_are_shown_as_often_as_they_are_likely():
    """Chance follows from the grey levels alone, and from each of them."""
    net = filled()
    light = torch.randint(0, 12_241, (4000, 16, 2, 2), generator=torch.Generator().manual_seed(0)) / 12_240
    likely = torch.tensor([0.5, 0.0, 0.2, 0.3, 0.0])
    near = -net.loose * likely.log()
    net.far = lambda drawn: torch.stack([near, near + 1, near + 1]).expand(len(drawn), -1, -1)
    net.draw = lambda seen: seen[:, 0]
    net.pace.fill_(0)
    with torch.no_grad():
        shown = net.shown(light)[:, 0]  # (4000, 4, 4)
        assert torch.equal(shown, net.shown(light)[:, 0])
    known = (net.pictures[0] * net.deviation + net.mean).clamp(0, 1)
    found = torch.cdist(shown.flatten(1), known.flatten(1)).argmin(1).bincount(minlength=5) / len(light)
    assert torch.allclose(found, likely, atol=0.03)
    other = light.clone()
    other[:, 7, 1, 0] = (other[:, 7, 1, 0] - 1 / 12_240).abs()  # one level, in one half-cell of one frame
    assert ((net.chance(other) - net.chance(light)).abs() > 0.1).all()


def test_pictures_are_loaded_however_many_there_are():
    net = Prototypes(cell=8, width=8)
    net.load_state_dict(filled().state_dict())
    assert net.pictures.shape == (3, 5, 4, 4)


def test_a_clip_does_not_depend_on_its_neighbours_and_stays_in_range():
    net = filled()
    clip = torch.rand(2, 3, 16, 32, 32)
    both = net(clip)
    assert both.shape == clip.shape and both.min() >= 0 and both.max() <= 1
    assert torch.allclose(both[:1], net(clip[:1]), atol=1e-6)
    assert (both[:, 0] == both[:, 2]).all()  # grey
    cells = both[0, 0, 0].reshape(4, 8, 4, 8)
    assert (cells == cells[:, :1, :, :1]).all()  # nothing finer than a cell


def test_its_file_says_what_it_says(tmp_path):
    net = filled()
    to_onnx(net, tmp_path / "net.onnx", STAGE)
    for count, length in ((3, 16), (1, 80)):
        light = torch.rand(count, length, 8, 8)
        (cells,) = session(tmp_path / "net.onnx").run(None, {"images": light.numpy()})
        with torch.no_grad():
            expected = net.shown(light)
        assert np.abs(expected.numpy() - np.asarray(cells)).max() < 2e-3  # its weights are stored in 16 bits


@pytest.mark.parametrize("cell", [7, 12])
def test_cells_that_do_not_fit_are_refused(cell):
    with pytest.raises(VeilError, match="do not fit into cells"):
        PrototypesRecipe(stage=STAGE, cell=cell)


def test_the_one_that_comes_with_veil_shows_cells_only():
    frames = np.random.default_rng(0).integers(0, 256, (20, 64, 80, 3), np.uint8)
    drawn = np.concatenate([part.frames for part in make("prototypes", skip=1).stream([frames])])
    assert drawn.shape == frames.shape
    assert (drawn[..., 0] == drawn[..., 2]).all()
    assert np.abs(np.diff(drawn[..., 0].astype(int), axis=2)).max() < 128
