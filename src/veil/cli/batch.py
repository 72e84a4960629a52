"""`veil batch`: anonymize many videos at once, on this machine or on a cluster."""

from __future__ import annotations

from veil.cli.arguments import (
    AnonymizerOptions,
    Flag,
    Output,
    Ray,
    chosen_method,
    joined_names,
    ray_address,
)
from veil.cli.terminal import print_sentences, progress_bar
from veil.media.video import Codec


def batch(
    inputs: list[str],
    /,
    *,
    output: Output,
    hiding: AnonymizerOptions = AnonymizerOptions(),
    codec: Codec = "h264",
    quality: int | None = None,
    require_match: Flag = False,
    salvage: Flag = False,
    workers: int | None = None,
    ray: Ray = None,
    gpus_per_worker: float = 0,
    manifest: str | None = None,
    overwrite: Flag = False,
    verify: Flag = False,
) -> int:
    """Anonymize many videos at once; interrupt it at any time, and give the same command again to continue.

    A video that cannot be anonymized fails alone: it is named, the others are written, and the exit code is 2. The
    result of each, with checksums, is in manifest.jsonl in the output folder; finished videos are not done again.

    Parameters
    ----------
    inputs
        Videos, pictures, folders, patterns such as 'in/**/*.mp4' (in quotes), or URLs of these, such as s3://bucket/in.
    output
        The folder to write to, or its URL; it mirrors the folders of the inputs.
    codec
        ffv1 is lossless and makes .mkv files.
    quality
        Constant rate factor: lower is better and larger [23 for h264, 28 for h265].
    require_match
        Refuse videos in which nothing to hide is found.
    salvage
        Where frames of a damaged video cannot be decoded, go on without them instead of refusing the video.
    workers
        Videos at once [one for each core of this machine, or of the cluster].
    ray
        Distribute the work over a Ray cluster: its address, or none for the one that this machine is part of; "local"
        starts one here.
    gpus_per_worker
        GPUs of the cluster for each worker; 0.25 lets four share one.
    manifest
        Another file than manifest.jsonl in the output folder; needed where that is a URL.
    overwrite
        Replace outputs that are not of this batch, or were made with other options.
    verify
        Read finished outputs and compare checksums, instead of trusting sizes and times.
    """
    from veil.apps.batch import anonymize_videos
    from veil.apps.worker import BatchOptions

    options = BatchOptions(
        method=chosen_method(hiding.method, hiding.with_, hiding.region),
        region=hiding.region,
        hide=joined_names(hiding.hide),
        also=joined_names(hiding.also),
        audio=hiding.audio,
        codec=codec,
        quality=quality,
        require_match=require_match,
        salvage=salvage,
    )
    with progress_bar("anonymizing", "MB") as progress:
        result = anonymize_videos(
            inputs,
            output,
            options,
            workers=workers,
            ray=ray_address(ray),
            gpus_per_worker=gpus_per_worker,
            manifest=manifest,
            overwrite=overwrite,
            verify=verify,
            progress=progress,
        )
    return print_sentences(result.sentences())
