"""`veil serve`: a web app on which videos are anonymized."""

from __future__ import annotations

from pathlib import Path

from veil.cli.arguments import Flag
from veil.cli.terminal import print_result


def serve(
    *,
    port: int = 7860,
    share_on_network: Flag = False,
    password_file: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    max_megabytes: int = 500,
    max_minutes: float = 10,
    keep_minutes: float = 30,
    jobs: int = 1,
) -> int:
    """Serve a web app on which videos are anonymized: to this machine alone, and nothing leaves it.

    Parameters
    ----------
    port
        Where it listens; 0 is any that is free.
    share_on_network
        Let other machines in, too. They need the password that VEIL_PASSWORD or --password-file holds.
    password_file
        A file whose first line is the password.
    certificate
        PEM file of a certificate, so that the web app is served by HTTPS; needs --key.
    key
        PEM file of the certificate's key.
    max_megabytes
        Largest upload.
    max_minutes
        Longest video.
    keep_minutes
        How long results are kept; uploads are deleted when the work on them ends.
    jobs
        Videos that are worked on at the same time; others wait.
    """
    from veil.apps.serve.server import read_password
    from veil.apps.serve.server import serve as run_server
    from veil.apps.serve.uploads import Limits

    limits = Limits(
        bytes=max_megabytes * 2**20, seconds=60 * max_minutes, keep=60 * keep_minutes, running=jobs
    )
    run_server(
        port=port,
        share_on_network=share_on_network,
        password=read_password(password_file),
        certificate=Path(certificate) if certificate else None,
        key=Path(key) if key else None,
        limits=limits,
        log=print_result,
    )
    return 0
