"""`veil features`: extract, anonymize, search and audit features of videos on disk."""

from __future__ import annotations

import json as jsons
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.table import Table

from veil.cli.arguments import Flag, Output, Ray, Repeated, With, data_options, key_value, ray_address
from veil.cli.terminal import out, print_result, print_sentences, progress_bar

app = App(name="features", help="Features of videos on disk: extract, anonymize and search them.")


@app.command(name="extract")
def extract_features(
    inputs: tuple[str, ...] = (),
    /,
    *,
    output: Output,
    encoder: str = "veil",
    weights: str | None = None,
    labels: str | None = None,
    data: str | None = None,
    root: str | None = None,
    option: Repeated = (),
    stride: int | None = None,
    stills: int = 10,
    dtype: Literal["float16", "float32"] = "float16",
    batch: int = 32,
    workers: int | None = None,
    device: str = "cpu",
    ray: Ray = None,
    gpus_per_worker: float = 0,
    resume: Flag = False,
) -> int:
    """Add the features of videos to a store, which is created where there is none.

    A video that cannot be read fails alone: the others are kept, and the exit code is 2. Finished videos are kept when
    the command is killed.

    Parameters
    ----------
    inputs
        Videos, folders of videos, or patterns such as 'day-*/*.mp4'.
    output
        The folder of the store; new videos are added to one that exists.
    encoder
        Its name, or the folder of a run that trained one.
    weights
        Its published weights, where they do not come with Veil.
    labels
        A csv file with a line for each video: id (its path in the folder), and any of split, action, identity, segments
        ("1.5-4 wave; 6-7 run", in seconds), attribute:NAME (0 or 1); other columns are groups.
    data
        A dataset instead of videos, as for `veil data check`, in the folder root.
    option
        KEY=VALUE for the dataset's reader; may be given several times.
    stride
        Frames from one clip to the next [as many as a clip has].
    stills
        Static clips of each video, one frame each: what adapters are trained to hide.
    dtype
        Type of the stored numbers.
    batch
        Clips encoded at once.
    workers
        Processes, each with an encoder of its own [1, or one for each core of the cluster].
    device
        cpu, cuda, cuda:1, …
    ray
        Distribute the work over a Ray cluster: its address, or none for the one that this machine is part of; "local"
        starts one here. Its machines must see the videos under the same names.
    gpus_per_worker
        GPUs of the cluster for each worker; 0.25 lets four share one.
    resume
        Skip videos that the store has already, instead of refusing them.
    """
    from veil.apps.features import extract_videos

    with progress_bar("extracting", "videos") as progress:
        result = extract_videos(
            inputs,
            output,
            data=data,
            root=root,
            options=data_options(option),
            encoder=encoder,
            weights=weights,
            labels=labels,
            stride=stride,
            stills=stills,
            dtype=dtype,
            batch=batch,
            workers=workers,
            device=device,
            ray=ray_address(ray),
            gpus_per_worker=gpus_per_worker,
            resume=resume,
            progress=progress,
        )
    return print_sentences(result.sentences())


@app.command(name="anonymize")
def anonymize_features(
    store: str,
    /,
    *,
    with_: Annotated[str, Parameter(name="--with")],
    output: Output,
    keep_private: Flag = False,
    device: str = "cpu",
) -> int:
    """Write a store with the features of another after a latent anonymizer: the whole of it, or nothing.

    Parameters
    ----------
    store
        The folder that `veil features extract` made.
    with_
        The folder of a run of `veil train` with a recipe for features.
    output
        The folder to write.
    keep_private
        Keep identities, attributes and groups among the labels, as an audit needs them.
    device
        cpu, cuda, cuda:1, …
    """
    from veil.features.anonymize import anonymize_store

    with progress_bar("anonymizing", "videos") as progress:
        result = anonymize_store(
            store, with_, output, device=device, keep_private=keep_private, progress=progress
        )
    print_result("\n".join(result.sentences()))
    return 0


@app.command(name="search")
def search_features(
    store: str,
    /,
    *,
    like: str,
    top: int = 10,
    with_: With = None,
    encoder: str | None = None,
    weights: str | None = None,
    split: str | None = None,
    action: str | None = None,
    person: str | None = None,
    group: Repeated = (),
    device: str = "cpu",
    json: Flag = False,
) -> int:
    """Show the videos of a store that are most like a video.

    Parameters
    ----------
    store
        The folder of the store.
    like
        A video file, or the id of a video in the store.
    top
        How many to show.
    with_
        The run that anonymized the store, where it is anonymized and a file is given.
    encoder
        The store's encoder, where it is a run that has moved.
    weights
        Its published weights, where they do not come with Veil.
    split
        Only videos of this split.
    action
        Only videos of this action.
    person
        Only videos of this person.
    group
        NAME=VALUE: only videos with this label; may be given several times.
    device
        cpu, cuda, cuda:1, …
    json
        Answer in JSON.
    """
    from rich.text import Text

    from veil.features.search import search_store

    hits = search_store(
        store,
        like,
        top=top,
        with_=with_,
        encoder=encoder,
        weights=weights,
        split=split,
        action=action,
        person=person,
        groups=dict(map(key_value, group)),
        device=device,
    )
    if json:
        print(jsons.dumps([hit._asdict() for hit in hits], indent=1))
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "score", "split", "action", "person", "groups"):
        table.add_column(column, justify="right" if column == "score" else "left")
    for hit in hits:
        groups = ", ".join(f"{name}={value}" for name, value in hit.groups.items())
        values = hit.id, f"{hit.score:.3f}", hit.split, hit.action or "", hit.identity or "", groups
        table.add_row(*map(Text, values))
    out.print(table)
    return 0


@app.command(name="audit")
def audit_features(
    store: str,
    /,
    *,
    after: str | None = None,
    target: Repeated = (),
    seed: int = 0,
    device: str = "cpu",
    output: Output | None = None,
) -> int:
    """Attack features: what fresh probes learn from them (identity, attributes), and the utility that is left.

    Parameters
    ----------
    store
        Features as the encoder made them, with labels and splits.
    after
        The same videos' features after `veil features anonymize`; without it the raw features are attacked.
    target
        What probes learn: action, identity, attributes or a group such as gender; may be given several times [all labels].
    seed
        Seed of the probes.
    device
        cpu or cuda.
    output
        A JSON file for the results.
    """
    from veil.audit.features.comparison import audit_store

    table = Table("target", "probe", "attacker", "score", "chance", "raw", "left", box=None)
    for row in audit_store(store, after, target, seed=seed, device=device, output=output):
        numbers = (row.score.value, row.score.chance, row.raw, row.left)
        table.add_row(
            row.target, row.probe, row.knowledge, *("" if n is None else f"{n:.3f}" for n in numbers)
        )
    out.print(table)
    return 0


@app.command(name="info")
def describe_features(store: str, /, *, json: Flag = False) -> int:
    """Describe a store: the encoder, how many features, and which labels the videos have.

    Parameters
    ----------
    store
        The folder of the store.
    json
        Answer in JSON.
    """
    from veil.features.describe import describe_store

    described = describe_store(store)
    if json:
        print(jsons.dumps(described.values, indent=1))
    else:
        print_result("\n".join(described.lines))
    return 0
