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

from splitreel.cluster._stderr import without_ray_lines
from splitreel.cluster._token import MODE, TOKEN
from splitreel.errors import ClusterUnreachable

CONNECT_S = 3.0
ANSWER_S = 5.0  # a head on a loaded machine answered in 8 ms
GIVES_UP_S = 1.0  # Ray's own limit for connecting is 5 s too; it says so on stderr when it is over, and not later
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
TOKEN_FILE = os.path.join("~", ".ray", "auth_token")
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
            nothing_runs=True,
        ) from error
    except (ValueError, OSError) as error:
        raise _error(wanted, "HOST:PORT of a Ray head", repr(wanted), "Give both.") from error
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


def reach(address: str, *, given: str = "", discovered: bool = False) -> None:
    """Return when a Ray head answers at `HOST:PORT` and takes this process's token. Raises ClusterUnreachable within
    10 s. `given`: what the user wrote, for which Ray may have another name. `discovered`: found on this machine; then Ray
    uses a token that lies in the home directory unasked.
    """
    _connect(address, given)
    if discovered:
        getattr(token_setup, "maybe_enable_token_auth_if_token_available", lambda **_: None)(warn_if_disabled=False)
    try:
        token_setup.ensure_token_if_auth_enabled(create_token_if_missing=False)
    except (AuthenticationError, RuntimeError) as error:
        raise _refused(address, given, f"none: {looked_for()}") from error
    problem = _ask(address)
    if isinstance(problem, AuthenticationError):
        raise _refused(
            address,
            given,
            f"another one: {looked_for()}"
            if token_mode()
            else f"that none is sent, since {MODE} is {os.environ.get(MODE) or 'not set'} here",
        ) from problem
    if problem is not None:
        text = str(problem).strip().splitlines()
        raise _error(
            address,
            f"a Ray head of this version that answers within {ANSWER_S:g} s",
            f"something else listening there ({text[0] if text else type(problem).__name__})",
            "See that the head runs there and that the port is its own (6379 unless chosen otherwise).",
            given,
        ) from problem


def token_mode() -> bool:
    """Whether this process sends a token."""
    return os.environ.get(MODE, "").lower() == "token"


def looked_for() -> str:
    """Where Ray looks for a token, in its order, and what is there; never the token itself."""
    path = os.environ.get(TOKEN_PATH, "")
    return ", ".join(
        [
            f"{TOKEN} is {'set' if os.environ.get(TOKEN) else 'not set'}",
            f"{TOKEN_PATH} is {_file(path) if path else 'not set'}",
            f"{TOKEN_FILE} is {_file(os.path.expanduser(TOKEN_FILE)).rpartition(', ')[2]}",
        ]
    )


def _file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return f"{path}, {'there' if file.read(1) else 'empty'}"
    except OSError as error:
        return f"{path}, {'absent' if isinstance(error, FileNotFoundError) else 'not readable'}"


def _refused(address: str, given: str, found: str) -> ClusterUnreachable:
    return _error(
        address,
        "the token of the cluster that answers there",
        found,
        f"Set {MODE}=token here, and give the token that the head was started with: in {TOKEN}, in the file that "
        f"{TOKEN_PATH} names, or in {TOKEN_FILE}, copied from the head.",
        given,
        token_refused=True,
    )


def _connect(address: str, given: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (ValueError, OverflowError) as error:
        expected, found = "HOST:PORT of a Ray head", "a port that is none"
        raise _error(address, expected, found, "Give a number below 65536.", given) from error
    except OSError as error:
        text = error.strerror or f"no answer within {CONNECT_S:g} s"
        raise _error(
            address,
            "a Ray head",
            f"nobody there ({text})",
            "See that it runs (ray start --head), that host and port are right, and that no firewall is between.",
            given,
        ) from error


def _ask(address: str) -> Exception | None:
    """What is wrong with the head, if anything. In a thread of its own, since Ray's client has no deadline here, and
    without Ray's own lines on stderr, which come before ours and say less.
    """
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
    with without_ray_lines():
        thread.start()
        thread.join(ANSWER_S + GIVES_UP_S)
    return answer[0] if answer else TimeoutError("no answer")


def _error(address: str, expected: str, found: str, hint: str, given: str = "", **details: bool) -> ClusterUnreachable:
    shown = f"{given} ({address} to Ray)" if given not in ("", "auto", address) else address
    return ClusterUnreachable(
        f"cluster.address {shown}: expected {expected}, found {found}. {hint}", address=address, **details
    )
