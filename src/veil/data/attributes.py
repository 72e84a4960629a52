"""Private attributes: what a picture or a video shows of its people, as zeros and ones.

Each reader takes the folder of the pictures or videos, looks at names and label files only, and states in
its docstring how the files must lie; ``labels`` is the folder (or file) of the labels where they lie elsewhere.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from veil.core import VeilError
from veil.data.frames import read_frames
from veil.data.labels import read_json, read_pickle, read_table
from veil.data.listing import dataset_folder, find, locate, media_files, select_present, video_id
from veil.data.sample import Dataset, Sample, Split
from veil.data.splits import deal, hold_out
from veil.data.web_actions import film, hmdb51, timed_name, ucf101, with_times
from veil.media.inputs import is_image, walk

# fmt: off
VISPR1 = (
    "a17_color", "a4_gender", "a9_face_complete", "a10_face_partial", "a12_semi_nudity", "a64_rel_personal",
    "a65_rel_social",
)
VISPR2 = (
    "a6_hair_color", "a16_race", "a59_sports", "a1_age_approx", "a2_weight_approx", "a73_landmark",
    "a11_tattoo",
)
# fmt: on


def vispr(
    root: Path, *, labels: Path | None = None, subset: Literal["vispr1", "vispr2", "all"] = "vispr1"
) -> Dataset:
    """VISPR: 22,167 stills with 68 attributes, of which the papers use two sevens.

    ::

        root/train2017/2017_10001018.jpg      also val2017 and test2017, also below images/
        root/annotations/train2017/2017_10001018.json      {"labels": ["a4_gender", ...], ...}
        root/attributes.tsv      only for subset="all"

    or, in place of the json files, the label pickles of TeD-SPAD, which know VISPR1 only, and no validation
    split, so that a tenth of the training pictures is held out::

        root/train_labels.pkl, test_labels.pkl      {"2017_10001018": array of 7}
    """
    root = dataset_folder(root, "VISPR")
    base = Path(labels or root)
    pictures = {Path(name).stem: path for name, path in _stills(root).items()}
    chosen = {"vispr1": VISPR1, "vispr2": VISPR2}.get(subset) or _vispr_all(base)
    notes: list[str] = []
    marks: dict[str, tuple[Split, tuple[float, ...]]] = {}
    for split in ("train", "val", "test"):
        for file in find(base, f"{split}2017/*.json"):
            marks[file.stem] = split, _vispr_marks(file, chosen)
    if not marks:
        marks, notes = _vispr_pickles(base, subset)
    have, missing = select_present(marks, pictures, root, "VISPR pictures")
    samples = [Sample(name, marks[name][0], path, attributes=marks[name][1]) for name, path in have.items()]
    return Dataset("vispr", samples, read_frames, attributes=chosen, notes=(*notes, *missing))


def _vispr_all(base: Path) -> tuple[str, ...]:
    path = locate(
        base, "attributes.tsv", hint="get it from the VISPR page, or name its folder with the option labels"
    )
    rows = read_table(path, "idx", "attribute_id", delimiter="\t")
    return tuple(row["attribute_id"].strip() for row in rows if row["idx"].strip())


def _vispr_marks(file: Path, chosen: Sequence[str]) -> tuple[float, ...]:
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("labels"), list):
        raise VeilError(
            f'{file} has no "labels": download the annotations of VISPR again.', code="labels-invalid"
        )
    return tuple(float(name in content["labels"]) for name in chosen)


def _vispr_pickles(base: Path, subset: str) -> tuple[dict[str, tuple[Split, tuple[float, ...]]], list[str]]:
    hint = "unpack the annotations of VISPR there, or name their folder with the option labels"
    files = {split: locate(base, f"{split}_labels.pkl", hint=hint) for split in ("train", "test")}
    if subset != "vispr1":
        raise VeilError(
            f"{files['train']} has labels of VISPR1 only: for {subset} {hint}.", code="labels-invalid"
        )
    marks: dict[str, tuple[Split, tuple[float, ...]]] = {}
    for split, file in files.items():
        for name, vector in _vectors(file, len(VISPR1)).items():
            kind: Split = "test" if split == "test" else deal(name, (9, 1, 0))
            marks[name] = kind, vector
    return marks, ["the label pickles have no labels of val2017: a tenth of train2017 validates"]


def _vectors(file: Path, width: int) -> dict[str, tuple[float, ...]]:
    """A pickle of ``{name: array of zeros and ones}``."""
    content = read_pickle(file)
    if not isinstance(content, dict):
        raise VeilError(
            f"{file} holds a {type(content).__name__} instead of labels by name: download it again.",
            code="labels-invalid",
        )
    found: dict[str, tuple[float, ...]] = {}
    for name, value in content.items():
        vector = np.asarray(value, np.float64).reshape(-1)
        if vector.shape != (width,) or not np.isin(vector, (0, 1)).all():
            raise VeilError(
                f"{file} has {vector.tolist()} for {name} instead of {width} zeros and ones: download it again.",
                code="labels-invalid",
            )
        found[str(name)] = tuple(vector.tolist())
    return found


class _Runs(NamedTuple):
    """One video of PA-HMDB51: for every attribute its value in each frame, -1 where it is unknown."""

    values: dict[str, np.ndarray]
    either: dict[str, np.ndarray]  # the second value, where two people differ


PA_ATTRIBUTES = ("skin_color", "face", "gender", "nudity", "relationship")


def pa_hmdb51(
    root: Path,
    *,
    labels: Path | None = None,
    outputs: Literal["vispr", "native"] = "vispr",
    nudity: Literal["any", "semi"] = "any",
) -> Dataset:
    """PA-HMDB51: 515 videos of HMDB51 whose attributes are known frame by frame; they test, the others train.

    ::

        root/brush_hair/April_09_brush_hair_u_nm_np1_ba_goo_0.avi      all of HMDB51
        root/PrivacyAttributes/brush_hair.json      {"April_09_...avi": {"face": [[0, 29, 1], ...], ...}, ...}

    A sample is a run of frames with the same attributes. ``vispr`` gives the six outputs that a VISPR1
    attacker shares with it (all but a65), where ``nudity="semi"`` counts value 2 only; ``native`` gives the
    five of the dataset, present where not 0. The training videos have an action and no attributes.
    """
    root = dataset_folder(root, "HMDB51")
    base = Path(labels or root)
    content = {path.stem: read_json(path) for path in find(base, "PrivacyAttributes/*.json", "*.json")}
    runs = {
        Path(file).stem: (action, _pa_runs(file, marks))
        for action, videos in content.items()
        if isinstance(videos, dict)
        for file, marks in videos.items()
        if isinstance(marks, dict) and set(PA_ATTRIBUTES) <= set(marks)
    }
    if not runs:
        raise VeilError(
            f"{base} has no PA-HMDB51 labels like clap.json: name their folder with the option labels.",
            code="label-file-missing",
        )
    found = media_files(root)
    have, notes = select_present(runs, found, root, "PA-HMDB51 videos")
    actions = tuple(sorted({action for action, _ in runs.values()}))
    index = {action: place for place, action in enumerate(actions)}
    samples: list[Sample] = []
    dropped = 0
    for name, path in have.items():
        action, marks = runs[name]
        vectors = _pa_vectors(marks, outputs, nudity)
        known = np.all([value >= 0 for value in marks.values.values()], axis=0)
        dropped += int(np.any([value >= 0 for value in marks.values.values()], axis=0).sum() - known.sum())
        for start, end in _stretches(vectors, known):
            sample_id = f"{video_id(name)}#{start}-{end - 1}"
            attributes = tuple(vectors[start].tolist())
            samples.append(Sample(sample_id, "test", path, (start, end), index[action], attributes))
    if dropped:
        notes.append(f"{dropped:,} frames lack one of the five attributes and are left out")
    rest = {name: path for name, path in found.items() if name not in runs and path.parent.name in index}
    groups = {name: (path.parent.name, film(name, path.parent.name)) for name, path in rest.items()}
    held = hold_out(groups.values())
    for name, path in rest.items():
        split: Split = "val" if groups[name] in held else "train"
        samples.append(Sample(video_id(name), split, path, action=index[path.parent.name]))
    if not rest:
        notes.append("there are no other videos of HMDB51, and so nothing to train on")
    names = VISPR1[:6] if outputs == "vispr" else PA_ATTRIBUTES
    return Dataset("pa-hmdb51", samples, read_frames, actions, names, notes=tuple(notes))


def _pa_runs(file: str, marks: Mapping[str, Any]) -> _Runs:
    try:
        length = 1 + max(int(run[1]) for name in PA_ATTRIBUTES for run in marks[name])
        runs = _Runs(*({name: np.full(length, -1) for name in PA_ATTRIBUTES} for _ in range(2)))
        for name in PA_ATTRIBUTES:
            for first, last, value in marks[name]:
                several = value if isinstance(value, list) else [value]
                runs.values[name][int(first) : int(last) + 1] = int(several[0])
                runs.either[name][int(first) : int(last) + 1] = int(several[-1])
    except (TypeError, ValueError, IndexError) as error:
        raise VeilError(
            f"PA-HMDB51 has labels of {file} that are not [first, last, value]: download them again.",
            code="labels-invalid",
        ) from error
    return runs


def _pa_vectors(runs: _Runs, outputs: str, nudity: str) -> np.ndarray:
    """The attributes of every frame ``(T, 5 or 6)``."""

    def has(name: str, value: int | None = None) -> np.ndarray:
        both = (runs.values[name], runs.either[name])
        return np.any([found > 0 if value is None else found == value for found in both], axis=0)

    if outputs == "native":
        columns = [has(name) for name in PA_ATTRIBUTES]
    else:
        columns = [
            has("skin_color"),
            has("gender"),
            has("face", 2),
            has("face", 1),
            has("nudity", 2 if nudity == "semi" else None),
            has("relationship"),
        ]
    return np.stack(columns, axis=1).astype(np.float64)


def _stretches(vectors: np.ndarray, known: np.ndarray) -> Iterator[tuple[int, int]]:
    """Where the attributes stay the same, and are known."""
    start = 0
    for end in range(1, len(vectors) + 1):
        if end == len(vectors) or known[end] != known[start] or (vectors[end] != vectors[start]).any():
            if known[start]:
                yield start, end
            start = end


# Paper (penalty): face, then skin colour. Here: the other way round, because so are the label files, as their
# agreement with PA-HMDB51 on the 515 shared videos shows.
VP_ATTRIBUTES = ("skin_color", "face", "gender", "nudity", "relationship")


def vp_ucf101(
    root: Path, *, labels: Path | None = None, splits: Path | None = None, split: int = 1
) -> Dataset:
    """VP-UCF101: UCF101 with five attributes a video; splits are UCF101's.

    ::

        root/      as for ucf101
        labels/ucf101_privacy_attribute_label.pickle      {"Archery/v_Archery_g01_c01.mp4": [[1, 0, 1, 0, 0]]}

    ``splits`` is the folder of UCF101's lists, where it is neither in root nor in labels.
    """

    def videos(base: Path) -> Dataset:
        return ucf101(root, labels=base, split=split)

    return _vp("vp-ucf101", root, labels, splits, "ucf101_privacy_attribute_label.pickle", videos)


def vp_hmdb51(
    root: Path,
    *,
    labels: Path | None = None,
    splits: Path | None = None,
    split: int = 1,
    unused: bool = False,
) -> Dataset:
    """VP-HMDB51: HMDB51 with five attributes a video; splits are HMDB51's.

    ::

        root/      as for hmdb51
        labels/hmdb51_privacy_attribute_label.pickle      {"clap/Obama_clap_..._0.mp4": [[1, 1, 1, 0, 0]]}

    ``splits`` is the folder of HMDB51's lists, where it is neither in root nor in labels. ``unused`` puts the
    1,666 videos of neither set into training.
    """

    def videos(base: Path) -> Dataset:
        return hmdb51(root, labels=base, split=split, unused=unused)

    return _vp("vp-hmdb51", root, labels, splits, "hmdb51_privacy_attribute_label.pickle", videos)


def _vp(
    name: str,
    root: Path,
    labels: Path | None,
    splits: Path | None,
    file: str,
    videos: Callable[[Path], Dataset],
) -> Dataset:
    root = dataset_folder(root, name)
    base = Path(labels or root)
    hint = "get it from STPrivacy's page, or name its folder with the option labels"
    marks = _vectors(locate(base, file, hint=hint), len(VP_ATTRIBUTES))
    marks = {video_id(Path(video).stem): vector for video, vector in marks.items()}
    beside = base if find(base, "trainlist*.txt", "*_test_split*.txt") else root
    dataset = videos(Path(splits or beside))
    known = [sample for sample in dataset.samples if sample.id in marks]
    notes = list(dataset.notes)
    if len(known) < len(dataset.samples):
        bare = len(dataset.samples) - len(known)
        notes.append(f"{bare:,} videos have no attributes in {file} and are left out")
    samples = [dataclasses.replace(sample, attributes=marks[sample.id]) for sample in known]
    return Dataset(name, samples, read_frames, dataset.actions, VP_ATTRIBUTES, notes=tuple(notes))


class _FromTags:
    """Makes a sample's thousands of attributes from its few tags when they are read."""

    def __get__(self, sample: _Tagged | None, owner: type | None = None) -> tuple[float, ...]:
        if sample is None:
            return ()
        marks = [0.0] * sample.width
        for tag in sample.tags:
            marks[tag] = 1.0
        return tuple(marks)


