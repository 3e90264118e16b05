"""Ray's errors in words of ours."""

from __future__ import annotations

from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError

from splitreel.cluster.answers import reason


def test_a_worker_whose_node_died_says_so() -> None:
    """Ray says why only after a list of which actor it was."""
    context = ActorDiedErrorContext(
        class_name="WorkerActor",
        actor_id=b"\x7f" * 16,
        pid=17,
        name="dit",
        ray_namespace="35046f76",
        node_ip_address="10.77.0.2",
        error_message="The actor died because its node has died. Node Id: d524\n"
        "\tthe actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats",
    )
    assert reason(ActorDiedError(context)) == (
        "ActorDiedError: The actor died unexpectedly before finishing this task. The actor died because its node has died. "
        "Node Id: d524 the actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats"
    )
