"""`veil serve`: start the server, for this machine alone or with a password for the network."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from veil.apps.serve.jobs import COMMAND
from veil.apps.serve.sessions import MIN_PASSWORD
from veil.apps.serve.site import ServerSettings, Site
from veil.apps.serve.uploads import Limits
from veil.core import VeilError, io_errors, missing_extra

PACKAGES = ("starlette", "uvicorn")  # of the extra `ui`


def serve(
    *,
    port: int = 7860,
    share_on_network: bool = False,
    password: str | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    limits: Limits | None = None,
    command: Sequence[str] = COMMAND,
    log: Callable[[str], None] = print,
) -> None:
    """Serve the web app until it is interrupted: to this machine alone, or with a password to the network."""
    if share_on_network and (password is None or len(password) < MIN_PASSWORD):
        raise VeilError(
            f"--share-on-network needs a password of {MIN_PASSWORD} characters or more: set VEIL_PASSWORD, "
            "or pass --password-file FILE.",
            code="password-missing",
        )
    limits = limits or Limits()
    if min(limits.bytes, limits.seconds, limits.keep, limits.running) <= 0:
        raise VeilError("a limit is not above 0: raise it.", code="limit-not-positive")
    if bool(certificate) != bool(key):
        raise VeilError(
            "--certificate and --key need each other: pass both, or none.", code="certificate-without-key"
        )
    for path in (certificate, key):
        if path and not path.is_file():
            raise VeilError(
                f"{path} does not exist: pass the files of a certificate and its key.",
                code="certificate-missing",
            )
    require_packages()
    listening = _listen("0.0.0.0" if share_on_network else "127.0.0.1", port)
    clear_leftovers()
    root = Path(tempfile.mkdtemp(prefix=f"veil-serve-{os.getpid()}-"))
    settings = ServerSettings(limits, password if share_on_network else None, bool(certificate), command)
    site = Site(settings, root)
    try:
        import uvicorn

        from veil.apps.serve.routes import create_app

        config = uvicorn.Config(
            create_app(site),
            access_log=False,  # addresses name jobs
            log_level="critical",
            server_header=False,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            timeout_graceful_shutdown=2,
        )
        host = socket.gethostname() if share_on_network else "127.0.0.1"
        log(
            f"Veil is at {'https' if certificate else 'http'}://{host}:{listening.getsockname()[1]}  (Ctrl-C ends it)"
        )
        if share_on_network and not certificate:
            log(
                "Without --certificate, videos and the password cross the network unencrypted: use a network you trust."
            )
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        site.close()
        listening.close()


def require_packages() -> None:
    """Refuse to start without the packages of the extra `ui`."""
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        raise missing_extra(f"the web app needs {missing[0]}", "ui")


def read_password(file: str | None = None) -> str | None:
    """The password from a file's first line or the environment; never an argument, which other users could see."""
    if file is None:
        return os.environ.get("VEIL_PASSWORD") or None
    with io_errors(file, advice="pass a text file", code="password-unreadable", errors=(OSError, ValueError)):
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    return lines[0].strip() if lines else None


def clear_leftovers() -> None:
    """Delete the files of servers that were killed."""
    for folder in Path(tempfile.gettempdir()).glob("veil-serve-*-*"):
        owner = folder.name.split("-")[2]
        with suppress(OSError):
            if owner.isdecimal() and folder.stat().st_uid == os.getuid() and not folder.is_symlink():
                try:
                    os.kill(int(owner), 0)
                except ProcessLookupError:
                    shutil.rmtree(folder, ignore_errors=True)


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # connections during start-up wait
    except (OSError, OverflowError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or "it is not a port"
        raise VeilError(
            f"port {port} cannot be used ({why}): choose another with --port.", code="port-unusable"
        ) from error
    return listening