@dataclasses.dataclass(frozen=True)
class _Tagged(Sample):
    """A sample of P-HVU: 260,000 of them with 2,665 attributes each would fill 5 GB."""

    tags: tuple[int, ...] = ()
    width: int = 0
    attributes = _FromTags()  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        self.__dict__.pop("attributes")


HVUCategory = Literal["action", "object", "scene"]


def p_hvu(
    root: Path,
    *,
    labels: Path | None = None,
    categories: Sequence[HVUCategory] = ("action", "object", "scene"),
) -> Dataset:
    """P-HVU, selected from HVU in SPAct's two steps: many actions, objects and scenes a video.

    ::

        root/.../0347ZoDXyP0_000095_000105.mp4
        root/HVU_Train_V1.0.csv, HVU_Val_V1.0.csv      Tags (with | between),youtube_id,time_start,time_end
        root/HVU_Tags_Categories_V1.0.csv              Tag,Category

    1. The test set is every validation video of HVU that has an object and a scene.
    2. The training set is every training video that has an action, an object and a scene of the test set's.

    All tags are attributes, named ``action:abseiling``, ``object:rope`` or ``scene:cliff``; ``categories``
    chooses. A twentieth of the training videos validates.
    """
    root = dataset_folder(root, "HVU")
    base = Path(labels or root)
    hint = "get the csv files of HVU, or name their folder with the option labels"
    table = read_table(locate(base, "HVU_Tags_Categories_V*.csv", hint=hint), "Tag", "Category")
    category = {row["Tag"].strip(): row["Category"].strip().lower() for row in table}
    validation = _hvu(locate(base, "HVU_Val_V*.csv", hint=hint), category)
    tested = {name: tags for name, tags in validation if _has(tags, "object", "scene")}
    kept = set().union(*tested.values())
    training = _hvu(locate(base, "HVU_Train_V*.csv", hint=hint), category)
    learnt = {name: tags & kept for name, tags in training if _has(tags & kept, "action", "object", "scene")}
    listed = tested | learnt
    have, notes = select_present(listed, with_times(listed, media_files(root)), root, "P-HVU videos")
    vocabulary = tuple(sorted(tag for tag in kept if tag.partition(":")[0] in categories))
    index = {tag: place for place, tag in enumerate(vocabulary)}
    held = hold_out((("", name[:11]) for name in learnt), 0.05)
    samples: list[Sample] = []
    for name, path in have.items():
        split: Split = "test" if name in tested else "val" if ("", name[:11]) in held else "train"
        tags = tuple(sorted(index[tag] for tag in listed[name] if tag in index))
        samples.append(_Tagged(name, split, path, tags=tags, width=len(vocabulary)))
    return Dataset("p-hvu", samples, read_frames, attributes=vocabulary, notes=tuple(notes))


