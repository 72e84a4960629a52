"""Imports point only up this list, and a filter runs without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import veil

ORDER = [
    "core",
    "metrics",
    "draft",
    "config",
    "fit",
    "losses",
    "run",
    "recipe",
    "video",
    "nn.weights",
    "nn.onnx",
    "nn.flow",
    "nn.tracks",
    "nn.parts",
    "nn.partnet",
    "nn.dense",
    "templates",
    "nn.people",
    "nn.faces",
    "nn.bodies",
    "nn.image",
    "nn.video",
    "nn.encoders",
    "nn.kernel",
    "nn.unet",
    "data.sample",
    "data.labels",
    "data.listing",
    "data.splits",
    "data.frames",
    "data.augment",
    "data.clips",
    "data.attributes",
    "data.untrimmed",
    "data.synthetic_motion",
    "data.synthetic_render",
    "data.synthetic_people",
    "data.synthetic_places",
    "data.synthetic_scenes",
    "data.synthetic_scripts",
    "data.synthetic_world",
    "data.synthetic",
    "data.features",
    "data.store",
    "data",
    "data.check",
    "nn.encoder_training",
    "tasks.sequence",
    "tasks.action",
    "tasks.detection",
    "tasks.anomaly",
    "tasks",
    "methods.filters",
    "methods.noise",
    "methods.selective",
    "methods.redraw",
    "methods.builtin",
    "methods.stage",
    "methods.spact",
    "methods.penalty",
    "methods.tedspad",
    "methods.adversarial",
    "methods.bdq",
    "methods.elr",
    "methods.stprivacy",
    "methods.noisy",
    "methods.everyone",
    "methods.learned",
    "methods.erase",
    "methods.adapter",
    "methods.splavu",
    "methods.exported",
    "methods",
    "audit.result",
    "audit.findings",
    "audit.page",
    "audit.report",
    "audit.identify",
    "audit.footage",
    "audit.recognize",
    "audit.restore",
    "audit.suites",
    "audit.trial",
    "audit.keeping",
    "audit.judge",
    "audit.ask",
    "audit.latents",
    "audit",
    "train",
    "report",
    "explain",
    "pipeline",
    "files",
    "storage",
    "cluster",
    "worker",
    "batch",
    "features",
    "demo",
    "outlets",
    "live",
    "export",
    "serve.uploads",
    "serve.jobs",
    "serve.work",
    "serve.app",
    "serve",
    "doctor",
    "cli",
    "__main__",
]
SOURCE = Path(veil.__file__).parent


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """The modules of veil that a file imports, as they are named in ORDER."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "veil":
            package = node.module.removeprefix("veil").removeprefix(".")
            for alias in node.names:
                module = f"{package}.{alias.name}".removeprefix(".")
                found.add(module if module in ORDER else package)
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("veil.") for alias in node.names}
    return found


def test_imports_point_up():
    files = {name_of(path): path for path in SOURCE.rglob("*.py")}
    modules = {name: path for name, path in files.items() if name not in ("", "nn")}
    assert sorted(modules) == sorted(ORDER)
    for name, path in modules.items():
        wrong = [used for used in imported(path) if used in ORDER and ORDER.index(used) >= ORDER.index(name)]
        assert not wrong, f"{name} imports {wrong}"


def test_anonymizing_with_a_filter_never_loads_torch():
    code = (
        "import sys, veil, veil.cli; list(veil.make('blacken').stream([])); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
