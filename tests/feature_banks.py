"""Features that are made for tests: their first half depends on the action, their second half on the identity."""

import torch

from veil.data.sample import Sample, Segment, Split
from veil.features.bank import Bank


def made_bank(videos=60, dim=16, clips=1, stills=4, actions=3, people=4, seed=0, long=False) -> Bank:
    """Features whose first half depends on the action of moving clips and whose second half on the identity."""
    rng = torch.Generator().manual_seed(seed)
    words = torch.randn(actions, dim // 2, generator=rng) * 3
    looks = torch.randn(people, dim // 2, generator=rng) * 3
    does = torch.arange(videos) % actions
    identity = torch.randint(people, (videos,), generator=rng)

    def noise(*shape):
        return torch.randn(*shape, generator=rng)

    own = looks[identity]
    moves = torch.cat(
        [
            words[does][:, None] + noise(videos, clips, dim // 2),
            own[:, None] + noise(videos, clips, dim // 2),
        ],
        2,
    )
    still = torch.cat([noise(videos, stills, dim // 2), own[:, None] + noise(videos, stills, dim // 2)], 2)
    counts = torch.randint(max(1, clips // 2), clips + 1, (videos,), generator=rng)
    splits: list[Split] = ["train", "train", "train", "val", "test"]
    segments = (Segment(0.0, 2.0, 0), Segment(3.0, 4.0, 1)) if long else ()
    samples = tuple(
        Sample(
            f"v{i}",
            splits[(i // actions) % 5],
            action=int(does[i]),
            identity=int(identity[i]),
            segments=segments,
        )
        for i in range(videos)
    )
    mask = torch.arange(clips) < counts[:, None]
    return Bank(
        encoder="made",
        fingerprint="f" * 16,
        samples=samples,
        clips=moves * mask[..., None],
        counts=counts,
        starts=torch.arange(clips).float().expand(videos, clips) * mask,
        seconds=counts.float() + 1,
        length=1.0,
        stills=still,
        actions=tuple(f"action {i}" for i in range(actions)),
        identities=tuple(f"person {i}" for i in range(people)),
    )
