"""Action prototypes: their means, the network, phase sampling, and the model that comes with Veil."""

import numpy as np
import pytest
import torch

from errors import refuses
from veil.methods import make
from veil.methods.prototypes.export import to_onnx
from veil.methods.prototypes.means import PHASES, ActionMeans
from veil.methods.prototypes.network import PrototypeNet, to_half_cells
from veil.methods.prototypes.recipe import PrototypesAnonymizerConfig, PrototypesRecipe
from veil.methods.prototypes.sampling import uniform_from_levels
from veil.nn.onnx import session
from veil.training.data import TrainingData
from veil.training.data_config import DataConfig

DATA = DataConfig(options={"count": 60}, size=32, length=8, skip=1, batch=6, augment="none")
pytestmark = pytest.mark.usefixtures("rendered_once")


@pytest.fixture(scope="module")
def means(rendered_once) -> ActionMeans:
    return ActionMeans(TrainingData(DATA, torch.device("cpu"), 0), cell=8)


def test_half_cells_are_means_in_grey():
    clip = torch.rand(2, 3, 4, 32, 48)
    half_cells = to_half_cells(clip, 8)
    assert half_cells.shape == (2, 4, 8, 12)
    assert torch.isclose(half_cells[1, 2, 3, 5], clip[1, :, 2, 12:16, 20:24].mean())
    with refuses("cells-do-not-fit"):
        to_half_cells(torch.rand(1, 3, 4, 30, 32), 8)


def test_a_prototype_is_the_mean_of_the_training_videos_of_its_action(means):
    videos, actions = means.data.train, means.data.actions
    action = int(actions[0])
    rows = (actions == action).nonzero()[:, 0].tolist()
    for phase, place in ((0.0, 0), (1.0, PHASES - 1)):
        naive = []
        for row in rows:
            frame = videos.frames[videos.first[row] + round(phase * (int(videos.lengths[row]) - 1))]
            grey = frame.float().mean(-1) / 255
            naive.append(
                torch.stack([cell.mean() for cell in grey.reshape(4, 8, 4, 8).transpose(1, 2).flatten(0, 1)])
            )
        assert torch.allclose(means.means[action, place].flatten(), torch.stack(naive).mean(0), atol=1e-5)


def test_two_people_with_one_action_have_one_target(means):
    """The target depends on the action and the phase only."""
    actions = means.data.actions
    action = torch.tensor([int(actions[0])] * 2)
    phase = torch.tensor([[0.1, 0.5, 0.9]] * 2)
    target = means.target(action, phase)
    assert torch.equal(target[0], target[1])
    other = (actions != actions[0]).nonzero()[0]
    assert not torch.equal(means.target(actions[other], phase[:1])[0], target[0])


def test_batches_follow_from_their_number(means):
    one, two, other = means(3), means(3), means(4)
    assert torch.equal(one.half_cells, two.half_cells) and torch.equal(one.target, two.target)
    assert not torch.equal(one.half_cells, other.half_cells)
    assert one.half_cells.shape == (6, 8, 8, 8) and one.target.shape == (6, 8, 4, 4)


def filled(quantize: bool = True, phase_temperature: float = 0.03) -> PrototypeNet:
    torch.manual_seed(0)
    net = PrototypeNet(cell=8, width=8, quantize=quantize, phase_temperature=phase_temperature).eval()
    net.prototypes = torch.randn(3, 5, 4, 4)
    net.pace.fill_(0.5)
    net.mean.fill_(0.5)
    net.deviation.fill_(0.1)
    return net


def test_distances_are_those_of_sequences_of_prototypes():
    net = filled()
    reconstruction = torch.randn(2, 6, 4, 4)
    distances = net.distances(reconstruction)
    assert distances.shape == (2, 3, 5)
    for action, phase in ((0, 0), (2, 4), (1, 2)):
        at = [min(4, max(0, phase + round((k - 2.5) * 0.5))) for k in range(6)]
        naive = (reconstruction[1] - net.prototypes[action, at]).square().mean()
        assert torch.isclose(distances[1, action, phase], naive, atol=1e-5)


def test_every_output_frame_is_a_prototype():
    """Whatever the input."""
    net = filled()
    known = (net.prototypes * net.deviation + net.mean).clamp(0, 1).flatten(0, 1).flatten(1)  # (15, 16)
    with torch.no_grad():
        shown = net.cells(torch.rand(4, 16, 8, 8)).flatten(0, 1).flatten(1)  # (64, 16)
    assert torch.cdist(shown, known, compute_mode="donot_use_mm_for_euclid_dist").amin(1).max() < 1e-5
    with torch.no_grad():
        free = filled(quantize=False).cells(torch.rand(4, 16, 8, 8)).flatten(0, 1).flatten(1)
    assert torch.cdist(free, known).amin(1).max() > 0.1


