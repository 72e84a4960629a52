"""The methods that the web app offers: what each hides and keeps, what was measured, and its limitations.

Every figure in a description is one that the named page of the documentation holds; a test compares them. A method without
published figures is described as not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from veil.core import VeilError
from veil.nn import weights
from veil.people import detectors


@dataclass(frozen=True)
class Measurement:
    """One measured statement and where it was published."""

    statement: str  # for the page
    source: str  # page under docs/ that holds the figures
    row: str  # the line of that page which begins with this text...
    figures: tuple[str, ...]  # ...holds these figures, written as they are there


@dataclass(frozen=True)
class MethodChoice:
    """A method, named by what it protects."""

    key: str
    title: str
    hides: str
    keeps: str
    limitations: str
    method: str
    measured: tuple[Measurement, ...] = ()
    picks: bool = False  # whether the visitor names what is hidden
    needs: str | None = None  # weights without which it is not offered

    def public(self) -> dict[str, Any]:
        """What the page shows."""
        return {
            "key": self.key,
            "title": self.title,
            "hides": self.hides,
            "keeps": self.keeps,
            "measured": " ".join(m.statement for m in self.measured)
            or "Not measured. Run the audit below before you rely on it.",
            "limitations": self.limitations,
            "method": self.method,
            "picks": self.picks,
        }


CATALOGUE = (
    MethodChoice(
        "people",
        "All people in it",
        "Faces, hair, skin and clothes of the people that are found, under noise that moves with them.",
        "The place, outlines and movement.",
        "Outline and gait stay visible, and people that are not found stay visible.",
        "selective",
        measured=(
            Measurement(
                "UCF Sports and UTKFace: a recognizer trained on the result finds 46 % of the actions (raw video 45 %), and "
                "the strongest attacker's precision for gender, race and age falls from .81 to .42 (chance .26).",
                "results/audit.md",
                "| selective person |",
                (".455", ".419"),
            ),
            Measurement(
                "Depth video (UTD-MHAD): the strongest attacker still finds 90 % of the identities. Both were measured with "
                "levels=video and without the face detector, which this choice adds.",
                "results/audit.md",
                "| selective person |",
                (".904",),
            ),
        ),
    ),
    MethodChoice(
        "chosen",
        "Only what I choose",
        "What you name or point at, such as hair, hands or a badge.",
        "Everything else in the picture.",
        "Everything else can identify a person.",
        "selective",
        measured=(
            Measurement(
                "With face and hair hidden (UCF Sports and UTKFace), a recognizer trained on the result finds 48 % of the "
                "actions (raw video 45 %), and the strongest attacker's precision for gender, race and age is .48 "
                "(raw .81, chance .26), measured with levels=video.",
                "results/audit.md",
                "| selective head |",
                (".477", ".483"),
            ),
        ),
        picks=True,
    ),
    MethodChoice(
        "action",
        "Everything, replaced by an action",
        "Every pixel: people, clothes and the place are replaced by a coarse grey video of one of twelve actions.",
        "Which of the twelve actions the network recognized, right or wrong.",
        "On real video it often shows a wrong action. It was trained on synthetic people; several people are shown as one.",
        "prototypes",
        measured=(
            Measurement(
                "Synthetic videos only: a recognizer finds 96 % of the actions in the result, and the strongest attacker "
                "4 % of the identities (chance 5 %).",
                "prototypes.md",
                "| **prototypes** |",
                ("96 %", "4 %"),
            ),
        ),
    ),
    MethodChoice(
        "black-people",
        "All people, blacked out",
        "All of every person that is found, under a black box.",
        "The place.",
        "What people do is lost as well.",
        "blacken:region=person",
        measured=(
            Measurement(
                "Depth video (UTD-MHAD): a recognizer trained on the result finds 9 % of the actions, and the strongest "
                "attacker 20 % of the identities (chance 13 %).",
                "results/audit.md",
                "| blacken people (boxes) |",
                (".085", ".202"),
            ),
        ),
        needs=detectors.DEFAULT["person"],
    ),
    MethodChoice(
        "faces",
        "Faces, blacked out",
        "Every face that is found, under black.",
        "Bodies, clothes, the place, all movement.",
        "Clothes, hair and gait can identify a person.",
        "blacken:region=face",
    ),
    MethodChoice(
        "soft-faces",
        "Faces, blurred",
        "Every face that is found, under blur.",
        "Bodies, clothes, the place, all movement.",
        "A blurred face can be recognized; clothes, hair and gait as well.",
        "blur:strong,region=face",
        measured=(
            Measurement(
                "Faces of UTKFace under the same blur: the strongest attacker's precision for gender, race and age is .76 "
                "(raw .81, chance .26).",
                "results/audit.md",
                "| blur strong |",
                (".763",),
            ),
        ),
    ),
)


def available() -> list[MethodChoice]:
    """The methods whose weights are on this machine."""
    return [choice for choice in CATALOGUE if not choice.needs or weights.look_up(choice.needs)]


def find(key: Any) -> MethodChoice:
    """The method with this key, which a request named."""
    for choice in CATALOGUE:
        if choice.key == key:
            return choice
    raise VeilError("no method is chosen: choose what to protect.", code="choice-unknown")
