"""The files of each role on its node: whole, or to be had from the hub; and whether they start without it."""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from splitreel.cluster.doctor.context import Context, RoleTask
from splitreel.cluster.doctor.finding import Check, Finding, fail, of_error, ok, skip
from splitreel.cluster.doctor.software import plain_diffusers
from splitreel.cluster.replies import NodeFacts, WorkerFacts
from splitreel.errors import CheckpointError
from splitreel.roles.readiness import Files, HubAnswer, ask_hub, cache_room, is_offline, look_at_files

if TYPE_CHECKING:
    from splitreel.roles.definition import ModelDefinition

GB = 1_000_000_000
IMPORTS = "software.imports"


def read_model(context: Context) -> ModelDefinition:
    """The model that was handed in, by the code of this machine. Raises whatever importing it raises."""
    module, _, name = context.model.partition(":")
    with plain_diffusers():
        made: ModelDefinition = getattr(importlib.import_module(module), name)()
    return made


def imports(context: Context) -> Iterator[Finding]:
    """Whether the model and what it is made of can be imported by this interpreter at all."""
    began = time.monotonic()
    try:
        name = read_model(context).name
    except Exception as error:
        yield of_error(
            IMPORTS, error, f"Mend the installation of {sys.executable} there: pip install -c constraints.txt ."
        )
    else:
        yield ok(IMPORTS, f"{name} is imported by {sys.executable} in {time.monotonic() - began:.1f} s")


def _model_or_skip(check: str, context: Context) -> ModelDefinition | Finding:
    try:
        return read_model(context)
    except Exception:
        return skip(check, f"not looked at: see {IMPORTS}")


def checkpoint(context: Context) -> Iterator[Finding]:
    """Files, hub and offline readiness of every role here. A repository is asked once."""
    model = _model_or_skip("checkpoint.complete", context)
    if isinstance(model, Finding):
        yield model
        return
    ask = functools.cache(ask_hub)
    for task in context.tasks:
        try:
            files = look_at_files(model, task.spec)
        except CheckpointError as error:
            yield of_error("checkpoint.complete", error, role=task.worker)
            continue
        if not files.hub:
            yield from _folder(task, files)
        elif files.whole:
            yield _whole(task, files)
            yield skip("hub.token", "not needed: the files are here", role=task.worker)
            yield ok("hub.offline", f"starts without the hub, from its cache of {files.hub}", role=task.worker)
        elif is_offline():
            yield from _offline(task, files)
        else:
            yield from _from_hub(task, files, ask(files, task.spec.revision))


def _whole(task: RoleTask, files: Files) -> Finding:
    assert files.checkpoint is not None
    names = ", ".join(need.name for need in files.components)
    return ok("checkpoint.complete", f"{names}: whole in {files.checkpoint.root}", role=task.worker)


def _folder(task: RoleTask, files: Files) -> Iterator[Finding]:
    if files.whole:
        yield _whole(task, files)
        yield ok("hub.offline", "starts without the hub, from a directory", role=task.worker)
    for problem in files.problems:
        yield of_error("checkpoint.complete", problem, "Copy or download it again on that node.", role=task.worker)


def _offline(task: RoleTask, files: Files) -> Iterator[Finding]:
    remedy = "Start once online on that node, or copy what is missing from another machine's cache."
    if files.checkpoint is None:
        yield fail("checkpoint.complete", f"the hub's cache holds nothing of {files.hub}", remedy, role=task.worker)
    for problem in files.problems:
        yield of_error("checkpoint.complete", problem, remedy, role=task.worker)
    yield fail(
        "hub.offline",
        f"HF_HUB_OFFLINE is set, and the cache of {files.hub} lacks files of this role",
        "Unset HF_HUB_OFFLINE for the first start.",
        role=task.worker,
    )


def _from_hub(task: RoleTask, files: Files, answer: HubAnswer) -> Iterator[Finding]:
    token = "a token is set (never shown)" if answer.has_token else "no token"
    if answer.refused:
        yield fail(
            "hub.token",
            f"{token}, and the hub refuses {files.hub}: {answer.error}",
            "Accept the model's terms on the hub with the token's account, or use the token of one that has."
            if answer.has_token
            else "Set HF_TOKEN where you run splitreel (workers get it), or log in on that node: hf auth login.",
            role=task.worker,
        )
    else:
        needed = "" if answer.error else "; the hub gives the files out"
        yield ok("hub.token", f"{token}{needed}", role=task.worker)
    if answer.error:
        lacking = "lacks files of this role" if files.checkpoint is not None else f"holds nothing of {files.hub}"
        first = f" ({files.problems[0].message})" if files.problems else ""
        remedy = "See hub.token." if answer.refused else "See that this node reaches the hub, or copy the files there."
        yield fail(
            "checkpoint.complete",
            f"the cache {lacking}{first}, and the hub does not give them: {answer.error}",
            remedy,
            role=task.worker,
        )
    else:
        yield from _to_fetch(task, files, answer.to_fetch)
    yield skip("hub.offline", "the first start needs the hub", role=task.worker)


def _to_fetch(task: RoleTask, files: Files, size: int | None) -> Iterator[Finding]:
    folder, free = cache_room()
    amount = f"{size / GB:.1f} GB" if size is not None else "an amount that the hub does not tell"
    yield ok("checkpoint.complete", f"the first start fetches {amount} of {files.hub} to {folder}", role=task.worker)
    if size is not None and size > free:
        yield fail(
            "disk.model",
            f"{size / GB:.1f} GB are to be fetched to {folder}, where {free / GB:.1f} GB are free",
            "Free space there, or set HF_HUB_CACHE on that node to a larger disk.",
            role=task.worker,
        )


def facts(context: Context) -> list[WorkerFacts]:
    """What workers would report before they load, of those whose files are here; nothing is downloaded.

    A worker to which Ray will give whole GPUs has memory of its own, while this process sees the first GPU only.
    """
    with plain_diffusers():
        from splitreel.cluster.host import WorkerHost  # imports diffusers
    model = read_model(context)
    found = []
    for task in context.tasks:
        try:
            if not look_at_files(model, task.spec).whole:
                continue
        except CheckpointError:
            continue
        host = WorkerHost(model, task.spec, task.worker, NodeFacts(context.address, context.address))
        reply = host.prepare()  # an error of the device is a finding of gpu.present
        if isinstance(reply.value, WorkerFacts):
            own = task.gpus >= 1
            found.append(replace(reply.value, memory_id=f"GPU of {task.worker}") if own else reply.value)
    return found


def schema(context: Context) -> Iterator[Finding]:
    """Whether payloads have the same version here as on the driver."""
    model = _model_or_skip("versions.wire", context)
    if isinstance(model, Finding):
        yield model
        return
    own = model.schema
    shown, wanted = (".".join(map(str, version)) for version in (own, context.schema))
    if own[0] != context.schema[0]:
        yield fail(
            "versions.wire",
            f"payloads are of version {shown} here and {wanted} on the driver",
            "Install the same splitreel on every machine.",
        )
    else:
        yield ok("versions.wire", f"payloads are of version {shown}")


CHECKS: tuple[tuple[str, Check], ...] = (
    (IMPORTS, imports),
    ("checkpoint.complete", checkpoint),
    ("versions.wire", schema),
)
