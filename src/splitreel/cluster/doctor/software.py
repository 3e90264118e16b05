"""The software of a node: versions, attention backends, encoders, and where films can be written."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from splitreel.cluster.doctor.context import Context
from splitreel.cluster.doctor.finding import Check, Finding, fail, of_error, ok, skip
from splitreel.config import ATTENTION_BACKENDS, RoleSpec
from splitreel.errors import ConfigError
from splitreel.roles.readiness import backend_error, diffusers_knows, usable_backends

CHECK, NIXL_CHECK = "attention.backend", "transport.nixl"
# What diffusers reads when it is imported; a name that it does not know keeps it from being imported at all.
ENVIRONMENT = "DIFFUSERS_ATTN_BACKEND"


def attention(context: Context) -> Iterator[Finding]:
    """Which attention backends work in this interpreter, and whether those asked for are among them."""
    variable = os.environ.get(ENVIRONMENT)
    with plain_diffusers():
        usable = usable_backends()
        known = not variable or diffusers_knows(variable)
    wrong = False
    if not known:
        wrong = True
        near = difflib.get_close_matches(str(variable), ATTENTION_BACKENDS, n=1)
        yield fail(
            CHECK,
            f"{ENVIRONMENT}: {variable!r} is no attention backend of diffusers, which cannot be imported with it",
            f"{f'Did you mean {near[0]}? ' if near else ''}Unset it, and use attention.backend of the role. Usable there: "
            f"{', '.join(usable)}.",
        )
    asked = [(task, where, name) for task in context.tasks for where, name in asked_backends(task.spec)]
    for task, where, name in asked:
        error = backend_error(name, task.spec)
        if error is not None:
            wrong = True
            words, todo = error
            yield fail(
                CHECK,
                f"{where}: {name} does not run in {sys.executable}, which workers have there: {words}",
                f"{todo} Usable there: {', '.join(usable)}.",
                role=task.worker,
            )
    if not wrong:
        shown = "".join(f"{name} runs for {task.worker}; " for task, _, name in asked)
        yield ok(CHECK, f"{shown}can be imported: {', '.join(usable)}")


@contextlib.contextmanager
def plain_diffusers() -> Iterator[None]:
    """For its import: without the variable that would keep it from being imported if its name is wrong."""
    variable = os.environ.pop(ENVIRONMENT, None)
    try:
        yield
    finally:
        if variable is not None:
            os.environ[ENVIRONMENT] = variable


def asked_backends(spec: RoleSpec) -> list[tuple[str, str]]:
    """Setting and name of each backend that a role asks for by name; native is always there, auto takes what is."""
    parts = {"backend": spec.attention.transformer, "refiner": spec.attention.refiner, "vae": spec.attention.vae}
    found: dict[str, str] = {}
    for part, name in parts.items():
        if name is not None and name not in ("auto", "native", *found.values()):
            found[f"roles.{spec.role}.attention.{part}"] = name
    return list(found.items())


def encoders(context: Context) -> Iterator[Finding]:
    """Whether films can be encoded here."""
    if not context.decodes:
        yield skip("film.encoders", "no role that decodes is here")
        return
    from splitreel.media.target import check_encoders

    try:
        check_encoders()
    except ConfigError as error:
        yield of_error("film.encoders", error)
    else:
        yield ok("film.encoders", "H.264 (libx264) and AAC")


def nixl(context: Context) -> Iterator[Finding]:
    """Whether payloads can travel as asked for, in the interpreter that workers have here."""
    asked = [task.worker for task in context.tasks if task.spec.transport == "nixl"]
    if not asked:
        yield skip(NIXL_CHECK, "not asked for: payloads go through Ray's object store")
        return
    from splitreel.cluster.direct import REMEDY, try_agent

    try:
        version = try_agent()
    except Exception as error:
        shown = f"nixl does not work in {sys.executable}, which {', '.join(asked)} would have: {type(error).__name__}: {error}"
        yield fail(NIXL_CHECK, shown, REMEDY, role=asked[0])
    else:
        yield ok(NIXL_CHECK, f"nixl {version} in {sys.executable}, UCX")


def output(folder: Path) -> Iterator[Finding]:
    """Whether films can be written to a folder, which need not be there yet."""
    from splitreel.media.target import check_output

    try:
        check_output(folder / "film.mp4")
    except ConfigError as error:
        yield of_error("output.writable", error)
    else:
        yield ok("output.writable", f"{folder} can be written")


CHECKS: tuple[tuple[str, Check], ...] = (("film.encoders", encoders), (NIXL_CHECK, nixl))
LAST: tuple[tuple[str, Check], ...] = ((CHECK, attention),)
