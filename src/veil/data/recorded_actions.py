"""Trimmed actions recorded with volunteers, one action per clip: KTH, IPN Hand, SBU, NTU RGB+D, Toyota Smarthome,
UTD-MHAD.

Conventions are those of `web_actions`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Literal

from veil.core import VeilError
from veil.data.frames import read_frames
from veil.data.labels import read_lines, read_table
from veil.data.listing import dataset_folder, find, locate, media_files, select_present, video_id
from veil.data.sample import Dataset, Sample, Split
from veil.data.splits import deal_in_turn, hold_out, name_hash
from veil.media.inputs import is_image, is_video, walk

KTH_ACTIONS = ("boxing", "handclapping", "handwaving", "jogging", "running", "walking")


def kth(root: Path, *, labels: Path | None = None, unit: Literal["video", "sequence"] = "video") -> Dataset:
    """KTH with identities: of a person's four repetitions of an action two train, one validates, one tests.

    ::

        root/boxing/person01_boxing_d1_uncomp.avi
        root/00sequences.txt      person01_boxing_d1  frames  1-95, 96-185, 186-245, 246-360

    A repetition is one of the four scenarios d1 to d4. ``unit="sequence"`` cuts the videos as
    in 00sequences.txt.
    """
    root = dataset_folder(root, "KTH")
    samples: list[Sample] = []
    spans: dict[str, list[tuple[int, int]]] = {}
    if unit == "sequence":
        hint = "get 00sequences.txt from the KTH page, or name its folder with the option labels"
        for line in read_lines(locate(Path(labels or root), "00sequences.txt", hint=hint)):
            ranges = re.findall(r"(\d+)-(\d+)", line.partition("frames")[2])
            spans[line.split()[0]] = [(int(first) - 1, int(last)) for first, last in ranges]
    splits: dict[str, Split] = {}
    for person in range(1, 26):
        for action in KTH_ACTIONS:
            four = [f"person{person:02d}_{action}_d{scenario}" for scenario in range(1, 5)]
            splits |= deal_in_turn(four, ("train", "train", "val", "test"))
    found = {stem.removesuffix("_uncomp"): path for stem, path in media_files(root).items()}
    # One of the 600 was never recorded.
    listed = sorted(set(splits) - {"person13_handclapping_d3"})
    have, notes = select_present(listed, found, root, "KTH videos")
    for name, path in have.items():
        person, action, scenario = name.split("_")
        common = {
            "split": splits[name],
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
    root = dataset_folder(root, "IPN Hand")
    base = Path(labels or root)
    hint = "get the annotations of IPN Hand, or name their folder with the option labels"
    columns = "video", "label", "t_start", "t_end"
    rows: dict[Split, list[dict[str, str]]] = {
        "train": read_table(locate(base, "Annot_[Tt]rainList.txt", hint=hint), *columns),
        "test": read_table(locate(base, "Annot_[Tt]estList.txt", hint=hint), *columns),
    }
    women, notes = _ipn_women(base)
    listed = dict.fromkeys(row["video"] for kind in rows.values() for row in kind)
    have, more = select_present(listed, media_files(root), root, "IPN videos")
    person = {name: name.rsplit("_", 2)[0] for name in have}
    people = tuple(sorted(set(person.values())))
    held = hold_out(
        [("", person) for person in sorted({row["video"].rsplit("_", 2)[0] for row in rows["train"]})]
    )
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
    """Whether each video shows a woman, where the metadata has it."""
    women: dict[str, bool] = {}
    for path in find(base, "metadata*.csv"):
        for row in read_table(path):
            low = {key.lower(): value.strip() for key, value in row.items()}
            name, sex = low.get("video") or low.get("video name", ""), low.get("sex") or low.get("label", "")
            if sex[:1].upper() in ("W", "F", "M"):
                women[name] = sex[:1].upper() != "M"
    return women, [] if women else [f"{base} has no metadata.csv, so gender is unknown"]


SBU_ACTIONS = (
    "approaching", "departing", "kicking", "pushing", "shaking hands", "hugging", "exchanging object",
    "punching",
)  # fmt: skip


def sbu(root: Path) -> Dataset:
    """SBU Kinect interaction, clean version: 8 actions by 13 pairs of people, who are the identities.

    ::

        root/s01s02/01/001/rgb_000001.png      pair, action, repetition; depth_*.png beside are not read

    Both orders of a pair (s01s02 and s02s01) are the same identity, and every pair is in every split: three fifths of its
    clips are for training.
    """
    root = dataset_folder(root, "SBU")
    found: dict[str, Path] = {}
    for here, names in walk(root):
        place = re.search(r"(s0\d)(s0\d)[/\\](0[1-8])[/\\](\d{3})$", str(here))
        if place and any(is_image(name) for name in names):
            found[f"{place[1]}{place[2]}/{place[3]}/{place[4]}"] = here
    if not found:
        raise VeilError(
            f"{root} has no folder of frames like s01s02/01/001: unpack the zip files of SBU there.",
            code="no-samples",
        )
    pairs: dict[str, list[str]] = defaultdict(list)
    for name in found:
        pairs["".join(sorted((name[:3], name[3:6])))].append(name)
    samples: list[Sample] = []
    pattern: tuple[Split, ...] = ("train", "test", "train", "val", "train")
    for identity, names in enumerate(pairs[pair] for pair in sorted(pairs)):
        for place, name in enumerate(sorted(names, key=lambda name: (name[7:9], name_hash(name)))):
            action = int(name[7:9]) - 1
            samples.append(Sample(name, pattern[place % 5], found[name], action=action, identity=identity))
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
    root = dataset_folder(root, "NTU RGB+D")
    held = {int(subject) for _, subject in hold_out([("", str(subject)) for subject in sorted(NTU_TRAIN)])}
    samples: list[Sample] = []
    for stem, path in media_files(root).items():
        code = re.match(r"S(\d{3})C(\d{3})P(\d{3})R(\d{3})A(\d{3})", stem)
        if not code:
            continue
        setup, camera, person, repetition, action = map(int, code.groups())
        if action > 60 or person > 40:  # those of NTU RGB+D 120
            continue
        split = _ntu_split(protocol, camera, person, action)
        performance = f"S{setup}P{person}R{repetition}A{action}"
        if split == "train" and (
            person in held if protocol == "subject" else name_hash(performance) % 10 == 0
        ):
            split = "val"
        if split is None:
            continue
        gender = "female" if person in NTU_WOMEN else "male"
        groups = {"gender": gender, "camera": str(camera), "setup": str(setup)}
        samples.append(Sample(code[0], split, path, None, action - 1, (), person - 1, groups))
    if not samples:
        raise VeilError(
            f"{root} has no video like S001C001P001R001A001_rgb.avi: unpack nturgbd_rgb_s*.zip there.",
            code="no-samples",
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
    root = dataset_folder(root, "Toyota Smarthome")
    samples: list[Sample] = []
    for stem, path in media_files(root).items():
        code = re.match(r"([A-Za-z.]+)_p(\d\d)_r(\d\d)_v(\d\d)_c(\d\d)", stem)
        if not code or code[1] not in TOYOTA_ACTIONS or int(code[2]) not in TOYOTA_PEOPLE:
            continue
        person = int(code[2])
        split: Split = "test" if person not in TOYOTA_TRAIN else "train"
        if split == "train" and name_hash(f"p{code[2]}v{code[4]}") % 10 == 0:
            split = "val"
        groups = {"gender": "male" if person in TOYOTA_MEN else "female", "camera": code[5]}
        action, identity = TOYOTA_ACTIONS.index(code[1]), TOYOTA_PEOPLE.index(person)
        samples.append(Sample(stem, split, path, None, action, (), identity, groups))
    if not samples:
        raise VeilError(
            f"{root} has no video like Walk_p02_r00_v02_c03.mp4: unpack Toyota Smarthome's mp4 there.",
            code="no-samples",
        )
    people = tuple(f"p{person:02d}" for person in TOYOTA_PEOPLE)
    return Dataset("toyota-smarthome", samples, read_frames, TOYOTA_ACTIONS, identities=people)


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
    root = dataset_folder(root, "UTD-MHAD")
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
        raise VeilError(
            f"{root} has no file like a1_s1_t1{endings[1]}{endings[0]}: unpack UTD-MHAD there.",
            code="no-samples",
        )
    people = tuple(f"s{person}" for person in range(1, 9))
    ordered = [samples[key] for key in sorted(samples)]
    return Dataset("utd-mhad", ordered, read_frames, UTD_ACTIONS, identities=people)