def _hvu(path: Path, category: Mapping[str, str]) -> Iterator[tuple[str, set[str]]]:
    """Each video's name, and its tags of the three kinds, as ``scene:cliff``."""
    for row in read_table(path, "Tags", "youtube_id", "time_start", "time_end"):
        tags = {tag: category.get(tag, "") for tag in row["Tags"].split("|")}
        wanted = {f"{kind}:{tag}" for tag, kind in tags.items() if kind in ("action", "object", "scene")}
        yield timed_name(row), wanted


def _has(tags: Iterable[str], *kinds: str) -> bool:
    return {*kinds} <= {tag.partition(":")[0] for tag in tags}


UTK_RACES = ("white", "black", "asian", "indian", "other")
UTK_AGES = {"under 18": (0, 17), "18 to 39": (18, 39), "40 to 64": (40, 64), "65 and over": (65, 200)}


def utkface(root: Path, *, labels: Path | None = None) -> Dataset:
    """UTKFace: faces with age, gender and race.

    ::

        root/UTKFace/26_1_2_20170116184024662.jpg.chip.jpg      age_gender_race_time, as published
        root/labels.csv, root/faces.zip      or file,age,gender,race and the pictures in a zip file or folder

    Gender is 0 male, 1 female, as published. Nobody's faces are linked, so pictures are dealt to the splits
    one by one: of ten, seven train, one validates, two test.
    """
    root = dataset_folder(root, "UTKFace")
    rows: dict[str, tuple[int, int, int]] = {}
    notes: list[str] = []
    tables = find(Path(labels or root), "labels.csv")
    if tables:
        for row in read_table(tables[0], "file", "age", "gender", "race"):
            rows[row["file"]] = int(row["age"]), int(row["gender"]), int(row["race"])
        archives = find(root, "*.zip")
        found = {name: archives[0] / name for name in rows if archives} | _stills(root)
    else:
        found = _stills(root)
        codes = {name: re.match(r"(\d+)_([01])_([0-4])_", name) for name in found}
        rows = {name: (int(code[1]), int(code[2]), int(code[3])) for name, code in codes.items() if code}
        odd = [name for name, code in codes.items() if not code]
        if odd:
            notes.append(
                f"{len(odd):,} images are not named age_gender_race_time and are left out, such as {odd[0]}"
            )
    have, missing = select_present(rows, found, root, "faces")
    samples: list[Sample] = []
    for name, path in have.items():
        age, gender, race = rows[name]
        years = next(label for label, (low, high) in UTK_AGES.items() if low <= age <= high)
        marks = (gender == 1, *(race == place for place in range(5)), *(label == years for label in UTK_AGES))
        groups = {"gender": "female" if gender else "male", "race": UTK_RACES[race], "age": years}
        samples.append(Sample(name, deal(name), path, attributes=tuple(map(float, marks)), groups=groups))
    attributes = ("female", *UTK_RACES, *UTK_AGES)
    return Dataset("utkface", samples, read_frames, attributes=attributes, notes=(*notes, *missing))


def _stills(root: Path) -> dict[str, Path]:
    return {name: here / name for here, names in walk(root) for name in names if is_image(name)}
