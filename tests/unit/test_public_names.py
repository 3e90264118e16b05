"""The public names, pinned: adding or losing one is a decision."""

import ast
import subprocess
import sys
from pathlib import Path

import splitreel

PUBLIC = [
    "AdapterError",
    "AudioReference",
    "CheckpointError",
    "Client",
    "ClusterError",
    "ClusterUnreachable",
    "Config",
    "ConfigError",
    "Effective",
    "GenerateRequest",
    "GenerateResult",
    "GeometryMismatch",
    "ImageReference",
    "HopTiming",
    "IncompleteCheckpoint",
    "InvalidPayload",
    "InvalidRequest",
    "JobHandle",
    "LoraInfo",
    "LoraReceipt",
    "LoraUse",
    "MissingComponent",
    "PlacementError",
    "QueueFull",
    "RequestCancelled",
    "RequestError",
    "RequestTimeout",
    "SchemaMismatch",
    "Session",
    "Sound",
    "SplitreelError",
    "StageError",
    "StageTiming",
    "Timings",
    "VersionMismatch",
    "VideoReference",
    "WireError",
    "WorkerLost",
    "WorkerNotReady",
    "__version__",
    "load_config",
]


def test_public_names() -> None:
    assert sorted(splitreel.__all__) == sorted(PUBLIC)
    assert all(hasattr(splitreel, name) for name in PUBLIC)


def test_every_name_has_a_module_and_an_import_for_type_checkers() -> None:
    assert sorted([*splitreel._MODULES, "__version__"]) == sorted(PUBLIC)
    tree = ast.parse(Path(splitreel.__file__).read_text())
    imported = {
        alias.name: node.module
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == splitreel._MODULES


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, splitreel, splitreel.serve.cli; splitreel.load_config; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert not {"torch", "diffusers", "transformers", "ray", "fastapi", "sqlalchemy"} & set(loaded.split())


def test_a_worker_imports_the_model_libraries_only_with_its_model() -> None:
    """diffusers costs several seconds of CPU in every worker process, also in those that run no model of its."""
    code = "import sys, splitreel.cluster.actor; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert not {"diffusers", "transformers", "torchao"} & set(loaded.split())
