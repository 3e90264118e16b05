"""The public names, pinned: adding or losing one is a decision."""

import splitreel

PUBLIC = [
    "AudioReference",
    "CheckpointError",
    "ClusterError",
    "ClusterUnreachable",
    "Config",
    "ConfigError",
    "Effective",
    "GenerateRequest",
    "GenerateResult",
    "GeometryMismatch",
    "ImageReference",
    "IncompleteCheckpoint",
    "InvalidPayload",
    "InvalidRequest",
    "JobHandle",
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
