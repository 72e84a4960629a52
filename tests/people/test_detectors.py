"""The detectors on real pictures, and the interface on a model made here."""

from pathlib import Path

import numpy as np
import pytest

from conftest import SHARED, needs_shared
from errors import refuses
from veil.nn import weights
from veil.people import detectors as people
from veil.people.detectors import detector, strongest
from veil.people.pictures import built_in


@pytest.fixture(autouse=True)
def fresh():
    detector.cache_clear()
    yield
    detector.cache_clear()


def astronaut():
    return built_in("astronaut")


def test_finds_the_one_face():
    (face,) = [d for d in detector("face")(astronaut()) if d.score > 0.5]
    x0, y0, x1, y1 = face.box
    assert 160 < x0 < 200 and 240 < x1 < 290 and 50 < y0 < 90 and 150 < y1 < 210


def test_part_of_a_picture_shows_the_same_face():
    """What makes looking only at what changed possible."""
    assert detector("face").local
    (whole,) = [d for d in detector("face")(astronaut()) if d.score > 0.5]
    (part,) = [d for d in detector("face")(astronaut()[0:320, 96:384]) if d.score > 0.5]
    assert np.abs(np.array(part.box) + np.array([96, 0, 96, 0]) - whole.box).max() < 6


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (31, 200), (333, 17)])
def test_any_size_of_picture(shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    for found in detector("face")(image):
        x0, y0, x1, y1 = found.box
        assert 0 <= x0 <= x1 <= shape[1] and 0 <= y0 <= y1 <= shape[0] and 0 <= found.score <= 1


@needs_shared
def test_group_photo_has_six_faces():
    from PIL import Image

    photo = np.asarray(Image.open(SHARED / "faces" / "t1.jpg").convert("RGB"))
    assert len([d for d in detector("face")(photo) if d.score > 0.5]) == 6


@needs_shared
def test_yolox_finds_pedestrians(monkeypatch):
    from veil.media.sources import open_source

    monkeypatch.setenv(weights.FOLDER_VARIABLE, str(SHARED / "weights"))
    source = open_source(SHARED / "video" / "vtest.avi")
    image = next(source.windows()).frames[5]
    source.close()
    people_seen = [d for d in detector("person")(image) if d.score > 0.4]
    assert len(people_seen) >= 3
    assert all(d.box[3] - d.box[1] > d.box[2] - d.box[0] for d in people_seen)


def yolox_like(path: Path, size: int = 64) -> Path:
    """An ONNX file in the form of YOLOX whose answer is one person: cell 0, half a stride in, 16 by 32 px, score .72."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    cells = sum((size // stride) ** 2 for stride in (8, 16, 32))
    answer = np.zeros((1, cells, 85), np.float32)
    answer[0, 0, :6] = [1.5, 2.5, np.log(2), np.log(4), 0.9, 0.8]
    image = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, size, size])
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, cells, 85])
    nodes = [
        helper.make_node("ReduceSum", ["images"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", ["answer", "nothing"], ["output"]),
    ]
    constants = [
        numpy_helper.from_array(answer, "answer"),
        numpy_helper.from_array(np.zeros((), np.float32), "zero"),
    ]
    graph = helper.make_graph(nodes, "yolox", [image], [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    return path


def test_yolox_boxes_are_decoded_by_grid_and_stride(tmp_path):
    find = detector("person", str(yolox_like(tmp_path / "own.onnx")))
    (person,) = find(np.zeros((128, 128, 3), np.uint8))  # shrunk by 2 into the square of 64
    # centre (1.5, 2.5) * 8 = (12, 20); size (2, 4) * 8 = (16, 32); times 2 for the shrinking
    assert person.box == pytest.approx((8, 8, 40, 72), abs=0.01)
    assert person.score == pytest.approx(0.72)


def test_a_detector_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.delenv(weights.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with refuses("weights-missing"):
        detector("person")
    with refuses("detector-unknown"):
        detector("face", "yolox_nano")
    with refuses("detector-missing"):
        detector("person", str(tmp_path / "none.onnx"))
    (tmp_path / "text.onnx").write_text("no model")
    with refuses("model-unreadable"):
        detector("person", str(tmp_path / "text.onnx"))


def test_a_torchvision_detector_loads_published_files(tmp_path, monkeypatch):
    """A file with the names and shapes of the published one (here with random values) loads and answers."""
    import hashlib

    import torch
    from torchvision.models import detection

    entry = weights.WEIGHTS["fasterrcnn_mobilenet"]
    network = detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None)
    torch.save(network.state_dict(), tmp_path / entry.file)
    checksum = hashlib.sha256((tmp_path / entry.file).read_bytes()).hexdigest()
    own = weights.WeightsFile(entry.file, checksum, 0, entry.licence, entry.purpose)
    monkeypatch.setitem(weights.WEIGHTS, "fasterrcnn_mobilenet", own)
    monkeypatch.setenv(weights.FOLDER_VARIABLE, str(tmp_path))
    find = detector("person", "fasterrcnn_mobilenet")
    assert isinstance(find, people.TorchvisionPeople)
    assert isinstance(find(np.zeros((40, 60, 3), np.uint8)), list)


def test_of_overlapping_boxes_the_strongest_stays():
    boxes = np.array([[0, 0, 10, 10], [1, 1, 11, 11], [30, 30, 50, 50], [-5, -5, 4, 4]], np.float32)
    kept = strongest(boxes, np.array([0.5, 0.9, 0.4, 0.3], np.float32), overlap=0.3, within=(40, 40))
    assert [d.box for d in kept] == [(1, 1, 11, 11), (30, 30, 40, 40), (0, 0, 4, 4)]
    assert strongest(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), 0.3, (1, 1)) == []


def test_no_thread_waits_busily():
    """The cores are the encoder's while the detector waits."""
    session = detector("face").session  # type: ignore[attr-defined]
    assert session.get_session_options().get_session_config_entry("session.intra_op.allow_spinning") == "0"
