"""Templates: kept and found again, and saliency against Eq. 1 written as loops."""

import dataclasses
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from safetensors.numpy import save_file

from conftest import SHARED, needs_shared
from test_dense import needs_weights
from veil import templates
from veil.core import VeilError
from veil.nn import dense
from veil.nn.dense import cell
from veil.templates import BUILT_IN, GROUPS, Aggregate, Template, add, load, saliency, targeted


class Colours:
    """A descriptor that is easily followed: what colour each block of 8 pixels has."""

    name, dim, stride, offset, fingerprint = "colours", 3, 8, 4.0, "0123456789abcdef"

    def looked(self, height: int, width: int) -> tuple[int, int]:
        return max(8, height // 8 * 8), max(8, width // 8 * 8)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        height, width = self.looked(*image.shape[:2])
        small = PIL.Image.fromarray(image).resize((width // 8, height // 8), PIL.Image.Resampling.BOX)
        values = np.asarray(small, np.float32) - 127.5
        return values / np.linalg.norm(values, axis=-1, keepdims=True)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "veil" / "templates"


@pytest.fixture
def photo() -> np.ndarray:
    """A red square on a blue ground, and a green one."""
    image = np.full((80, 120, 3), (10, 20, 240), np.uint8)
    image[16:32, 24:48] = (230, 30, 20)
    image[48:64, 80:104] = (20, 220, 40)
    return image


def made(name: str, vectors: np.ndarray) -> Template:
    unit = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return Template(name, "colours", "0" * 16, unit, ((0.0, 0.0),) * len(unit), "pixels", "", (1, 1))


def naive(descriptors: np.ndarray, wanted: list[Template], aggregate: str) -> np.ndarray:
    height, width = descriptors.shape[:2]
    found = np.zeros((height, width))
    for row in range(height):
        for column in range(width):
            each = []
            for template in wanted:
                best = 0.0
                for vector in template.vectors:
                    a, b = descriptors[row, column].astype(float), vector.astype(float)
                    best = max(best, float(sum(a * b)) / (sum(a * a) ** 0.5 * sum(b * b) ** 0.5))
                each.append(best)
            if aggregate == "mean":
                found[row, column] = sum(each) / len(each)
            elif aggregate == "max":
                found[row, column] = max(each)
            else:
                left = 1.0
                for one in each:
                    left *= 1 - one
                found[row, column] = 1 - left
    return found


@pytest.mark.parametrize("aggregate", ["mean", "max", "noisy-or"])
@pytest.mark.parametrize("clicks", [(1,), (1, 1), (3, 1, 2), (2, 4)])
def test_saliency_is_eq_1(aggregate: Aggregate, clicks):
    random = np.random.default_rng(0)
    grid = random.normal(size=(5, 7, 12)).astype(np.float32)
    grid /= np.linalg.norm(grid, axis=-1, keepdims=True)
    wanted = [made(f"t{i}", random.normal(size=(n, 12))) for i, n in enumerate(clicks)]
    found = saliency(grid, wanted, aggregate)
    assert found.shape == (5, 7) and found.dtype == np.float32 and found.min() >= 0 and found.max() <= 1
    assert np.allclose(found, naive(grid, wanted, aggregate), atol=1e-5)
    video = np.stack([grid, grid[::-1]])
    assert np.allclose(saliency(video, wanted, aggregate), np.stack([found, found[::-1]]), atol=1e-6)


def test_mean_dilutes_and_the_others_do_not():
    grid = np.array([[[1, 0], [0, 1]]], np.float32)
    there, elsewhere = made("a", np.array([[1, 0]])), made("b", np.array([[-1, 0]]))
    assert saliency(grid, [there, elsewhere]).tolist() == [[0.5, 0]]
    assert saliency(grid, [there, elsewhere], "max").tolist() == [[1, 0]]
    assert saliency(grid, [there, elsewhere], "noisy-or").tolist() == [[1, 0]]


def test_saliency_refuses():
    grid = np.ones((2, 2, 3), np.float32)
    with pytest.raises(VeilError, match="nothing to look for"):
        saliency(grid, [])
    with pytest.raises(VeilError, match="no aggregate 'sum': choose one of mean, max, noisy-or"):
        saliency(grid, [made("a", np.ones((1, 3)))], "sum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="descriptors have 3 numbers, those of 'a' 4"):
        saliency(grid, [made("a", np.ones((1, 4)))])


def test_targeted_is_the_best_match_of_the_video():
    random = np.random.default_rng(1)
    video = random.normal(size=(3, 4, 5, 6)).astype(np.float32)
    video /= np.linalg.norm(video, axis=-1, keepdims=True)
    template = made("a", random.normal(size=(2, 6)))
    (found,) = targeted([template], video)
    for click in range(2):
        best = max((float(v @ template.vectors[click]), i) for i, v in enumerate(video.reshape(-1, 6)))[1]
        assert (found.vectors[click] == video.reshape(-1, 6)[best]).all()
    assert saliency(video, [found]).max() == pytest.approx(1, abs=1e-6)
    assert found.name == "a" and (template.vectors != found.vectors).any()
    (again,) = targeted([found], video)
    assert (again.vectors == found.vectors).all()


def test_added_template_is_loaded_and_finds_its_place(photo, home, tmp_path):
    file = tmp_path / "red square.png"
    PIL.Image.fromarray(photo).save(file)
    colours = Colours()
    kept = add("red-thing", file, [(30, 20), (44, 28)], colours)
    (found,) = load(["red-thing"], colours)
    for field in dataclasses.fields(Template):
        assert np.array_equal(getattr(kept, field.name), getattr(found, field.name)), field.name
    assert (
        found.image == "red square.png" and found.size == (120, 80) and found.points == ((30, 20), (44, 28))
    )
    assert [path.name for path in home.iterdir()] == ["red-thing.safetensors"]
    assert str(tmp_path) not in (home / "red-thing.safetensors").read_bytes().decode("latin1")
    map_ = saliency(colours(photo), [found])
    assert map_[2:4, 3:6].min() > 0.99 and (map_ > 0.5).sum() == 6  # the red square and nothing else
    over = dense.spread(map_, colours, 80, 120)
    assert over[24, 36] > 0.99 and over[56, 92] < 0.1 and over[70, 10] < 0.1
    as_pixels = add("red-too", photo, [(30, 20), (44, 28)], colours)
    assert as_pixels.checksum == kept.checksum and (as_pixels.vectors == kept.vectors).all()
    assert [one.name for one in templates.listed()] == ["red-thing", "red-too"]
    assert {"red-thing", "red-too", *BUILT_IN} == {*templates.names()}


def test_name_is_taken_once(photo, home):
    add("thing", photo, [(30, 20)], Colours())
    before = (home / "thing.safetensors").read_bytes()
    with pytest.raises(VeilError, match="exists already; pass --overwrite"):
        add("thing", photo, [(90, 55)], Colours())
    assert (home / "thing.safetensors").read_bytes() == before and len([*home.iterdir()]) == 1
    add("thing", photo, [(90, 55)], Colours(), overwrite=True)
    assert load(["thing"], Colours())[0].points == ((90, 55),) and len([*home.iterdir()]) == 1
    templates.remove("thing")
    assert not [*home.iterdir()]
    with pytest.raises(VeilError, match=r"no template 'thing' of yours to remove\."):
        templates.remove("thing")
    with pytest.raises(VeilError, match="no template"):
        templates.remove("../thing")


def test_nothing_is_kept_when_writing_fails(photo, home, monkeypatch):
    add("first", photo, [(30, 20)], Colours())
    monkeypatch.setattr(
        Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(VeilError, match=r"second\.safetensors could not be written \(No space left"):
        add("second", photo, [(30, 20)], Colours())
    assert [path.name for path in home.iterdir()] == ["first.safetensors"]


def test_bad_input_is_told_in_one_sentence(photo, home, tmp_path):
    colours = Colours()
    not_an_image = tmp_path / "notes.png"
    not_an_image.write_text("not a picture")
    rows = [
        (
            "a",
            photo,
            [(120, 5)],
            "the click 120,5 is outside the picture, which is 120 pixels wide and 80 high.",
        ),
        ("a", photo, [(5, 5), (5, -1)], "the click 5,-1 is outside the picture"),
        ("a", photo, [(float("nan"), 5)], "the click nan,5 is outside the picture"),
        ("a", photo, [], "needs at least one click"),
        ("a", np.full((9, 9, 3), 77, np.uint8), [(1, 1)], "of one colour throughout"),
        ("a", np.zeros((9, 9), np.uint8), [(1, 1)], "a picture is (H, W, 3) uint8, got (9, 9) uint8"),
        ("a", not_an_image, [(1, 1)], "notes.png could not be read as a picture"),
        ("a", tmp_path / "absent.png", [(1, 1)], "there is no picture"),
        ("../a", photo, [(1, 1)], "'../a' is no name for a template"),
        ("", photo, [(1, 1)], "'' is no name for a template"),
        ("Hand", photo, [(1, 1)], "'Hand' is no name for a template"),
        ("a\n", photo, [(1, 1)], "is no name for a template"),
        ("x" * 41, photo, [(1, 1)], "is no name for a template"),
        ("face", photo, [(1, 1)], "'face' is the name of a group of templates"),
    ]
    for name, image, points, sentence in rows:
        with pytest.raises(VeilError) as told:
            add(name, image, points, colours)
        assert sentence in str(told.value), told.value
    assert not home.exists() or not [*home.iterdir()]


def test_unknown_names_are_helped(photo):
    add("left-hand", photo, [(30, 20)], Colours())
    with pytest.raises(VeilError, match=r"no template 'left-hnad': did you mean left-hand\?"):
        load(["left-hnad"], Colours())
    with pytest.raises(VeilError, match=r"no template 'fase': did you mean face\?"):
        load(["fase"], Colours())
    with pytest.raises(
        VeilError, match=r"no template 'zzz': choose one of cheek, eyes, .*left-hand.*person\."
    ):
        load(["zzz"], Colours())
    with pytest.raises(
        VeilError, match="no template of the group 'body' yet: add one of arm, hand, leg, torso"
    ):
        load(["body"], Colours())


def test_groups_are_their_templates(photo):
    assert templates.expanded(["face"]) == ["cheek", "eyes", "forehead", "mouth"]
    add("torso", photo, [(30, 20)], Colours())
    assert templates.expanded(["body", "eyes", "face"]) == ["torso", "eyes", "cheek", "forehead", "mouth"]
    assert templates.expanded(["person"]) == ["cheek", "eyes", "forehead", "hair", "mouth", "torso"]
    assert not {*GROUPS} & {*BUILT_IN} and {*BUILT_IN} <= {*GROUPS["person"]}


def test_own_template_goes_before_the_built_in_one(photo):
    assert load(["hair"], Colours())[0].image == "built in"
    add("hair", photo, [(30, 20)], Colours())
    assert load(["hair"], Colours())[0].image == "pixels"


def test_templates_of_other_descriptors_are_refused(photo):
    add("thing", photo, [(30, 20)], Colours())
    other = Colours()
    other.name = "shapes"
    with pytest.raises(VeilError, match="'thing' was made with the descriptor colours, not with shapes"):
        load(["thing"], other)
    other = Colours()
    other.fingerprint = "f" * 16
    with pytest.raises(VeilError, match=r"other weights of colours \(they begin 01234567, these ffffffff\)"):
        load(["thing"], other)


def test_damaged_files_are_refused(photo, home):
    add("thing", photo, [(30, 20)], Colours())
    place = home / "thing.safetensors"
    whole = place.read_bytes()
    for broken in (b"", whole[:20], whole[:-3], b"\x80\x04K\x01."):  # the last is a pickle
        place.write_bytes(broken)
        with pytest.raises(VeilError, match=r"thing\.safetensors is not a template of Veil, or is damaged"):
            load(["thing"], Colours())
    for vectors in (np.ones((1, 3), np.float32), np.full((1, 3), np.nan, np.float32), np.ones(3)):
        save_file({"vectors": vectors}, place, {"template": "{}"})
        with pytest.raises(VeilError, match="is not a template"):
            templates.listed()


def test_picture_shows_the_heat_and_the_clicks(photo):
    colours = Colours()
    template = add("red", photo, [(36, 24)], colours)
    shown = templates.picture(photo, template, colours)
    assert shown.size == (120, 80) and shown.mode == "RGB"
    pixels = np.asarray(shown).astype(int)
    assert pixels[20, 28].sum() > pixels[70, 10].sum() + 100  # bright where it is
    assert (pixels == 255).all(-1).any()  # a circle where the click was
    elsewhere = photo.copy()
    elsewhere[0, 0] = 0
    assert not (np.asarray(templates.picture(elsewhere, template, colours)) == 255).all(-1).any()
    template = dataclasses.replace(template, descriptor="shapes")
    with pytest.raises(VeilError, match="made with the descriptor shapes"):
        templates.picture(photo, template, colours)


def test_picture_is_upright_as_it_is_shown(photo, tmp_path):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    PIL.Image.fromarray(photo).save(tmp_path / "turned.png", exif=exif)
    assert (templates.opened(tmp_path / "turned.png") == np.rot90(photo, -1)).all()
    PIL.Image.fromarray(photo[..., 0]).save(tmp_path / "grey.png")
    assert templates.opened(str(tmp_path / "grey.png")).shape == (80, 120, 3)


@needs_weights
def test_lite0_templates_of_the_astronaut(tmp_path, monkeypatch):
    from skimage import data

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dense.descriptor.cache_clear()
    image = data.astronaut()
    fine = dense.descriptor("lite0", 8)
    add("badge", image, [(170, 385)])  # with the default descriptor: stride 16
    badge, *face = load(["badge", "face"], fine)  # the same vectors serve at stride 8
    over = dense.spread(saliency(fine(image), [badge]), fine, 512, 512)
    y, x = np.unravel_index(over.argmax(), over.shape)
    assert np.hypot(x - 170, y - 385) < 30
    face_map = dense.spread(saliency(fine(image), face, "max"), fine, 512, 512)
    assert face_map[85:150, 190:260].mean() > 2 * face_map[200:].mean()
    shifted = np.roll(image, (-40, 90), (0, 1))
    (target,) = targeted([badge], fine(shifted))
    row, column = cell(fine, (260, 345), 512, 512)
    best = np.unravel_index(saliency(fine(shifted), [target]).argmax(), fine(shifted).shape[:2])
    assert np.hypot(best[0] - row, best[1] - column) <= 3
    assert (load(["badge"])[0].vectors == badge.vectors).all()  # deterministic
    dense.descriptor.cache_clear()


@needs_weights
@needs_shared
@pytest.mark.parametrize(
    ("file", "box"), [("obama.jpg", (390, 75, 610, 420)), ("biden.jpg", (400, 73, 730, 625))]
)
def test_built_in_face_is_found_in_other_people(file, box, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dense.descriptor.cache_clear()
    image = templates.opened(SHARED / "faces" / file)
    height, width = image.shape[:2]
    found = dense.descriptor()
    over = dense.spread(saliency(found(image), load(["face"]), "max"), found, height, width)
    y, x = np.unravel_index(over.argmax(), over.shape)
    assert box[0] <= x < box[2] and box[1] <= y < box[3]
    dense.descriptor.cache_clear()
