"""Compare methods by attacking them: which actions and which identities are still recognized?

    python examples/compare_methods.py

A tiny audit of four synthetic people, by attackers that are solved in seconds; `veil audit --compare` runs stronger ones.
"""

from dataclasses import replace

import veil
from veil.audit.audit_data import AuditData
from veil.audit.recognition import RecognizerSpec
from veil.audit.runner import run_audit
from veil.audit.suites import SUITES
from veil.data import read

ACTIONS = ("wave", "squat", "fall", "jump")
suite = replace(
    SUITES["quick"],
    size=32,
    utility=(RecognizerSpec("kernel", "clips"),),
    attackers=(RecognizerSpec("kernel", "frames"),),
    knowledge=("oblivious", "adaptive"),  # trained on raw video; trained on what the method leaves
)
dataset = read("synthetic", None, count=2800, size=32)  # only what is used is rendered
few = [replace(s, attributes=()) for s in dataset.samples if s.identity in range(4)]
people = replace(dataset, samples=few, attributes=())

methods = {name: veil.make(name) for name in ("downsample:4x", "pixelate:16,region=frame")}
for result in run_audit({"raw": None, **methods}, AuditData(people, actions=ACTIONS), suite):
    print(result.method)
    for row in result.rows:
        if row.knowledge == "adaptive" and row.role != "bias":
            print(
                f"  {row.target:9s}{row.value:.2f}   (chance {row.chance:.2f}, {row.n} videos, by {row.by})"
            )
