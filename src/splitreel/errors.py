"""Every error a user can meet, in one tree.

    SplitreelError
     ├ ConfigError
     ├ RequestError      InvalidRequest · QueueFull · RequestTimeout · RequestCancelled
     ├ CheckpointError   MissingComponent · IncompleteCheckpoint · GeometryMismatch
     ├ AdapterError
     ├ ClusterError      ClusterUnreachable · PlacementError · VersionMismatch · WorkerNotReady · WorkerLost
     ├ WireError         SchemaMismatch · InvalidPayload
     └ StageError        request id, stage, role, node, remote traceback

A message reads *where: what was expected, what was found. What to do.* All of them pickle with their attributes.
"""

from __future__ import annotations

from typing import Any


class SplitreelError(Exception):
    """Base of everything this package raises on purpose.

    Keyword details (a field name, a node, a file...) become attributes and survive pickling.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __getattr__(self, name: str) -> Any:
        # Only reached when normal lookup fails; `details` itself may be missing while unpickling.
        details: dict[str, Any] = self.__dict__.get("details", {})
        if name in details:
            return details[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(cls: type[SplitreelError], message: str, details: dict[str, Any]) -> SplitreelError:
    return cls(message, **details)


class ConfigError(SplitreelError):
    """A config file, a `--set` override or an environment setting is wrong."""


class RequestError(SplitreelError):
    """One request cannot be served; others are not affected."""


class InvalidRequest(RequestError):
    """The request breaks a rule of the model or names unreadable media. Detail: `field`."""


class QueueFull(RequestError):
    """The bound on admitted requests is reached. Details: `queued`, `limit`."""


class RequestTimeout(RequestError):
    """A deadline passed. Details: `request_id`, `stage`, `seconds`."""


class RequestCancelled(RequestError):
    """The request was cancelled. Details: `request_id`, `stage` and `step` where it stopped."""


class CheckpointError(SplitreelError):
    """The model's files are wrong. Details: `component`, `file`, and `node`, `role` once a worker reports it."""


class MissingComponent(CheckpointError):
    """A component's folder or config is absent or unreadable, or it did not load."""


class IncompleteCheckpoint(CheckpointError):
    """A needed file is absent or shorter than its header says."""


class GeometryMismatch(CheckpointError):
    """Two roles read different geometry, or a payload was made for another one."""


class AdapterError(SplitreelError):
    """A LoRA file cannot be used, or adapters cannot be changed now. Details: `file`, `unmatched`; `node`, `role`."""


class ClusterError(SplitreelError):
    """The cluster cannot run the roles as configured."""


class ClusterUnreachable(ClusterError):
    """No Ray cluster answers at the address."""


class PlacementError(ClusterError):
    """A role's node does not exist or lacks what the role needs."""


class VersionMismatch(ClusterError):
    """Two processes run different versions of what must be equal. Detail: `differences`."""


class WorkerNotReady(ClusterError):
    """A worker did not become ready. Details: `role`, `node`."""


class WorkerLost(ClusterError):
    """A worker died or stopped answering. Details: `role`, `node`."""


class WireError(SplitreelError):
    """A payload cannot be read."""


class SchemaMismatch(WireError):
    """The payload's major schema version is another one."""


class InvalidPayload(WireError):
    """A payload field is missing, unknown, or has the wrong dtype, dims or values. Detail: `field`."""


class StageError(SplitreelError):
    """A stage raised. Details: `request_id`, `stage`, `role`, `node`, `error_type`, `remote_traceback`."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **details)
        if details.get("remote_traceback"):
            self.add_note(f"On the worker:\n{details['remote_traceback']}")
