"""Looking at the nodes of a running cluster, all at once, by a process on each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from splitreel.cluster.answers import as_future, reason
from splitreel.cluster.connection import Connection
from splitreel.cluster.doctor import _carried
from splitreel.cluster.doctor.actor import Examiner
from splitreel.cluster.doctor.context import Context, RoleTask
from splitreel.cluster.doctor.crew import look_at_crew
from splitreel.cluster.doctor.examine import FACTS_S, Examination
from splitreel.cluster.doctor.families import FAMILIES
from splitreel.cluster.doctor.finding import DRIVER, Finding, fail, ok, skip, warn
from splitreel.cluster.doctor.links import LINK_S, End, clock, look_at_links, same_mtu
from splitreel.cluster.doctor.together import look_together
from splitreel.cluster.environment import split, worker_environment
from splitreel.cluster.handshake import differences
from splitreel.cluster.placement import Node, wishes_of
from splitreel.cluster.probe import knock
from splitreel.cluster.replies import VERSIONED, WorkerFacts, versions
from splitreel.errors import ClusterError

START_S = 30.0  # until a process has started and imported torch there: 3 s on two idle cores
KNOCK_S = 4.0


@dataclass
class Post:
    """One process to start: a node, the environment of the workers there that share one, and these workers."""

    node: Node
    tasks: tuple[RoleTask, ...]
    env: dict[str, str]
    actor: Any = None

    @property
    def place(self) -> dict[str, str]:
        """Where findings about it belong."""
        return {"node": self.node.address}


async def look_at_nodes(work: Examination, connection: Connection) -> None:
    """Add what is found on the nodes that roles go to; without a config, on all of them."""
    nodes = connection.nodes()
    work.nodes |= {node.address: node.hostname for node in nodes}
    posts = _posts(work, nodes)
    reached = await asyncio.gather(*(_reach(post, KNOCK_S * work.scale) for post in posts))
    work.findings += [finding for finding in dict.fromkeys(reached) if finding is not None]
    posts = [post for post, problem in zip(posts, reached, strict=True) if problem is None]
    try:
        rows = await asyncio.gather(*(_look(work, post, first) for post, first in _with_first(posts)))
        work.findings += [finding for row in rows for finding in row]
        firsts = [post for post, first in _with_first(posts) if first and post.actor is not None]
        ends = [End(post.node, post.actor) for post in firsts]
        work.findings += same_mtu(work.findings)
        work.findings += await look_at_links(ends, work.deadline, LINK_S * work.scale)
        work.findings += await asyncio.gather(*(clock(end) for end in ends))
        await _facts(work, posts)
        for post in posts:
            if post.actor is not None:
                work.findings += await _family(work, post, "attention")
    finally:
        for post in posts:
            if post.actor is not None:
                ray.kill(post.actor, no_restart=True)


def _posts(work: Examination, nodes: Sequence[Node]) -> list[Post]:
    if work.config is None:
        return [Post(node, (), worker_environment({})) for node in nodes]
    wishes = wishes_of(work.config)
    crew = look_at_crew([wish for each in wishes.values() for wish in each], nodes)
    work.findings += crew.findings
    posts: list[Post] = []
    for role, each in wishes.items():
        env = worker_environment(work.config.roles[role].env)
        for wish in each:
            if wish.worker not in crew.placed:
                continue
            node = crew.placed[wish.worker]
            task = RoleTask(wish.worker, work.config.role_spec(role), wish.gpus)
            shared = next((post for post in posts if post.node.node_id == node.node_id and post.env == env), None)
            if shared is None:
                posts.append(Post(node, (task,), env))
            else:
                shared.tasks = (*shared.tasks, task)
    return posts


def _with_first(posts: Sequence[Post]) -> list[tuple[Post, bool]]:
    """Each with whether it is the first of its node, which looks at the machine as well."""
    seen: set[str] = set()
    found = []
    for post in posts:
        found.append((post, post.node.node_id not in seen))
        seen.add(post.node.node_id)
    return found


async def _reach(post: Post, timeout: float) -> Finding | None:
    try:
        await knock({post.node.hostname: post.node}, timeout)
    except ClusterError as error:
        return fail(
            "node.answers",
            "; ".join(error.details.get("failures", [])) or error.message,
            "Open Ray's ports between this machine and that node (all of them, not the head's alone), or give each node the "
            "address that others reach.",
            **post.place,
        )
    return None


async def _look(work: Examination, post: Post, first: bool) -> list[Finding]:
    """Versions, then the process, then what it sees; whatever fails, the rest of the node is said to be unknown."""
    plain, secrets = split(post.env)
    store = next(
        (row["Resources"].get("object_store_memory", 0) for row in ray.nodes() if row["NodeID"] == post.node.node_id),  # type: ignore[no-untyped-call]
        0,
    )
    context = Context(
        post.node.address,
        post.node.hostname,
        post.tasks,
        work.model,
        work.unified,
        store_bytes=round(store),
        schema=work.schema,
    )
    post.actor = Examiner.options(  # type: ignore[attr-defined]
        scheduling_strategy=NodeAffinitySchedulingStrategy(post.node.node_id, soft=False),
        runtime_env={"env_vars": plain} if plain else None,
    ).remote(context, secrets)
    started, *rows = await asyncio.gather(
        _ask(post.actor.clock.remote(), work.left(START_S)), *([_versions(work, post)] if first else [])
    )
    found = [finding for row in rows for finding in row]
    if isinstance(started, Finding):
        post.actor = None
        return [*found, replace(started, check="node.answers", node=post.node.address)]
    if first:
        found.append(ok("node.answers", f"a process of ours runs there, on {post.node.hostname}", **post.place))
    names = [name for name in FAMILIES if name != "attention" and (first or name not in ("network", "machine"))]
    for name in names:
        found += await _family(work, post, name)
    return found


async def _versions(work: Examination, post: Post) -> list[Finding]:
    """Asked by a function that travels as source: what is there may be another splitreel, or none."""
    plain, _ = split(post.env)
    cloudpickle.register_pickle_by_value(_carried)  # type: ignore[no-untyped-call]
    try:
        task = ray.remote(num_cpus=0, max_retries=0)(_carried.look_around).options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(post.node.node_id, soft=False),
            runtime_env={"env_vars": plain} if plain else None,
        )
        reference = task.remote(VERSIONED)
    finally:
        cloudpickle.unregister_pickle_by_value(_carried)  # type: ignore[no-untyped-call]
    theirs = await _ask(reference, work.left(START_S))
    if isinstance(theirs, Finding):
        return [replace(theirs, check="versions.equal", node=post.node.address)]
    own = versions()
    lines = differences({DRIVER: own, post.node.address: theirs}, tuple(own))
    if lines:
        return [
            fail(
                "versions.equal",
                f"{'; '.join(lines)} (interpreter there: {theirs['executable']})",
                "Install the same on every machine: pip install -c constraints.txt . in the environment that starts Ray.",
                **post.place,
            )
        ]
    shown = ", ".join(f"{name} {version}" for name, version in own.items())
    return [ok("versions.equal", f"{shown}, in {theirs['executable']}", **post.place)]


async def _family(work: Examination, post: Post, name: str) -> list[Finding]:
    checks, seconds = FAMILIES[name]
    if post.actor is None:
        return [skip(checks[0][0], "not looked at: the process that looks has ended", **post.place)]
    answer = await _ask(post.actor.look.remote(name, work.scale), work.left(seconds + 2))
    if not isinstance(answer, Finding):
        found: list[Finding] = answer
        return found
    if "actor" in answer.found.lower() or "died" in answer.found.lower():
        post.actor = None
    return [replace(answer, check=checks[0][0], node=post.node.address)]


async def _ask(reference: Any, timeout: float) -> Any:
    """What a node answers, or a finding that it does not; its `check` and place are the caller's to set."""
    try:
        return await asyncio.wait_for(as_future(reference), timeout)
    except TimeoutError:
        return fail("", f"no answer within {timeout:.0f} s", "See what holds that machine up, and Ray's logs there.")
    except RayError as error:
        return fail("", reason(error), "See Ray's logs on that node (session_latest/logs).")


async def _facts(work: Examination, posts: Sequence[Post]) -> None:
    """Geometry and memory, as a session would compare them before it loads."""
    if work.config is None:
        return
    asked = [post for post in posts if post.actor is not None]
    answers = await asyncio.gather(*(_ask(post.actor.facts.remote(), work.left(FACTS_S)) for post in asked))
    facts: list[WorkerFacts] = []
    for post, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Finding):
            work.findings.append(warn("memory.budget", answer.found, answer.remedy, **post.place))
        else:
            facts += answer
    work.findings += look_together(facts)