def test_a_block_is_one_action_and_one_moment_however_dense_its_frames_are():
    net = filled(phase_temperature=0)
    net.prototypes = torch.randn(3, 9, 4, 4)
    with torch.no_grad():
        shown = net.cells(torch.rand(6, 48, 8, 8))
    runs = net.prototypes * net.deviation + net.mean
    for clip in shown:
        far = torch.cdist(clip.flatten(1), runs.clamp(0, 1).flatten(0, 1).flatten(1))
        action, phase = far.argmin(1) // 9, far.argmin(1) % 9
        assert far.amin(1).max() < 1e-2 and action.unique().numel() == 1
        # From one frame to the next a third of what lies between frames that the network sees: in 48 frames 8 prototypes.
        assert (phase.diff() >= 0).all() and phase.diff().max() <= 1 and phase[-1] - phase[0] >= 3


def test_phases_are_sampled_by_their_probability():
    """The random number depends on the grey levels alone, and on each of them."""
    net = filled()
    light = torch.randint(0, 12_241, (4000, 16, 2, 2), generator=torch.Generator().manual_seed(0)) / 12_240
    likely = torch.tensor([0.5, 0.0, 0.2, 0.3, 0.0])
    near = -net.phase_temperature * likely.log()
    net.distances = lambda reconstruction: torch.stack([near, near + 1, near + 1]).expand(
        len(reconstruction), -1, -1
    )
    net.reconstruct = lambda inputs: inputs[:, 0]
    net.pace.fill_(0)
    with torch.no_grad():
        shown = net.cells(light)[:, 0]  # (4000, 4, 4)
        assert torch.equal(shown, net.cells(light)[:, 0])
    known = (net.prototypes[0] * net.deviation + net.mean).clamp(0, 1)
    found = torch.cdist(shown.flatten(1), known.flatten(1)).argmin(1).bincount(minlength=5) / len(light)
    assert torch.allclose(found, likely, atol=0.03)
    other = light.clone()
    other[:, 7, 1, 0] = (other[:, 7, 1, 0] - 1 / 12_240).abs()  # one level, in one half-cell of one frame
    uniform, changed = (uniform_from_levels(levels, net.cell) for levels in (light, other))
    assert ((changed - uniform).abs() > 0.1).all()


def test_prototypes_are_loaded_however_many_there_are():
    net = PrototypeNet(cell=8, width=8)
    net.load_state_dict(filled().state_dict())
    assert net.prototypes.shape == (3, 5, 4, 4)


def test_a_clip_does_not_depend_on_its_neighbours_and_stays_in_range():
    net = filled()
    clip = torch.rand(2, 3, 16, 32, 32)
    both = net(clip)
    assert both.shape == clip.shape and both.min() >= 0 and both.max() <= 1
    assert torch.allclose(both[:1], net(clip[:1]), atol=1e-6)
    assert (both[:, 0] == both[:, 2]).all()  # grey
    cells = both[0, 0, 0].reshape(4, 8, 4, 8)
    assert (cells == cells[:, :1, :, :1]).all()  # nothing finer than a cell


def test_its_onnx_file_gives_the_same_output(tmp_path):
    net = filled()
    to_onnx(net, tmp_path / "net.onnx", DATA)
    for count, length in ((3, 16), (1, 80)):
        light = torch.rand(count, length, 8, 8)
        (cells,) = session(tmp_path / "net.onnx").run(None, {"images": light.numpy()})
        with torch.no_grad():
            expected = net.cells(light)
        assert np.abs(expected.numpy() - np.asarray(cells)).max() < 2e-3  # its weights are stored in 16 bits


@pytest.mark.parametrize("cell", [7, 12])
def test_cells_that_do_not_fit_are_refused(cell):
    with refuses("cells-do-not-fit"):
        PrototypesRecipe(data=DATA, anonymizer=PrototypesAnonymizerConfig(cell=cell))


def test_the_one_that_comes_with_veil_shows_cells_only():
    frames = np.random.default_rng(0).integers(0, 256, (20, 64, 80, 3), np.uint8)
    output = np.concatenate([part.frames for part in make("prototypes", skip=1).stream([frames])])
    assert output.shape == frames.shape
    assert (output[..., 0] == output[..., 2]).all()
    assert np.abs(np.diff(output[..., 0].astype(int), axis=2)).max() < 128
