"""Templates: kept and found again, and saliency against Eq. 1 written as loops."""

import dataclasses
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from safetensors.numpy import save_file

from conftest import SHARED, needs_shared
from errors import refuses
from veil.cli import main
from veil.people import descriptors as dense
from veil.people import parts, pictures, templates
from veil.people.descriptors import cell
from veil.people.overlays import draw_template
from veil.people.templates import BUILT_IN, GROUPS, Aggregate, Origin, Template, add, load, saliency, targeted


class Colours:
    """A descriptor that is easily followed: what colour each block of 8 pixels has."""

    name, dim, stride, offset, fingerprint = "colours", 3, 8, 4.0, "0123456789abcdef"

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        return max(8, height // 8 * 8), max(8, width // 8 * 8)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        height, width = self.input_size(*image.shape[:2])
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
    return Template(name, "colours", "0" * 16, unit, (Origin("pixels", "", (1, 1), (0.0, 0.0)),) * len(unit))


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
    with refuses("nothing-named"):
        saliency(grid, [])
    with refuses("aggregate-unknown"):
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
    assert [(o.image, o.size, o.point) for o in found.origins] == [
        ("red square.png", (120, 80), (30, 20)),
        ("red square.png", (120, 80), (44, 28)),
    ]
    assert [path.name for path in home.iterdir()] == ["red-thing.safetensors"]
    assert str(tmp_path) not in (home / "red-thing.safetensors").read_bytes().decode("latin1")
    map_ = saliency(colours(photo), [found])
    assert map_[2:4, 3:6].min() > 0.99 and (map_ > 0.5).sum() == 6  # the red square and nothing else
    over = dense.spread(map_, colours, 80, 120)
    assert over[24, 36] > 0.99 and over[56, 92] < 0.1 and over[70, 10] < 0.1
    as_pixels = add("red-too", photo, [(30, 20), (44, 28)], colours)
    assert as_pixels.origins[0].checksum == kept.origins[0].checksum
    assert (as_pixels.vectors == kept.vectors).all()
    assert [row for row in templates.table() if row[1] == "own"] == [
        ("red-thing", "own", "colours", 2, "red square.png"),
        ("red-too", "own", "colours", 2, "pixels"),
    ]
    assert {"red-thing", "red-too", *BUILT_IN} == {*templates.names()}


def test_name_is_taken_once(photo, home):
    add("thing", photo, [(30, 20)], Colours())
    before = (home / "thing.safetensors").read_bytes()
    with refuses("template-exists"):
        add("thing", photo, [(90, 55)], Colours())
    assert (home / "thing.safetensors").read_bytes() == before and len([*home.iterdir()]) == 1
    add("thing", photo, [(90, 55)], Colours(), overwrite=True)
    assert [o.point for o in load(["thing"], Colours())[0].origins] == [(90, 55)] and len(
        [*home.iterdir()]
    ) == 1
    templates.remove("thing")
    assert not [*home.iterdir()]
    with refuses("template-unknown"):
        templates.remove("thing")
    with refuses("template-unknown"):
        templates.remove("../thing")


def test_nothing_is_kept_when_writing_fails(photo, home, monkeypatch):
    add("first", photo, [(30, 20)], Colours())
    monkeypatch.setattr(
        Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with refuses("unwritable"):
        add("second", photo, [(30, 20)], Colours())
    assert [path.name for path in home.iterdir()] == ["first.safetensors"]


def test_bad_input_is_refused(photo, home, tmp_path):
    colours = Colours()
    not_an_image = tmp_path / "notes.png"
    not_an_image.write_text("not a picture")
    rows = [
        (
            "a",
            photo,
            [(120, 5)],
            "click-outside",
        ),
        ("a", photo, [(5, 5), (5, -1)], "click-outside"),
        ("a", photo, [(float("nan"), 5)], "click-outside"),
        ("a", photo, [], "click-missing"),
        ("a", np.full((9, 9, 3), 77, np.uint8), [(1, 1)], "picture-uniform"),
        ("a", np.zeros((9, 9), np.uint8), [(1, 1)], "picture-shape"),
        ("a", not_an_image, [(1, 1)], "picture-unreadable"),
        ("a", tmp_path / "absent.png", [(1, 1)], "picture-missing"),
        ("../a", photo, [(1, 1)], "template-name"),
        ("", photo, [(1, 1)], "template-name"),
        ("Hand", photo, [(1, 1)], "template-name"),
        ("a\n", photo, [(1, 1)], "template-name"),
        ("x" * 41, photo, [(1, 1)], "template-name"),
        ("face", photo, [(1, 1)], "template-name-of-part"),
        ("clothes", photo, [(1, 1)], "template-name-of-part"),
    ]
    for name, image, points, code in rows:
        with refuses(code):
            add(name, image, points, colours)
    assert not home.exists() or not [*home.iterdir()]


def test_unknown_names_are_helped(photo):
    add("left-hand", photo, [(30, 20)], Colours())
    with refuses("template-unknown"):
        load(["left-hnad"], Colours())
    with refuses("template-unknown"):
        load(["fase"], Colours())
    with refuses("template-unknown"):
        load(["zzz"], Colours())


def test_groups_are_their_templates():
    with refuses("template-is-part"):
        templates.expanded(["clothes"])
    assert templates.expanded(["face"]) == ["cheek", "eyes", "forehead", "lips"]
    assert templates.expanded(["torso", "body", "eyes"]) == ["torso", "arm", "hand", "leg", "eyes"]
    assert not {*GROUPS} & {*BUILT_IN} and {*BUILT_IN} == {*GROUPS["person"]}
    assert {*GROUPS} <= {*parts.GROUPS}  # so that no template can take the name of a group


def test_own_template_goes_before_the_built_in_one(photo):
    assert {o.image for o in load(["eyes"], Colours())[0].origins} == {"built in: astronaut"}
    add("eyes", photo, [(30, 20)], Colours())
    assert {o.image for o in load(["eyes"], Colours())[0].origins} == {"pixels"}
    assert ("eyes", "own", "colours", 1, "pixels") in templates.table()


def test_built_in_templates_are_clicks_in_their_pictures():
    for name, clicks in BUILT_IN.items():
        template = templates.built_in(name, Colours())
        assert {*clicks} <= {*pictures.PICTURES}
        assert len(template.vectors) == len(template.origins) == sum(map(len, clicks.values())) > 0
        for origin in template.origins:
            assert 0 <= origin.point[0] < origin.size[0] and 0 <= origin.point[1] < origin.size[1]


def test_figures_are_those_of_the_synthetic_world():
    from veil.data.synthetic.generator import VideoGenerator

    rendered = VideoGenerator(0, 448).render([1, 2, 5, 3], length=1)[0][:, 0].numpy()
    corners = ((118, 170), (20, 150), (150, 130), (118, 200))
    tiles = [f[y : y + 220, x : x + 220] for f, (x, y) in zip(rendered, corners, strict=True)]
    shipped = pictures.built_in("people").astype(int)
    assert np.abs(shipped - np.concatenate(tiles, 1)).mean() < 1


def test_template_of_several_pictures(photo, home):
    colours, other = Colours(), photo[:, ::-1].copy()
    with refuses("template-unknown"):
        add("squares", photo, [(30, 20)], colours, extend=True)
    add("squares", photo, [(30, 20)], colours)
    both = add("squares", other, [(28, 56)], colours, extend=True)  # the green one, mirrored
    (found,) = load(["squares"], colours)
    assert (found.vectors == both.vectors).all() and found.origins == both.origins
    assert [o.point for o in found.origins] == [(30, 20), (28, 56)]
    assert found.origins[0].checksum != found.origins[1].checksum
    map_ = saliency(colours(photo), [found])
    assert map_[2:4, 3:6].min() > 0.99 and map_[6:8, 10:13].min() > 0.99 and (map_ > 0.9).sum() == 12
    before = (home / "squares.safetensors").read_bytes()
    with refuses("template-unknown"):
        add("sqaures", photo, [(30, 20)], colours, extend=True)
    with refuses("options-conflict"):
        add("squares", photo, [(30, 20)], colours, extend=True, overwrite=True)
    with refuses("click-outside"):
        add("squares", photo, [(500, 5)], colours, extend=True)
    changed = Colours()
    changed.fingerprint = "f" * 16
    with refuses("template-of-other-weights"):
        add("squares", photo, [(30, 20)], changed, extend=True)
    changed.name = "shapes"
    with refuses("template-of-another-descriptor"):
        add("squares", photo, [(30, 20)], changed, extend=True)
    assert (home / "squares.safetensors").read_bytes() == before


def test_templates_of_other_descriptors_are_refused(photo):
    add("thing", photo, [(30, 20)], Colours())
    other = Colours()
    other.name = "shapes"
    with refuses("template-of-another-descriptor"):
        load(["thing"], other)
    other = Colours()
    other.fingerprint = "f" * 16
    with refuses("template-of-other-weights"):
        load(["thing"], other)


def test_damaged_files_are_refused(photo, home):
    add("thing", photo, [(30, 20)], Colours())
    place = home / "thing.safetensors"
    whole = place.read_bytes()
    for broken in (b"", whole[:20], whole[:-3], b"\x80\x04K\x01."):  # the last is a pickle
        place.write_bytes(broken)
        with refuses("template-damaged"):
            load(["thing"], Colours())
    for vectors in (np.ones((1, 3), np.float32), np.full((1, 3), np.nan, np.float32), np.ones(3)):
        save_file({"vectors": vectors}, place, {"template": "{}"})
        with refuses("template-damaged"):
            load(["thing"], Colours())
    assert ("thing", "own", "none", 0, "damaged: run `veil template remove thing`") in templates.table()
    templates.remove("thing")
    assert not [*home.iterdir()]


def test_picture_shows_the_heat_and_the_clicks(photo):
    colours = Colours()
    template = add("red", photo, [(36, 24)], colours)
    shown = draw_template(photo, template, colours)
    assert shown.size == (120, 80) and shown.mode == "RGB"
    pixels = np.asarray(shown).astype(int)
    assert pixels[20, 28].sum() > pixels[70, 10].sum() + 100  # bright where it is
    assert (pixels == 255).all(-1).any()  # a circle where the click was
    elsewhere = photo.copy()
    elsewhere[0, 0] = 0
    assert not (np.asarray(draw_template(elsewhere, template, colours)) == 255).all(-1).any()
    template = dataclasses.replace(template, descriptor="shapes")
    with refuses("template-of-another-descriptor"):
        draw_template(photo, template, colours)


def test_picture_is_upright_as_it_is_shown(photo, tmp_path):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    PIL.Image.fromarray(photo).save(tmp_path / "turned.png", exif=exif)
    assert (pictures.read(tmp_path / "turned.png") == np.rot90(photo, -1)).all()
    PIL.Image.fromarray(photo[..., 0]).save(tmp_path / "grey.png")
    assert pictures.read(str(tmp_path / "grey.png")).shape == (80, 120, 3)


def test_lite0_templates_of_the_astronaut():
    image = pictures.built_in("astronaut")
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


@needs_shared
@pytest.mark.parametrize(
    ("file", "box"), [("obama.jpg", (390, 75, 610, 420)), ("biden.jpg", (400, 73, 730, 625))]
)
def test_built_in_face_is_found_in_other_people(file, box):
    image = pictures.read(SHARED / "faces" / file)
    height, width = image.shape[:2]
    found = dense.descriptor()
    over = dense.spread(saliency(found(image), load(["face"]), "max"), found, height, width)
    y, x = np.unravel_index(over.argmax(), over.shape)
    assert box[0] <= x < box[2] and box[1] <= y < box[3]


# The command line


def veil(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run `veil template …`; the exit code, and its output."""
    with pytest.raises(SystemExit) as done:
        main(["template", *map(str, arguments)])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return int(done.value.code or 0), printed.out, printed.err


@pytest.fixture
def file(photo, tmp_path) -> Path:
    PIL.Image.fromarray(photo).save(tmp_path / "squares[1].png")
    return tmp_path / "squares[1].png"


def test_commands_from_adding_to_removing(file, tmp_path, capsys, home):
    assert veil(capsys, "add", "square", file, "--at", "30,20", "--at", "44.5,28") == (
        0,
        "square: 2 clicks in 1 picture, compared by lite0.\n",
        "",
    )
    PIL.Image.fromarray(np.asarray(PIL.Image.open(file))[::-1]).save(tmp_path / "over.png")
    code, printed, _ = veil(capsys, "add", "square", tmp_path / "over.png", "--at", "90,20", "--extend")
    assert code == 0 and printed == "square: 3 clicks in 2 pictures, compared by lite0.\n"
    code, printed, _ = veil(capsys, "list")
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line}
    assert code == 0 and rows["square"] == ["own", "lite0", "3", "over.png,", "squares[1].png"]
    assert rows["lips"] == ["built", "in", "any", "2", "astronaut"]
    assert rows["body"] == ["arm,", "hand,", "leg,", "torso"]
    assert "hair, face, skin, clothes, body, person" in printed
    sheet = tmp_path / "shown.png"
    for arguments in (("square",), ("square", file, tmp_path / "over.png"), ("hand",), ("face", file)):
        assert veil(capsys, "show", *arguments, "-o", sheet) == (0, f"{sheet}\n", "")
        assert PIL.Image.open(sheet).size[0] > 100
        sheet.unlink()
    assert veil(capsys, "remove", "square") == (0, "square is removed.\n", "")
    assert not [*home.iterdir()]


def test_commands_refuse_in_one_line_that_names_the_value(file, tmp_path, capsys, home):
    grey, text = tmp_path / "grey.png", tmp_path / "text.png"
    PIL.Image.new("RGB", (40, 40), "grey").save(grey)
    text.write_text("no picture")
    home.mkdir(parents=True)
    (home / "broken.safetensors").write_bytes(b"?")
    rows = [
        (("add", "a", file, "--at", "30"), "30"),
        (("add", "a", file, "--at", "x,y"), "x,y"),
        (("add", "a", file, "--at", "-1,5"), "-1,5"),
        (("add", "a", file), "--at"),
        (("add", "a", grey, "--at", "3,3"), "colour"),
        (("add", "a", text, "--at", "3,3"), "text.png"),
        (("add", "a", tmp_path, "--at", "3,3"), tmp_path.name),
        (("add", "hair", file, "--at", "3,3"), "'hair'"),
        (("add", "A", file, "--at", "3,3"), "'A'"),
        (("add", "a", file, "--at", "3,3", "--extend"), "'a'"),
        (("add", "a", file, "--at", "3,3", "--descriptor", "lite1"), "lite0"),
        (("add", "broken", file, "--at", "3,3", "--extend"), "run `veil template remove broken`"),
        (("show", "hnad", "-o", tmp_path / "a.png"), "hand?"),
        (("show", "broken", "-o", tmp_path / "a.png"), "broken.safetensors"),
        (("show", "hand", text, "-o", tmp_path / "a.png"), "text.png"),
        (("show", "hand", "-o", tmp_path / "a.txt"), ".jpg"),
        (("remove", "hand"), "'hand'"),
    ]
    for arguments, value in rows:
        code, _, printed = veil(capsys, *arguments)
        assert code == 2 and value in printed and len(printed.splitlines()) == 1, (arguments, printed)
    assert [path.name for path in home.iterdir()] == ["broken.safetensors"]
    assert not (tmp_path / "a.png").exists() and "damaged" in veil(capsys, "list")[1]


def test_a_picture_of_16_bits_is_read_whole(photo, tmp_path):
    grey = photo.mean(-1).astype(np.uint8)
    PIL.Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    assert np.array_equal(pictures.read(tmp_path / "deep.png"), np.stack([grey] * 3, -1))


def test_show_does_not_replace_a_picture_unasked(file, capsys):
    before = file.read_bytes()
    code, _, printed = veil(capsys, "show", "eyes", file, "-o", file)
    assert code == 2 and "exists already" in printed and file.read_bytes() == before
