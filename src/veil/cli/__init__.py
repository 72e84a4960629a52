"""The command line: one verb, one function; its types and docstring are its help."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NoReturn, Protocol

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from veil.apps.pipeline import anonymize_video
from veil.apps.report import save_picture
from veil.core import VeilError, __version__
from veil.media.inputs import plan
from veil.media.video import Codec
from veil.methods import ANONYMIZERS, DEFAULT, make, parameters
from veil.methods import Parameter as Described
from veil.nn import weights

app = App(
    name="veil",
    help="Veil keeps the action and loses the person.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # `main` says what Ctrl-C has left
)
out, err = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False, soft_wrap=True)
Flag = Annotated[bool, Parameter(negative="")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Hiding:
    """What is hidden, and how: options of whatever writes videos.

    Parameters
    ----------
    method
        NAME, NAME:preset or NAME:key=value,… as `veil list` shows them [selective].
    with_
        The folder of a run of `veil train`, or a file of `veil export`: what was learned, instead of a method.
    region
        What the method changes, for methods that change a face, a person or the frame.
    hide
        Names of what is hidden, such as hair,hand,face, for methods that look for what they hide.
    also
        What such a method hides besides: face, person or none.
    audio
        Voices identify people, so the sound is dropped unless it is kept.
    """

    method: str | None = None
    with_: Annotated[str | None, Parameter(name="--with")] = None
    region: Literal["face", "person", "frame"] | None = None
    hide: str | None = None
    also: str | None = None
    audio: Literal["drop", "keep"] = "drop"


@app.command
def anonymize(
    inputs: list[str],
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"])],
    hiding: Hiding = Hiding(),
    codec: Codec = "h264",
    quality: int | None = None,
    report: str | None = None,
    preview: str | None = None,
    explain: str | None = None,
    require_match: Flag = False,
    overwrite: Flag = False,
    salvage: Flag = False,
) -> int:
    """Hide who is in a video, and keep what they do.

    Every input becomes one output of the same length, timing and size, without sound or metadata. If anything goes
    wrong, nothing is written.

    Parameters
    ----------
    inputs
        Videos, pictures, folders, the number of a camera, or the URL of a stream (Ctrl-C ends it and keeps the file).
    output
        The file to write (.mp4, .mov or .mkv; a picture's ending for a picture), or a folder where there are
        several inputs.
    codec
        ffv1 loses nothing and needs .mkv.
    quality
        Constant rate factor: lower is better and larger [23 for h264, 28 for h265].
    report
        JSON file that says for every frame what was hidden (a folder, where there are several inputs).
    preview
        Picture with frames of the anonymized video (a folder, where there are several inputs).
    explain
        Folder for pictures of why the method hid what it hid: heat maps over anonymized frames, how much was hidden
        over time, and a contact sheet (a folder of such folders, where there are several inputs).
    require_match
        Refuse a video in which nothing to hide is found.
    overwrite
        Replace outputs that exist.
    salvage
        Where frames of a damaged video cannot be decoded, go on without them instead of refusing the video.
    """
    method = _chosen(hiding.method, hiding.with_, hiding.region)
    anonymizer = make(method, region=hiding.region, hide=_names(hiding.hide), also=_names(hiding.also))
    jobs = plan(inputs, output, codec)
    single = len(jobs) == 1 and jobs[0].target == Path(output)
    failed = 0
    for number, job in enumerate(jobs):
        words = f"{number + 1} of {len(jobs)}" if len(jobs) > 1 else "anonymizing"
        try:
            if not single:
                for folder in (output, report, preview, explain):
                    if folder:
                        (Path(folder) / job.target.relative_to(output)).parent.mkdir(
                            parents=True, exist_ok=True
                        )
            with _bar(words) as progress:
                result = anonymize_video(
                    job.source,
                    job.target,
                    anonymizer,
                    audio=hiding.audio,
                    codec=codec,
                    quality=quality,
                    overwrite=overwrite,
                    salvage=salvage,
                    progress=progress,
                    report=_beside(report, ".json", job.target, None if single else output),
                    preview=_beside(preview, ".jpg", job.target, None if single else output),
                    explain=_beside(explain, "", job.target, None if single else output),
                    require_match=require_match,
                )
            out.print(result.sentence(), markup=False)
        except VeilError as error:
            if single:
                raise
            failed += 1
            _say(error)
        except OSError as error:
            _say(VeilError(f"{error.filename or job.target} cannot be written: {error.strerror or error}."))
            failed += 1
    if failed and not single:
        _say(f"{failed} of {len(jobs)} inputs failed.")
    return 2 if failed else 0


@app.command
def batch(
    inputs: list[str],
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"])],
    hiding: Hiding = Hiding(),
    codec: Codec = "h264",
    quality: int | None = None,
    require_match: Flag = False,
    salvage: Flag = False,
    workers: int | None = None,
    ray: Annotated[tuple[str, ...] | None, Parameter(consume_multiple=True, negative="")] = None,
    gpus_per_worker: float = 0,
    manifest: str | None = None,
    overwrite: Flag = False,
    verify: Flag = False,
) -> int:
    """Anonymize many videos at once; stop it whenever you like, and give the same command again to go on.

    A video that cannot be done fails alone: it is named, the others are written, and the exit code is 2. What came of
    each, with checksums, is in manifest.jsonl in the output folder; what is done is not done again.

    Parameters
    ----------
    inputs
        Videos, pictures, folders, patterns such as 'in/**/*.mp4' (in quotes), or URLs of these, such as s3://bucket/in.
    output
        The folder to write to, or its URL; it mirrors the folders of the inputs.
    codec
        ffv1 loses nothing and makes .mkv files.
    quality
        Constant rate factor: lower is better and larger [23 for h264, 28 for h265].
    require_match
        Refuse videos in which nothing to hide is found.
    salvage
        Where frames of a damaged video cannot be decoded, go on without them instead of refusing the video.
    workers
        Videos at once [one for each core of this machine, or of the cluster].
    ray
        Share the work out over a Ray cluster: its address, or none for the one that this machine is part of; "local"
        starts one here.
    gpus_per_worker
        GPUs of the cluster for each worker; 0.25 lets four share one.
    manifest
        Another file than manifest.jsonl in the output folder; needed where that is a URL.
    overwrite
        Replace outputs that are not of this batch, or were made with other options.
    verify
        Read what was done before and compare checksums, instead of trusting sizes and times.
    """
    from veil.apps.batch import anonymize_videos
    from veil.apps.worker import Options

    options = Options(
        method=_chosen(hiding.method, hiding.with_, hiding.region),
        region=hiding.region,
        hide=_names(hiding.hide),
        also=_names(hiding.also),
        audio=hiding.audio,
        codec=codec,
        quality=quality,
        require_match=require_match,
        salvage=salvage,
    )
    with _bar("anonymizing", "MB") as progress:
        result = anonymize_videos(
            inputs,
            output,
            options,
            workers=workers,
            ray=_address(ray),
            gpus_per_worker=gpus_per_worker,
            manifest=manifest,
            overwrite=overwrite,
            verify=verify,
            progress=progress,
        )
    said, *failures = result.sentences()
    out.print(said, markup=False)
    if failures:
        _say("\n".join(failures))
    return 2 if failures else 0


@app.command
def live(
    *,
    camera: int | None = None,
    source: str | None = None,
    to: Annotated[tuple[str, ...], Parameter(negative="")],
    method: str | None = None,
    with_: Annotated[str | None, Parameter(name="--with")] = None,
    region: Literal["face", "person", "frame"] | None = None,
    loop: Flag = False,
    seconds: float | None = None,
    give_up: float | None = None,
    share_on_network: Flag = False,
    token: Annotated[str | None, Parameter(env_var="VEIL_TOKEN")] = None,
    overwrite: Flag = False,
) -> int:
    """Anonymize a camera or a stream while it is watched; Ctrl-C ends it.

    Frames that the method has no time for are dropped, and none is shown that the method has not changed. While the
    source is silent a card is shown, and it is looked for until it is back.

    Parameters
    ----------
    camera
        The number of a camera.
    source
        Instead of a camera: the URL of a stream (rtsp://…, http://…), or a file, which is played at its own speed.
    to
        window, a video file, http://127.0.0.1:8090 (a page for browsers on this machine), or rtsp://… (an RTSP server
        that lets one publish); may be given several times.
    method
        As for `veil anonymize` [selective].
    with_
        The folder of a run of `veil train`, or a file of `veil export`: what was learned, instead of a method.
    region
        What the method changes, for methods that change a face, a person or the frame.
    loop
        Play a file again and again.
    seconds
        End after so many.
    give_up
        End when the source was away for so many seconds [never].
    share_on_network
        Let other machines see it; they must give the token.
    token
        What viewers must give, as password or as ?token=…; also read from VEIL_TOKEN.
    overwrite
        Replace a file that exists.
    """
    from veil.apps.live import live as show

    if (camera is None) == (source is None):
        raise VeilError("a picture comes from one place: give --camera NUMBER or --source URL.")
    result = show(
        str(camera) if source is None else source,
        to,
        make(_chosen(method, with_, region), region=region),
        loop=loop,
        seconds=seconds,
        give_up=give_up,
        share_on_network=share_on_network,
        token=token,
        overwrite=overwrite,
        say=lambda words: err.print(words, markup=False),
    )
    out.print(result.sentence(), markup=False)
    return 0


@app.command
def export(
    method: str,
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"])],
    int8: Flag = False,
    calibrate: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = (),
    overwrite: Flag = False,
) -> int:
    """Write what was learned as one ONNX file, which runs without torch: `veil anonymize --with model.onnx`.

    It is compared with torch on real frames, and not written where it differs.

    Parameters
    ----------
    method
        The folder of a run of `veil train`, or prototypes.
    output
        The file, which ends in .onnx.
    int8
        Round to 8 bits: smaller, and mostly faster. What leaves changes: audit it (`veil audit --compare RUN model.onnx`).
    calibrate
        Videos to compare on, and to measure the ranges of 8 bits [the demo's, and some of the synthetic world].
    overwrite
        Replace a file that exists.
    """
    from veil.apps.export import export as write

    for line in write(method, output, int8=int8, calibrate=calibrate, overwrite=overwrite).lines():
        out.print(line, markup=False)
    return 0


@app.command(name="list")
def list_() -> int:
    """Show the methods with their parameters, defaults and meaning."""
    told = {name: parameters(kind) for name, kind in ANONYMIZERS.items()}
    often = Counter((p.name, p.type, p.meaning) for parameters in told.values() for p in parameters)
    shared = {parameter for parameter, count in often.items() if 2 * count > len(told)}
    for name, kind in ANONYMIZERS.items():
        default = " (the default)" if name == DEFAULT else ""
        out.print(f"[bold]{name}[/]{default}  {(kind.__doc__ or '').splitlines()[0]}")
        for preset, values in getattr(kind, "PRESETS", {}).items():
            out.print(
                f"    {name}:{preset} is {', '.join(f'{k}={v}' for k, v in values.items())}", markup=False
            )
        own = [p for p in told[name] if (p.name, p.type, p.meaning) not in shared or p.name == "region"]
        _table(own)
    sharing = {
        name: rows for name, rows in told.items() if shared <= {(p.name, p.type, p.meaning) for p in rows}
    }
    out.print(f"[bold]{', '.join(sharing)}[/]: all of these")
    rows = next(iter(sharing.values()), [])
    _table([p for p in rows if (p.name, p.type, p.meaning) in shared and p.name != "region"])
    return 0


def _table(rows: list[Described]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 4))
    for row in rows:
        default = "" if row.default is None else f"={row.default}"
        table.add_row(f"{row.name}{default}", row.type, row.meaning.replace("[", "\\["))
    out.print(table)


@app.command
def audit(
    method: str | None = None,
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"])],
    compare: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = (),
    data: str = "synthetic",
    root: str | None = None,
    private: str | None = None,
    private_root: str | None = None,
    option: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    suite: Literal["quick", "standard", "full"] = "standard",
    quick: Flag = False,
    seeds: int | None = None,
    actions: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = (),
    attributes: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = (),
    weights: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    videos: tuple[str, str] | None = None,
    gallery: str | None = None,
    by: Literal["face", "body"] = "face",
    device: str | None = None,
    jobs: int | None = None,
    fresh: Flag = False,
) -> int:
    """Train fresh attackers on a method's output and say what they still find, and what the video is still good for.

    Writes a page (audit.html), the same for papers (audit.md) and for programs (audit.json). What was found before is
    not found again: adding a method to a comparison costs one method.

    Parameters
    ----------
    method
        The method, as for `veil anonymize`; "raw" is untouched video.
    output
        The folder to write to.
    compare
        Several methods side by side.
    data
        The dataset whose actions are to be kept, and whose people are attacked.
    root
        The folder that holds it. The synthetic world needs none.
    private
        Another dataset, whose people are attacked instead (cross-dataset), in the folder private_root.
    option
        KEY=VALUE for the dataset's reader; may be given several times.
    suite
        How much is trained: quick (minutes on two cores), standard (a GPU), full (many networks).
    quick
        The same as --suite quick.
    seeds
        How often every recognizer is trained from the start [1 for quick, else 3].
    actions
        Only these actions: labels that the method was not trained with.
    attributes
        Only these attributes.
    weights
        NETWORK=FILE: published weights with which recognizers of that network begin.
    videos
        RAW ANONYMIZED: two folders, to judge videos that another tool anonymized; needs --gallery.
    gallery
        Stills of known people, one folder or name each, to be recognised in the videos.
    by
        What they are recognised by in the videos.
    device
        cpu, cuda, cuda:1, … [a GPU where there is one].
    jobs
        Recognizers trained at once [one a core without a GPU, else 1].
    fresh
        Forget what was found before.
    """
    from veil.audit.command import audit_methods, audit_videos

    with _bar("audit", "") as progress:
        if videos or gallery:
            if method or compare or not videos or not gallery:
                raise VeilError(
                    "--videos RAW ANONYMIZED and --gallery STILLS go together, and without a method."
                )
            written, said = audit_videos(
                Path(videos[0]),
                Path(videos[1]),
                Path(gallery),
                Path(output),
                by=by,
                command=_command(),
                progress=progress,
            )
        else:
            written, said = audit_methods(
                [*([method] if method else []), *compare],
                Path(output),
                data=data,
                root=root,
                private=private,
                private_root=private_root,
                options=_options(option),
                suite="quick" if quick else suite,
                seeds=seeds,
                actions=actions,
                attributes=attributes,
                weights=dict(map(_pair, weights)),
                device=device,
                jobs=jobs,
                fresh=fresh,
                command=_command(),
                progress=progress,
                say=lambda words: err.print(words, markup=False),
            )
    for sentence in said:
        out.print(sentence, markup=False)
    out.print(f"page: {written}", markup=False)
    return 0


@app.command
def train(
    recipe: str,
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"])],
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
    resume: Flag = False,
    devices: int = 1,
    device: str | None = None,
    tensorboard: Flag = False,
) -> int:
    """Train what a recipe says; the run folder holds the recipe, the log, checkpoints and the weights.

    Parameters
    ----------
    recipe
        A TOML file.
    output
        The folder of the run.
    set_
        KEY=VALUE: change one value of the recipe; may be given several times.
    resume
        Go on after an interruption, exactly as if there had been none.
    devices
        Processes, each with a GPU of its own where there are GPUs.
    device
        cpu or cuda [a GPU where there is one].
    tensorboard
        Write logs for TensorBoard too.
    """
    from veil.apps.train import train as run_training

    with _bar("training", "steps") as bar:
        last: dict[str, float] = {}

        def progress(done: int, total: int, measured: dict[str, float]) -> None:
            last.update(measured)
            bar(done, total)

        try:
            weights_ = run_training(
                recipe,
                output,
                sets=set_,
                resume=resume,
                devices=devices,
                device=device,
                tensorboard=tensorboard,
                progress=progress,
            )
        except KeyboardInterrupt as interrupt:
            if (Path(output) / "run.json").is_file():  # else it was stopped before it had begun
                interrupt.args = ("The same command with --resume goes on with the run.",)
            raise
    told = ", ".join(f"{name} {value:.4g}" for name, value in last.items())
    out.print(f"weights: {weights_}" + (f"  (last: {told})" if told else ""), markup=False)
    return 0


data_app = App(name="data", help="Datasets: see whether one is usable, and look at it.")
app.command(data_app)


@data_app.command(name="check")
def check_(
    name: str,
    root: str | None = None,
    /,
    *,
    option: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    sheet: str | None = None,
    json: Flag = False,
) -> int:
    """Say what of a dataset is there and what is missing; exit with 0 when it is usable, with 2 when not.

    Parameters
    ----------
    name
        The dataset, such as ucf101 or utd-mhad; a wrong name is answered with the right ones.
    root
        The folder that holds it, laid out as its authors publish it. The synthetic world needs none.
    option
        KEY=VALUE for its reader, such as split=2 or labels=FOLDER; may be given several times.
    sheet
        Picture to write, with some of its samples.
    json
        Answer in JSON, with everything that was found.
    """
    import json as jsons

    from veil.data.check import check

    result = check(name, root, _options(option), sheet=24 if sheet else 6)
    if json:
        print(jsons.dumps(result.as_dict(), indent=1))
    else:
        out.print("\n".join(result.lines(out.width)), markup=False)
        if result.problem:
            _say(result.problem)
    if sheet and result.sheet:
        save_picture(result.sheet, Path(sheet))
    return result.exit_code


@data_app.command
def show(
    name: Literal["synthetic"],
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"])] = ".",
    seed: int = 0,
) -> int:
    """Write a contact sheet and a video of the synthetic world.

    Parameters
    ----------
    name
        The world to look at.
    output
        The folder to write to.
    seed
        Another seed is another world.
    """
    from veil.data import synthetic

    for path in synthetic.show(Path(output), seed=seed):
        out.print(str(path), markup=False)
    return 0


features_app = App(name="features", help="Features of videos on disk: extract, anonymize and search them.")
app.command(features_app)


@features_app.command(name="extract")
def extract_features(
    inputs: tuple[str, ...] = (),
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"])],
    encoder: str = "veil",
    weights: str | None = None,
    labels: str | None = None,
    data: str | None = None,
    root: str | None = None,
    option: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    stride: int | None = None,
    stills: int = 10,
    dtype: Literal["float16", "float32"] = "float16",
    batch: int = 32,
    workers: int | None = None,
    device: str = "cpu",
    ray: Annotated[tuple[str, ...] | None, Parameter(consume_multiple=True, negative="")] = None,
    gpus_per_worker: float = 0,
    resume: Flag = False,
) -> int:
    """Add the features of videos to a store, which is made where there is none.

    A video that cannot be read fails alone: the others are kept, and the exit code is 2. What is done is kept when the
    command is killed.

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
        As what numbers are kept.
    batch
        Clips that are encoded at once.
    workers
        Processes, each with an encoder of its own [1, or one for each core of the cluster].
    device
        cpu, cuda, cuda:1, …
    ray
        Share the work out over a Ray cluster: its address, or none for the one that this machine is part of; "local"
        starts one here. Its machines must see the videos under the same names.
    gpus_per_worker
        GPUs of the cluster for each worker; 0.25 lets four share one.
    resume
        Skip videos that the store has already, instead of refusing them.
    """
    from veil.apps.features import extract_videos

    with _bar("extracting", "videos") as progress:
        result = extract_videos(
            inputs,
            output,
            data=data,
            root=root,
            options=_options(option),
            encoder=encoder,
            weights=weights,
            labels=labels,
            stride=stride,
            stills=stills,
            dtype=dtype,
            batch=batch,
            workers=workers,
            device=device,
            ray=_address(ray),
            gpus_per_worker=gpus_per_worker,
            resume=resume,
            progress=progress,
        )
    said, *failures = result.sentences()
    out.print(said, markup=False)
    if failures:
        _say("\n".join(failures))
    return 2 if failures else 0


@features_app.command(name="anonymize")
def anonymize_features(
    store: str,
    /,
    *,
    with_: Annotated[str, Parameter(name="--with")],
    output: Annotated[str, Parameter(name=["--output", "-o"])],
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
    from veil.apps.features import anonymize_store

    with _bar("anonymizing", "videos") as progress:
        result = anonymize_store(
            store, with_, output, device=device, keep_private=keep_private, progress=progress
        )
    out.print("\n".join(result.sentences()), markup=False)
    return 0


@features_app.command(name="search")
def search_features(
    store: str,
    /,
    *,
    like: str,
    top: int = 10,
    with_: Annotated[str | None, Parameter(name="--with")] = None,
    encoder: str | None = None,
    weights: str | None = None,
    split: str | None = None,
    action: str | None = None,
    person: str | None = None,
    group: Annotated[tuple[str, ...], Parameter(negative="")] = (),
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
    import json as jsons

    from rich.text import Text

    from veil.apps.features import search_store

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
        groups=dict(map(_pair, group)),
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


@features_app.command(name="audit")
def audit_features(
    store: str,
    /,
    *,
    after: str | None = None,
    target: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    seed: int = 0,
    device: str = "cpu",
    output: Annotated[str | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Attack features: what fresh probes learn of them (who it is, what can be seen), and what they are good for.

    Parameters
    ----------
    store
        Features as the encoder made them, with labels and splits.
    after
        The same videos' features after `veil features anonymize`; without it the raw features are judged.
    target
        What to ask: action, identity, attributes or a group such as gender; may be given several times [all that is known].
    seed
        Of the probes.
    device
        cpu or cuda.
    output
        A file for the answers, as JSON.
    """
    import json as jsons

    from rich.table import Table

    from veil.audit.latents import compared
    from veil.features.store import Store
    from veil.media.draft import Draft

    before = Store.open(store).bank().to(device)
    later = None if after is None else Store.open(after).bank().to(device)
    asked = compared(before, later, target, seed=seed)
    table = Table("asked", "by", "knows", "finds", "chance", "in raw", "left of it", box=None)
    rows = []
    for one in asked:
        score, left = one.score, one.left
        numbers = (score.value, score.chance, one.raw, left)
        table.add_row(one.target, one.by, one.knows, *("" if n is None else f"{n:.3f}" for n in numbers))
        names = ("value", "chance", "raw", "left")
        told = {"target": one.target, "by": one.by, "knows": one.knows, "metric": score.metric, "n": score.n}
        rows.append({**told, **dict(zip(names, numbers, strict=True))})
    out.print(table)
    if output is not None:
        draft = Draft(Path(output), overwrite=True)
        draft.path.write_text(jsons.dumps(rows, indent=1))
        draft.publish()
    return 0


@features_app.command(name="info")
def describe_features(store: str, /, *, json: Flag = False) -> int:
    """Say whose features a store holds, how many, and what is known of the videos.

    Parameters
    ----------
    store
        The folder of the store.
    json
        Answer in JSON.
    """
    import json as jsons

    from veil.apps.features import describe_store

    told = describe_store(store)
    if json:
        print(jsons.dumps(told.values, indent=1))
    else:
        out.print("\n".join(told.lines), markup=False)
    return 0


template_app = App(name="template", help="Templates: what is to be hidden, pointed at in pictures.")
app.command(template_app)


@template_app.command(name="add")
def add_template(
    name: str,
    picture: str,
    /,
    *,
    at: Annotated[tuple[str, ...], Parameter(negative="", allow_leading_hyphen=True)],
    extend: Flag = False,
    overwrite: Flag = False,
    descriptor: str = "lite0",
) -> int:
    """Make a template of something in a picture: what looks like it can be hidden in any video.

    Parameters
    ----------
    name
        What to call it: small letters, digits, - and _.
    picture
        A picture that shows it.
    at
        X,Y: a pixel of the picture that is on it, counted from the top left; may be given several times.
    extend
        Add these clicks to a template that exists: another picture of the same thing.
    overwrite
        Replace a template that exists.
    descriptor
        What compares templates with videos: lite0, which comes with Veil, or one of dino-s8, dino-s16, dinov2-s14 and
        dinov3-s16, which need weights.
    """
    from veil.people import descriptors as dense
    from veil.people import templates

    made = templates.add(
        name, picture, [*map(_point, at)], dense.descriptor(descriptor), extend=extend, overwrite=overwrite
    )
    clicks, files = len(made.origins), len({origin.checksum for origin in made.origins})
    counted = f"{clicks} click{'s' * (clicks > 1)} in {files} picture{'s' * (files > 1)}"
    out.print(f"{name}: {counted}, compared by {made.descriptor}.", markup=False)
    return 0


@template_app.command(name="list")
def list_templates() -> int:
    """Show the templates there are, the groups of them, and what is found without any."""
    from rich.text import Text

    from veil.people import templates
    from veil.people.parts import GROUPS

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("template", "from", "descriptor", "clicks", "pictures"):
        table.add_column(column)
    for name, whose, descriptor, clicks, pictures in templates.table():
        table.add_row(name, whose, descriptor, str(clicks), Text(pictures))
    out.print(table)
    known = {*templates.names()}
    out.print("\n[bold]groups of templates[/]")
    for name, members in templates.GROUPS.items():
        out.print(f"{name:<9} {', '.join(member for member in members if member in known)}", markup=False)
    out.print("\n[bold]found by the part network, which needs no template and comes first[/]")
    out.print(", ".join(GROUPS), markup=False)
    return 0


@template_app.command(name="show")
def show_template(
    name: str,
    pictures: tuple[str, ...] = (),
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"])],
    descriptor: str | None = None,
    overwrite: Flag = False,
) -> int:
    """Draw what a template matches: bright where a picture looks like it, a line around what would be hidden.

    Parameters
    ----------
    name
        A template, or one of hair, face, skin, clothes, body and person, which the part network finds.
    pictures
        Pictures to look for it in [its own where it is built in, else the photograph of an astronaut].
    output
        The picture to write.
    descriptor
        What compares [what the template was made with].
    overwrite
        Replace a picture that exists.
    """
    from veil.apps.report import draw_sheet
    from veil.people import templates

    if Path(output).exists() and not overwrite:
        raise VeilError(f"{output} exists already: name another picture, or pass --overwrite.")
    save_picture(draw_sheet(templates.pictures(name, pictures, descriptor), 1), Path(output))
    out.print(output, markup=False)
    return 0


@template_app.command(name="remove")
def remove_template(name: str, /) -> int:
    """Forget a template of your own.

    Parameters
    ----------
    name
        One of the templates that `veil template list` calls own.
    """
    from veil.people import templates

    templates.remove(name)
    out.print(f"{name} is removed.", markup=False)
    return 0


def _point(text: str) -> tuple[float, float]:
    """X,Y as two numbers."""
    try:
        x, y = map(float, text.split(","))
    except ValueError:
        raise VeilError(
            f"the click '{text}' is not of the form X,Y: give two numbers, such as 120,85."
        ) from None
    return x, y


def _pair(text: str) -> tuple[str, str]:
    """KEY=VALUE as two texts."""
    key, equals, value = text.partition("=")
    if not equals:
        raise VeilError(f"option '{text}' is not of the form KEY=VALUE.")
    return key, value


def _options(texts: tuple[str, ...]) -> dict[str, str | int]:
    """KEY=VALUE as a reader of data takes it: the value as a number or a truth where it is one."""
    truths = {"true": True, "false": False}
    return {
        key: int(value) if re.fullmatch("-?[0-9]{1,19}", value) else truths.get(value, value)
        for key, value in map(_pair, texts)
    }


@app.command
def serve(
    *,
    port: int = 7860,
    share_on_network: Flag = False,
    password_file: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    most_megabytes: int = 500,
    most_minutes: float = 10,
    keep_minutes: float = 30,
    at_once: int = 1,
) -> int:
    """Serve a web page on which videos are anonymized: to this machine alone, and nothing leaves it.

    Parameters
    ----------
    port
        Where it listens; 0 is any that is free.
    share_on_network
        Let others in, too. They need the password that VEIL_PASSWORD or --password-file holds.
    password_file
        A file whose first line is the password.
    certificate
        PEM file of a certificate, so that the page is served by HTTPS; needs --key.
    key
        PEM file of the certificate's key.
    most_megabytes
        Of an upload.
    most_minutes
        Of a video.
    keep_minutes
        How long results are kept; uploads are deleted when the work on them ends.
    at_once
        Videos that are worked on at the same time; others wait.
    """
    from veil.apps.serve.app import read_password
    from veil.apps.serve.app import serve as run_server
    from veil.apps.serve.uploads import Limits

    limits = Limits(
        bytes=most_megabytes * 2**20, seconds=60 * most_minutes, keep=60 * keep_minutes, running=at_once
    )
    run_server(
        port=port,
        share_on_network=share_on_network,
        password=read_password(password_file),
        certificate=Path(certificate) if certificate else None,
        key=Path(key) if key else None,
        limits=limits,
        say=lambda words: out.print(words, markup=False),
    )
    return 0


@app.command
def demo(
    *, output: Annotated[str, Parameter(name=["--output", "-o"])] = "veil-demo", method: str = DEFAULT
) -> int:
    """Anonymize the sample that comes with Veil: a camera that moves over a photograph of an astronaut.

    Parameters
    ----------
    output
        The folder to write to; what an earlier demo left there is replaced.
    method
        As for `veil anonymize`.
    """
    from veil.apps.demo import run_demo

    with _bar("anonymizing") as progress:
        result = run_demo(Path(output), make(method), progress)
    out.print(result.report.sentence(), markup=False)
    out.print(f"video:        {result.video}\nside by side: {result.picture}", markup=False)
    return 0


@app.command
def doctor() -> int:
    """Say what is installed, which weights and devices are at hand, what is missing and how to get it."""
    from veil.apps.doctor import examine

    healthy = True
    for check in examine():
        mark = {"good": "[green]✓[/]", "optional": "[yellow]-[/]", "bad": "[red]✗[/]"}[check.state]
        out.print(f"{mark} {check.what:<24} ", end="")
        out.print(check.says, markup=False)
        healthy &= check.state != "bad"
    return 0 if healthy else 2


@app.command
def fetch(name: str, /) -> int:
    """Download weights from their hub, check them, and keep them for this user.

    Parameters
    ----------
    name
        One of the weights that `veil doctor` lists.
    """
    if name not in weights.WEIGHTS:
        raise VeilError(f"there are no weights '{name}': choose one of {', '.join(weights.WEIGHTS)}.")
    out.print(str(weights.fetch(name)), markup=False)
    return 0


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 when all went well, 2 when the input was bad."""
    stopped: list[int] = []

    def stop(number: int, _: object) -> None:
        stopped.append(number)
        sys.exit(128 + number)  # leaves every `with` on the way out, so that drafts are removed

    for name in ("SIGTERM", "SIGHUP"):
        if number := getattr(signal, name, None):
            signal.signal(number, stop)
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (VeilError, CycloptsError) as error:
        _say(error)
        code = 2
    except KeyboardInterrupt as interrupt:
        _say(" ".join(["interrupted; nothing half-written was left.", *interrupt.args]))
        code = 130
    except BrokenPipeError:  # whoever read the answer has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except OSError as error:
        if error.filename is None:
            raise
        _say(f"{error.filename} cannot be used: {error.strerror}; name another place.")
        code = 2
    except Exception:
        if not stopped:
            raise
        code = 128 + stopped[0]  # a library made another error of the exit that it was interrupted by
    sys.exit(code)


def _chosen(method: str | None, with_: str | None, region: str | None) -> str:
    """The method that --method, --with or neither of them names."""
    if method and with_:
        raise VeilError(f"--method {method} and --with {with_} say two things: give one of them.")
    method = _learned(with_) if with_ else method or DEFAULT
    if region and method.partition(":")[0] == "selective":
        raise VeilError(
            f"--region {region} is for filters: name what to hide with --hide, or choose one, such as --method blacken."
        )
    return method


def _learned(place: str) -> str:
    """The folder of a run, or the file of an exported model, as a method."""
    if not place.lower().endswith(".onnx") and not (Path(place) / "run.json").is_file():
        raise VeilError(f"--with {place}: that is no folder of a run; `veil train RECIPE -o RUN` makes one.")
    return str(Path(place).absolute())


def _address(ray: tuple[str, ...] | None) -> str | None:
    """The cluster that --ray names, with an address or without; None: there is no --ray."""
    if ray and len(ray) > 1:
        raise VeilError(f"--ray takes one address, and {ray[1]} is one too many: name inputs before --ray.")
    return None if ray is None else (*ray, "auto")[0]


def _names(text: str | None) -> str | None:
    """Names with commas between them as methods take them, with a plus."""
    if text is None:
        return None
    names = [name.strip() for name in text.replace("+", ",").split(",")]
    if not all(names):
        raise VeilError(
            f"--hide '{text}' leaves a name empty: write names with commas between, such as hair,hand."
        )
    return "+".join(names)


def _beside(place: str | None, suffix: str, target: Path, root: str | None) -> Path | None:
    """Where the report, preview or explanation of a video goes: as named, or its mirror in the named folder."""
    if place is None or root is None:
        return Path(place) if place else None
    mirror = Path(place) / target.relative_to(root)
    return mirror.with_name(mirror.name + suffix)


def _command() -> str:
    """The command that was given, as one would write it again."""
    return shlex.join(["veil", *sys.argv[1:]])


class _Bar(Protocol):
    def __call__(self, done: int, total: int | None, words: str | None = None) -> None: ...


@contextmanager
def _bar(words: str, unit: str = "frames") -> Iterator[_Bar]:
    """A progress bar on the terminal; yields what is called with how much is done, of how much, and of what."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(
        *columns, TimeRemainingColumn(), console=err, transient=True, disable=not err.is_terminal
    ) as bar:
        task = bar.add_task(words, total=None, rate="")
        said = [words]

        def show(done: int, total: int | None, words: str | None = None) -> None:
            if words and words != said[0]:
                said[0] = words
                bar.reset(task, description=words)
            elapsed = bar.tasks[0].elapsed or 0
            rate = f"{done / elapsed:.0f} {unit}/s" if elapsed and unit else ""
            bar.update(task, completed=done, total=total, rate=rate)

        yield show


def _say(error: object) -> None:
    err.print(f"veil: {error}", markup=False, style="red" if err.is_terminal else None)
