"""Keep features instead of video: extract them, erase what one frame shows, and search them.

    python examples/search_features.py

On synthetic people, in memory; `veil features extract`, `anonymize` and `search` do it on disk, for any number of videos.
"""

import torch
from torch import Tensor

from veil.data import read
from veil.features import encoders
from veil.features.erasure import motion_subspace
from veil.features.extract import extract

bank = extract(read("synthetic", None, count=48, size=56), encoders.make("veil"), stills=1)
clips, stills = (
    bank.clips[:, 0],
    bank.stills[:, 0],
)  # (V, D): each of these videos is one clip; and one of its frames


def found(features: Tensor, target: str) -> float:
    """How often the most alike of the other videos has the same action, or shows the same person."""
    unit = torch.nn.functional.normalize(features - features.mean(0), dim=1)
    alike = (unit @ unit.T).fill_diagonal_(-1)
    truth = bank.truth(target)
    return (truth[alike.argmax(1)] == truth).float().mean().item()


learn = torch.tensor([sample.split == "train" for sample in bank.samples])
safe = motion_subspace(clips[learn], stills[learn], keep=8)(clips)  # uses no label
for name, features in {"as they come": clips, "motion subspace": safe}.items():
    rates = ", ".join(f"the same {target} {found(features, target):.2f}" for target in ("action", "identity"))
    print(f"{name:18s} the most alike video shows {rates}")
print("A search is a weak attacker: `veil features audit` runs stronger ones.")
