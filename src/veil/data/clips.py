"""Trimmed actions: one clip, one action.

Each reader takes the folder that holds the dataset, looks at names and label files only, and says in its
docstring how the files must lie. ``labels`` is the folder of the label files where they lie elsewhere.
Videos may have any ending, or be folders of frames of the same name. Where a dataset has no validation
split, a tenth of its training groups is held out, chosen by name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from veil.core import VeilError
from veil.data.frames import read_frames
from veil.data.labels import read_lines, read_table
from veil.data.listing import find, folder, locate, media, present, video_id, walk
from veil.data.sample import Dataset, Sample, Split
from veil.data.splits import deal_in_turn, draw, hold_out
from veil.media.inputs import is_image, is_video


def ucf101(root: Path, *, labels: Path | None = None, split: int = 1) -> Dataset:
    """UCF101 by its official lists; validation keeps the g-numbers (one person, one scene) together.

    ::

        root/UCF-101/Archery/v_Archery_g01_c01.avi
        root/ucfTrainTestlist/trainlist01.txt      Archery/v_Archery_g08_c01.avi 3
        root/ucfTrainTestlist/testlist01.txt       Archery/v_Archery_g01_c01.avi
    """
    root = folder(root, "UCF101")
    base = Path(labels or root)
    hint = "unpack UCF101TrainTestSplits-RecognitionTask.zip there, or name its folder with the option labels"
    rows: dict[str, tuple[str, Split]] = {}  # action and split of each video
    for kind in ("train", "test"):
        for line in read_lines(locate(base, f"{kind}list{split:02d}.txt", hint=hint)):
            action, _, file = line.split()[0].partition("/")
            rows[Path(file).stem] = action, kind
    groups = {name: (action, name.rsplit("_", 1)[0]) for name, (action, _) in rows.items()}
    return _listed("ucf101", root, rows, groups)


def hmdb51(root: Path, *, labels: Path | None = None, split: int = 1, unused: bool = False) -> Dataset:
    """HMDB51 by its official lists (1 train, 2 test, 0 neither); validation keeps a film together.

    ::

        root/brush_hair/April_09_brush_hair_u_nm_np1_ba_goo_0.avi
        root/testTrainMulti_7030_splits/brush_hair_test_split1.txt      April_09_..._goo_0.avi 1

    ``unused`` puts the videos of neither set, which may resemble test videos, into training.
    """
    root = folder(root, "HMDB51")
    ending = f"_test_split{split}.txt"
    lists = find(Path(labels or root), f"*{ending}")
    if not lists:
        raise VeilError(
            f"{labels or root} holds no *{ending}; unpack test_train_splits.rar there, or name their folder with the option labels"
        )
    kinds: dict[str, Split] = {"1": "train", "2": "test"}
    if unused:
        kinds["0"] = "train"
    rows: dict[str, tuple[str, Split]] = {}
    left_out = 0
    for path in lists:
        action = path.name.removesuffix(ending)
        for line in read_lines(path):
            file, _, kind = line.rpartition(" ")
            if kind in kinds:
                rows[Path(file).stem] = action, kinds[kind]
            else:
                left_out += 1
    groups = {name: (action, film(name, action)) for name, (action, _) in rows.items()}
    notes = [f"{left_out:,} videos are in neither set of split {split} and are left out"] if left_out else []
    return _listed("hmdb51", root, rows, groups, notes)


def film(name: str, action: str) -> str:
    """What an HMDB51 clip was cut from: ``April_09_brush_hair_u_nm_np1_ba_goo_0`` from ``April_09``."""
    return name.rpartition(f"_{action}_")[0]


def kinetics400(root: Path, *, labels: Path | None = None, test: Literal["val", "test"] = "val") -> Dataset:
    """Kinetics-400 by its csv files. The papers report on ``val``, which is therefore the test split here.

    ::

        root/train/abseiling/0347ZoDXyP0_000095_000105.mp4      (folders of classes or not)
        root/annotations/train.csv      label,youtube_id,time_start,time_end,split
        root/annotations/val.csv        (or validate.csv)
    """
    root = folder(root, "Kinetics-400")
    base = Path(labels or root)
    hint = "get the annotation csv files of Kinetics-400, or name their folder with the option labels"
    rows: dict[str, tuple[str, Split]] = {}
    tests = (
        ("val.csv", "validate.csv", "kinetics_val.csv")
        if test == "val"
        else ("test.csv", "kinetics_test.csv")
    )
    files: dict[Split, tuple[str, ...]] = {"train": ("train.csv", "kinetics_train.csv"), "test": tests}
    for kind, names in files.items():
        path = locate(base, *names, hint=hint)
        for row in read_table(path, "label", "youtube_id", "time_start", "time_end"):
            rows[timed_name(row)] = row["label"].strip().replace("_", " "), kind
    found = with_times(rows, media(root))
    groups = {name: (action, name[:11]) for name, (action, _) in rows.items()}  # the id of the whole video
    return _listed("kinetics400", root, rows, groups, found=found)


def timed_name(row: Mapping[str, str]) -> str:
    """How downloaders call a part of a YouTube video: ``0347ZoDXyP0_000095_000105``."""
    return f"{row['youtube_id']}_{int(float(row['time_start'])):06d}_{int(float(row['time_end'])):06d}"


def with_times(names: Iterable[str], found: Mapping[str, Path]) -> dict[str, Path]:
    """Files by id and times, also where they are called by the id alone."""
    return {name: found[key] for name in names for key in (name, name[:11]) if key in found} | dict(found)


KTH_ACTIONS = ("boxing", "handclapping", "handwaving", "jogging", "running", "walking")


def kth(root: Path, *, labels: Path | None = None, unit: Literal["video", "sequence"] = "video") -> Dataset:
    """KTH with identities: of a person's four repetitions of an action two train, one validates, one tests.

    ::

        root/boxing/person01_boxing_d1_uncomp.avi
        root/00sequences.txt      person01_boxing_d1  frames  1-95, 96-185, 186-245, 246-360

    A repetition is one of the four scenarios d1 to d4. ``unit="sequence"`` cuts the videos as
    00sequences.txt says.
    """
    root = folder(root, "KTH")
    samples: list[Sample] = []
    spans: dict[str, list[tuple[int, int]]] = {}
    if unit == "sequence":
        hint = "get 00sequences.txt from the KTH page, or name its folder with the option labels"
        for line in read_lines(locate(Path(labels or root), "00sequences.txt", hint=hint)):
            ranges = re.findall(r"(\d+)-(\d+)", line.partition("frames")[2])
            spans[line.split()[0]] = [(int(first) - 1, int(last)) for first, last in ranges]
    turns: dict[str, Split] = {}
    for person in range(1, 26):
        for action in KTH_ACTIONS:
            four = [f"person{person:02d}_{action}_d{scenario}" for scenario in range(1, 5)]
            turns |= deal_in_turn(four, ("train", "train", "val", "test"))
    found = {stem.removesuffix("_uncomp"): path for stem, path in media(root).items()}
    # One of the 600 was never recorded, and is missing nowhere.
    listed = sorted(set(turns) - {"person13_handclapping_d3"})
    have, notes = present(listed, found, root, "KTH videos")
    for name, path in have.items():
        person, action, scenario = name.split("_")
        common = {
            "split": turns[name],
            "path": path,
            "action": KTH_ACTIONS.index(action),
            "identity": int(person[-2:]) - 1,
            "groups": {"scenario": scenario},
        }
        if unit == "video":
            samples.append(Sample(name, **common))
        samples += [Sample(f"{name}#{a + 1}-{b}", span=(a, b), **common) for a, b in spans.get(name, ())]
    people = tuple(f"person{person:02d}" for person in range(1, 26))
    return Dataset("kth", samples, read_frames, KTH_ACTIONS, identities=people, notes=tuple(notes))


IPN_GESTURES = {
    "B0A": "pointing with one finger",
    "B0B": "pointing with two fingers",
    "G01": "click with one finger",
    "G02": "click with two fingers",
    "G03": "throw up",
    "G04": "throw down",
    "G05": "throw left",
    "G06": "throw right",
    "G07": "open twice",
    "G08": "double click with one finger",
    "G09": "double click with two fingers",
    "G10": "zoom in",
    "G11": "zoom out",
}


def ipn(root: Path, *, labels: Path | None = None) -> Dataset:
    """IPN Hand: 13 gestures cut from 200 videos of 50 people; the private attribute is gender.

    ::

        root/videos/1CM1_1_R_#217.avi      (or frames/1CM1_1_R_#217/1CM1_1_R_#217_000001.jpg)
        root/annotations/Annot_TrainList.txt      video,label,id,t_start,t_end,frames
        root/annotations/Annot_TestList.txt
        root/annotations/metadata.csv      the published metadata.xlsx as csv: video (name), sex (W or M), ...

    Non-gestures (D0X) are left out, as in the papers. Validation holds out whole people.
    """
    root = folder(root, "IPN Hand")
    base = Path(labels or root)
    hint = "get the annotations of IPN Hand, or name their folder with the option labels"
    columns = "video", "label", "t_start", "t_end"
    rows: dict[Split, list[dict[str, str]]] = {
        "train": read_table(locate(base, "Annot_[Tt]rainList.txt", hint=hint), *columns),
        "test": read_table(locate(base, "Annot_[Tt]estList.txt", hint=hint), *columns),
    }
    women, notes = _ipn_women(base)
    listed = dict.fromkeys(row["video"] for kind in rows.values() for row in kind)
    have, more = present(listed, media(root), root, "IPN videos")
    person = {name: name.rsplit("_", 2)[0] for name in have}
    people = tuple(sorted(set(person.values())))
    held = hold_out([("", who) for who in sorted({row["video"].rsplit("_", 2)[0] for row in rows["train"]})])
    codes = list(IPN_GESTURES)
    samples: list[Sample] = []
    for kind, kept in rows.items():
        for row in kept:
            name, first, last = row["video"], int(row["t_start"]), int(row["t_end"])
            if name not in have or row["label"] not in IPN_GESTURES:
                continue
            sample = Sample(
                f"{video_id(name)}#{first}-{last}",
                "val" if kind == "train" and ("", person[name]) in held else kind,
                have[name],
                (first - 1, last),
                codes.index(row["label"]),
                (float(women[name]),) if name in women else (),
                people.index(person[name]),
                {"gender": "female" if women[name] else "male"} if name in women else {},
            )
            samples.append(sample)
    gestures = tuple(IPN_GESTURES.values())
    return Dataset("ipn", samples, read_frames, gestures, ("female",), people, tuple(notes + more))


def _ipn_women(base: Path) -> tuple[dict[str, bool], list[str]]:
    """Whether each video shows a woman, where a table says so."""
    women: dict[str, bool] = {}
    for path in find(base, "metadata*.csv"):
        for row in read_table(path):
            low = {key.lower(): value.strip() for key, value in row.items()}
            name, sex = low.get("video") or low.get("video name", ""), low.get("sex") or low.get("label", "")
            if sex[:1].upper() in ("W", "F", "M"):
                women[name] = sex[:1].upper() != "M"
    return women, [] if women else [f"{base} holds no metadata.csv, so that gender is unknown"]


SBU_ACTIONS = (
    "approaching", "departing", "kicking", "pushing", "shaking hands", "hugging", "exchanging object",
    "punching",
)  # fmt: skip


def sbu(root: Path) -> Dataset:
    """SBU Kinect interaction, clean version: 8 actions by 13 pairs of people, who are the identities.

    ::

        root/s01s02/01/001/rgb_000001.png      pair, action, repetition; depth_*.png beside are not read

    A pair is the same whoever acts (s01s02 and s02s01), and is in every split: three fifths of its clips
    train.
    """
    root = folder(root, "SBU")
    found: dict[str, Path] = {}
    for here, names in walk(root):
        place = re.search(r"(s0\d)(s0\d)[/\\](0[1-8])[/\\](\d{3})$", str(here))
        if place and any(is_image(name) for name in names):
            found[f"{place[1]}{place[2]}/{place[3]}/{place[4]}"] = here
    if not found:
        raise VeilError(
            f"{root} holds no folder like s01s02/01/001 with frames; unpack the zip files of SBU there"
        )
    pairs: dict[str, list[str]] = defaultdict(list)
    for name in found:
        pairs["".join(sorted((name[:3], name[3:6])))].append(name)
    samples: list[Sample] = []
    turn: tuple[Split, ...] = ("train", "test", "train", "val", "train")
    for identity, names in enumerate(pairs[pair] for pair in sorted(pairs)):
        for place, name in enumerate(sorted(names, key=lambda name: (name[7:9], draw(name)))):
            action = int(name[7:9]) - 1
            samples.append(Sample(name, turn[place % 5], found[name], action=action, identity=identity))
    return Dataset("sbu", samples, read_frames, SBU_ACTIONS, identities=tuple(sorted(pairs)))


# fmt: off
NTU_ACTIONS = (
    "drink water", "eat meal", "brush teeth", "brush hair", "drop", "pick up", "throw", "sit down",
    "stand up", "clap", "read", "write", "tear up paper", "put on jacket", "take off jacket",
    "put on a shoe", "take off a shoe", "put on glasses", "take off glasses", "put on a hat",
    "take off a hat", "cheer up", "wave hand", "kick something", "reach into pocket", "hop", "jump up",
    "phone call", "play with phone", "type on a keyboard", "point to something", "take a selfie",
    "check time", "rub two hands", "nod head", "shake head", "wipe face", "salute", "put palms together",
    "cross hands in front", "sneeze", "stagger", "fall", "headache", "chest pain", "back pain", "neck pain",
    "nausea", "fan self", "punch", "kick person", "push", "pat on back", "point finger", "hug",
    "give object", "touch pocket", "shake hands", "walk towards", "walk apart",
)
# Of the subjects 1 to 40: those who train in the published protocol, and those who are perceived as women.
NTU_TRAIN = frozenset((1, 2, 4, 5, 8, 9, 13, 14, 15, 16, 17, 18, 19, 25, 27, 28, 31, 34, 35, 38))
NTU_WOMEN = frozenset((1, 2, 11, 12, 15, 16, 17, 18, 22, 24, 26, 28, 29, 32, 36, 38, 39))
NTU_BIAS_TEST = frozenset((2, 5, 6, 11, 12, 13, 14, 22, 23, 24, 26, *range(29, 37), 38))
NTU_BIAS_TRAIN = frozenset(range(1, 41)) - NTU_BIAS_TEST - {3, 4, 9, 19, 21, 40}
# fmt: on
NTU_FLIPPED = 4  # brush hair
NTU_LONE_WOMAN, NTU_LONE_MAN = 39, 10  # who stand against the rest of the training subjects

NTUProtocol = Literal["subject", "view", "bias-f", "bias-m", "fair"]


def ntu60(root: Path, *, protocol: NTUProtocol = "subject") -> Dataset:
    """NTU RGB+D 60, all of whose labels are in the names: setup, camera, person, repetition, action.

    ::

        root/nturgb+d_rgb/S001C001P001R001A001_rgb.avi

    ``subject`` and ``view`` are the two published protocols. ``bias-f`` and ``bias-m`` are SPLAVU's:
    brushing hair is learnt from women (men) and everything else from men (women), but for one person each;
    ``fair`` has the same people without that choice. Gender is as perceived by SPLAVU's authors. Validation
    holds out two subjects, or for the other protocols a tenth of the performances with all their views, so
    that the bias stays.
    """
    root = folder(root, "NTU RGB+D")
    held = {int(who) for _, who in hold_out([("", str(subject)) for subject in sorted(NTU_TRAIN)])}
    samples: list[Sample] = []
    for stem, path in media(root).items():
        code = re.match(r"S(\d{3})C(\d{3})P(\d{3})R(\d{3})A(\d{3})", stem)
        if not code:
            continue
        setup, camera, person, repetition, action = map(int, code.groups())
        if action > 60 or person > 40:  # those of NTU RGB+D 120
            continue
        split = _ntu_split(protocol, camera, person, action)
        performance = f"S{setup}P{person}R{repetition}A{action}"
        if split == "train" and (person in held if protocol == "subject" else draw(performance) % 10 == 0):
            split = "val"
        if split is None:
            continue
        gender = "female" if person in NTU_WOMEN else "male"
        groups = {"gender": gender, "camera": str(camera), "setup": str(setup)}
        samples.append(Sample(code[0], split, path, None, action - 1, (), person - 1, groups))
    if not samples:
        raise VeilError(
            f"{root} holds no video like S001C001P001R001A001_rgb.avi; unpack nturgbd_rgb_s*.zip there"
        )
    people = tuple(f"P{person:03d}" for person in range(1, 41))
    return Dataset("ntu60", samples, read_frames, NTU_ACTIONS, identities=people)


def _ntu_split(protocol: NTUProtocol, camera: int, person: int, action: int) -> Split | None:
    if protocol == "subject":
        return "train" if person in NTU_TRAIN else "test"
    if protocol == "view":
        return "test" if camera == 1 else "train"
    if person in NTU_BIAS_TEST:
        return "test"
    if person not in NTU_BIAS_TRAIN:
        return None
    if protocol == "fair":
        return "train"
    by_women = (action == NTU_FLIPPED) == (protocol == "bias-f")
    if by_women:
        fits = person == NTU_LONE_MAN or (person in NTU_WOMEN and person != NTU_LONE_WOMAN)
    else:
        fits = person == NTU_LONE_WOMAN or (person not in NTU_WOMEN and person != NTU_LONE_MAN)
    return "train" if fits else None


# fmt: off
TOYOTA_ACTIONS = (
    "Cook.Cleandishes", "Cook.Cleanup", "Cook.Cut", "Cook.Stir", "Cook.Usestove", "Cutbread",
    "Drink.Frombottle", "Drink.Fromcan", "Drink.Fromcup", "Drink.Fromglass", "Eat.Attable", "Eat.Snack",
    "Enter", "Getup", "Laydown", "Leave", "Makecoffee.Pourgrains", "Makecoffee.Pourwater",
    "Maketea.Boilwater", "Maketea.Insertteabag", "Pour.Frombottle", "Pour.Fromcan", "Pour.Fromkettle",
    "Readbook", "Sitdown", "Takepills", "Uselaptop", "Usetablet", "Usetelephone", "Walk", "WatchTV",
)
# fmt: on
TOYOTA_TRAIN = frozenset((3, 4, 6, 7, 9, 12, 13, 15, 17, 19, 25))  # cross-subject
TOYOTA_PEOPLE = (2, 3, 4, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 25)
TOYOTA_MEN = frozenset((3, 9, 14, 15, 17, 18))


def toyota_smarthome(root: Path) -> Dataset:
    """Toyota Smarthome, trimmed, cross-subject: 31 actions of 18 people, all labels in the names.

    ::

        root/mp4/Cook.Cleandishes_p02_r00_v02_c03.mp4      action, person, repetition, video, camera

    Gender is as in SPLAVU's label file. Validation holds out a tenth of the training people's recordings.
    """
    root = folder(root, "Toyota Smarthome")
    samples: list[Sample] = []
    for stem, path in media(root).items():
        code = re.match(r"([A-Za-z.]+)_p(\d\d)_r(\d\d)_v(\d\d)_c(\d\d)", stem)
        if not code or code[1] not in TOYOTA_ACTIONS or int(code[2]) not in TOYOTA_PEOPLE:
            continue
        person = int(code[2])
        split: Split = "test" if person not in TOYOTA_TRAIN else "train"
        if split == "train" and draw(f"p{code[2]}v{code[4]}") % 10 == 0:
            split = "val"
        groups = {"gender": "male" if person in TOYOTA_MEN else "female", "camera": code[5]}
        action, identity = TOYOTA_ACTIONS.index(code[1]), TOYOTA_PEOPLE.index(person)
        samples.append(Sample(stem, split, path, None, action, (), identity, groups))
    if not samples:
        raise VeilError(
            f"{root} holds no video like Walk_p02_r00_v02_c03.mp4; unpack Toyota Smarthome's mp4 there"
        )
    people = tuple(f"p{person:02d}" for person in TOYOTA_PEOPLE)
    return Dataset("toyota-smarthome", samples, read_frames, TOYOTA_ACTIONS, identities=people)


def casia_b(root: Path, *, protocol: Literal["large", "all"] = "large") -> Dataset:
    """CASIA-B: 124 people who walk, seen from 11 sides, as they are (nm), with a bag (bg) and in a coat (cl).

    ::

        root/001-nm-01-090.avi      person, condition, repetition, view
        root/001/nm-01/090/001-nm-01-090-001.png      (the same as frames or silhouettes)

    ``large`` trains on the people 1 to 74, of whom 65 to 74 validate, and tests on the rest; ``all`` tests on
    everybody, as SPLAVU does. ``groups["role"]`` is gallery for nm-01 to nm-04, else probe.
    """
    root = folder(root, "CASIA-B")
    found = media(root)
    for here, names in walk(root):
        place = re.search(r"(\d{3})[/\\]((?:nm|bg|cl)-\d\d)[/\\](\d{3})$", str(here))
        if place and any(is_image(name) for name in names):
            found[f"{place[1]}-{place[2]}-{place[3]}"] = here
    samples: list[Sample] = []
    for stem, path in sorted(found.items()):
        code = re.fullmatch(r"(\d{3})-(nm|bg|cl)-(\d\d)-(\d{3})", stem)
        if not code or not 1 <= int(code[1]) <= 124:
            continue
        person = int(code[1])
        split: Split = "test" if protocol == "all" or person > 74 else "val" if person > 64 else "train"
        role = "gallery" if code[2] == "nm" and int(code[3]) <= 4 else "probe"
        groups = {"condition": code[2], "repetition": code[3], "view": code[4], "role": role}
        samples.append(Sample(stem, split, path, identity=person - 1, groups=groups))
    if not samples:
        raise VeilError(f"{root} holds no video like 001-nm-01-090.avi; unpack CASIA-B there")
    people = tuple(f"{person:03d}" for person in range(1, 125))
    return Dataset("casia-b", samples, read_frames, identities=people)


# fmt: off
UTD_ACTIONS = (
    "swipe left", "swipe right", "wave", "clap", "throw", "cross arms", "basketball shoot", "draw x",
    "draw circle clockwise", "draw circle counterclockwise", "draw triangle", "bowling", "boxing",
    "baseball swing", "tennis swing", "arm curl", "tennis serve", "push", "knock", "catch",
    "pick up and throw", "jog", "walk", "sit to stand", "stand to sit", "lunge", "squat",
)
# fmt: on


def utd_mhad(root: Path, *, kind: Literal["depth", "color"] = "depth") -> Dataset:
    """UTD-MHAD: 27 actions of 8 people; of the four trials 1 and 2 train, 3 validates, 4 tests.

    ::

        root/Depth/a1_s1_t1_depth.mat      as published: depth as grey, near is bright
        root/RGB/a1_s1_t1_color.avi        with kind="color"
        root/a01_s1_t1.mp4                 or videos made of either
    """
    root = folder(root, "UTD-MHAD")
    endings = {"depth": (".mat", "_depth"), "color": (".avi", "_color")}[kind]
    splits: dict[int, Split] = {1: "train", 2: "train", 3: "val", 4: "test"}
    samples: dict[tuple[int, ...], Sample] = {}
    for here, names in walk(root):
        for name in names:
            code = re.fullmatch(r"a(\d+)_s(\d)_t(\d)(_[a-z]+)?(\.\w+)", name)
            if not code or not (is_video(name) or code[5] == ".mat") or code[4] not in (None, endings[1]):
                continue
            action, person, trial = (int(part) for part in code.groups()[:3])
            if 1 <= action <= len(UTD_ACTIONS) and 1 <= person <= 8 and trial in splits:
                sample = Sample(
                    f"a{action}_s{person}_t{trial}",
                    splits[trial],
                    here / name,
                    None,
                    action - 1,
                    (),
                    person - 1,
                )
                samples.setdefault((action, person, trial), sample)
    if not samples:
        raise VeilError(f"{root} holds no file like a1_s1_t1{endings[1]}{endings[0]}; unpack UTD-MHAD there")
    people = tuple(f"s{person}" for person in range(1, 9))
    ordered = [samples[key] for key in sorted(samples)]
    return Dataset("utd-mhad", ordered, read_frames, UTD_ACTIONS, identities=people)


def ucf_sports(root: Path, *, merged: bool = False) -> Dataset:
    """UCF Sports: the 13 folders of its archive are its actions, or with ``merged`` the 10 of the papers.

    ::

        root/Diving-Side/001/2538-5_70133.avi      as published; the frames beside the video are not read
        root/Diving-Side/000.mp4                   or one file a clip

    There is no official split. Clips of one broadcast follow each other, so each action is cut into blocks:
    the first third tests (Lan et al. 2011), the last tenth of the rest validates.
    """
    root = folder(root, "UCF Sports")
    places: dict[str, dict[str, Path]] = defaultdict(dict)
    for here, names in walk(root):
        inside = here.relative_to(root).parts
        videos = [name for name in names if is_video(name)]
        if len(inside) >= 2 and re.fullmatch(r"\d+", inside[-1]) and (videos or any(map(is_image, names))):
            places[inside[-2]][inside[-1]] = here / videos[0] if videos else here
        elif inside and not re.fullmatch(r"\d+|gt|jpeg", inside[-1]):
            places[inside[-1]] |= {Path(name).stem: here / name for name in videos}
    places = {action: clips for action, clips in places.items() if clips}
    if not places:
        raise VeilError(f"{root} holds no folder of clips like Diving-Side/001; unpack UCF Sports there")
    title = {name: re.sub(r"-(Back|Front|Side)$", "", name) if merged else name for name in places}
    actions = tuple(sorted(set(title.values())))
    samples: list[Sample] = []
    for folder_name, clips in sorted(places.items()):
        count = len(clips)
        tests, validates = round(count / 3), max(round(0.1 * (count - round(count / 3))), int(count > 3))
        for place, (name, path) in enumerate(sorted(clips.items())):
            split: Split = "test" if place < tests else "val" if place >= count - validates else "train"
            samples.append(
                Sample(f"{folder_name}/{name}", split, path, action=actions.index(title[folder_name]))
            )
    return Dataset("ucf-sports", samples, read_frames, actions)


def _listed(
    name: str,
    root: Path,
    rows: dict[str, tuple[str, Split]],
    groups: dict[str, tuple[str, str]],
    notes: Iterable[str] = (),
    found: dict[str, Path] | None = None,
) -> Dataset:
    """A dataset whose lists name every video with its action and split; validation is held out of them."""
    have, missing = present(rows, media(root) if found is None else found, root, f"{name} videos")
    held = hold_out(groups[video] for video, (_, split) in rows.items() if split == "train")
    actions = tuple(sorted({action for action, _ in rows.values()}))
    index = {action: place for place, action in enumerate(actions)}
    samples: list[Sample] = []
    for video, path in have.items():
        action, split = rows[video]
        if split == "train" and groups[video] in held:
            split = "val"
        samples.append(Sample(video_id(video), split, path, action=index[action]))
    return Dataset(name, samples, read_frames, actions, notes=(*notes, *missing))
