"""Whether a Ray head answers at an address and takes our token: asked with short deadlines, before Ray itself tries.

`ray.init` needs 20 s to say that nobody is there, 40 s where something accepts connections and does not answer, and
then names neither the port nor the token; a missing token in token mode even ends the process.
"""

from __future__ import annotations

import os
import socket
import threading

from ray._private import services
from ray._private.authentication import authentication_token_setup as token_setup
from ray.exceptions import AuthenticationError, RayError

from splitreel.errors import ClusterUnreachable

CONNECT_S = 3.0
ANSWER_S = 5.0  # a head on a loaded machine answered in 8 ms
ANY_ADDRESS = ("0.0.0.0", "::", "[::]", "*")  # what servers listen on; nobody can be reached there


def resolve(address: str) -> str:
    """`HOST:PORT` of the head behind `address`, where `auto` means RAY_ADDRESS or a Ray that runs on this machine.

    Raises ClusterUnreachable where there is none, or where it is no address of a head.
    """
    wanted = (os.environ.get("RAY_ADDRESS") or "auto") if address == "auto" else address
    if "://" in wanted:
        raise _error(
            wanted,
            "HOST:PORT of a Ray head",
            "an address with a scheme",
            "Ray Client (ray://) cannot be used: run on a node of the cluster, and give the head's own port (6379 unless "
            "chosen otherwise).",
        )
    if wanted.rpartition(":")[0] in ANY_ADDRESS:
        raise _error(
            wanted, "the address of a Ray head", "the one on which servers listen", "Give the head's own address."
        )
    try:
        # Ray remembers for the life of the process what it saw here first.
        getattr(services.find_gcs_addresses, "cache_clear", lambda: None)()
        found: str | None = services.canonicalize_bootstrap_address(wanted)
    except ConnectionError as error:
        raise _error(
            wanted,
            "a Ray cluster on this machine",
            "none",
            "Start it (ray start --head), give its address here or in RAY_ADDRESS, or use embedded.",
        ) from error
    except (ValueError, OSError) as error:
        raise _error(wanted, "HOST:PORT of a Ray head", "something else", "Give both.") from error
    if found is None:
        raise _error(wanted, "HOST:PORT of a Ray head", "none", "Give it, or use embedded.")
    return found


def same(first: str, second: str) -> bool:
    """Whether two `HOST:PORT` mean the same head."""

    def meaning(address: str) -> tuple[str, str]:
        host, _, port = address.rpartition(":")
        try:
            return socket.gethostbyname(host), port
        except OSError:
            return host, port

    return first == second or meaning(first) == meaning(second)


def reach(address: str, *, discovered: bool = False) -> None:
    """Return when a Ray head answers at `HOST:PORT` and takes this process's token. Raises ClusterUnreachable within
    10 s. `discovered`: found on this machine; then Ray uses a token that lies in the home directory unasked.
    """
    _connect(address)
    if discovered:
        getattr(token_setup, "maybe_enable_token_auth_if_token_available", lambda **_: None)(warn_if_disabled=False)
    try:
        token_setup.ensure_token_if_auth_enabled(create_token_if_missing=False)
    except (AuthenticationError, RuntimeError) as error:
        raise _error(
            address,
            "a token, since RAY_AUTH_MODE asks for one",
            "none",
            "Put the cluster's into RAY_AUTH_TOKEN, or into the file that RAY_AUTH_TOKEN_PATH names.",
        ) from error
    problem = _ask(address)
    if isinstance(problem, AuthenticationError):
        given = (
            "another one" if os.environ.get("RAY_AUTH_MODE") == "token" else "none, since RAY_AUTH_MODE is not token"
        )
        raise _error(
            address,
            "the cluster's token (RAY_AUTH_TOKEN) here",
            given,
            "Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH, as where Ray was started.",
        ) from problem
    if problem is not None:
        text = str(problem).strip().splitlines()
        raise _error(
            address,
            f"a Ray head of this version that answers within {ANSWER_S:g} s",
            f"something else listening there ({text[0] if text else type(problem).__name__})",
            "See that the head runs there and that the port is its own (6379 unless chosen otherwise).",
        ) from problem


def _connect(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (ValueError, OverflowError) as error:
        raise _error(address, "HOST:PORT of a Ray head", "a port that is none", "Give a number below 65536.") from error
    except OSError as error:
        text = error.strerror or f"no answer within {CONNECT_S:g} s"
        raise _error(
            address,
            "a Ray head",
            f"nobody there ({text})",
            "See that it runs (ray start --head), that host and port are right, and that no firewall is between.",
        ) from error


def _ask(address: str) -> Exception | None:
    """What is wrong with the head, if anything. In a thread of its own, since Ray's client has no deadline here."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # absent from its stub

    answer: list[Exception | None] = []

    def ask() -> None:
        try:
            GcsClient(address).get_all_node_info(timeout=ANSWER_S)
        except (RayError, RuntimeError, ValueError, OSError) as error:
            answer.append(error)
        else:
            answer.append(None)

    thread = threading.Thread(target=ask, name="splitreel-reach", daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    return answer[0] if answer else TimeoutError("no answer")


def _error(address: str, expected: str, found: str, hint: str) -> ClusterUnreachable:
    return ClusterUnreachable(f"cluster.address {address}: expected {expected}, found {found}. {hint}", address=address)
