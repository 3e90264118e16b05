"""Ray's token authentication for embedded clusters, whose ports are open to the network even on a loopback address.

gcs_server and raylet listen on 0.0.0.0 whatever `--node-ip-address` says, and who reaches them runs code as this user.
So an embedded cluster asks for a token. Ray takes it from the environment, once, when `ray` is imported.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading

from splitreel.errors import ClusterUnreachable

MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_lock = threading.Lock()
_holders = 0
_ours: set[str] = set()  # the variables that `hold` set and `release` removes


def hold() -> None:
    """Make this process and its children use token authentication, until as many `release` calls.

    A mode that the user set, `disabled` included, stays as it is. All clusters of a process share one token.
    Raises ClusterUnreachable where ray is connected already: what it read when it was imported can then not change.
    """
    global _holders
    with _lock:
        if _holders == 0 and MODE not in os.environ and "ray" in sys.modules and sys.modules["ray"].is_initialized():
            raise ClusterUnreachable(
                "cluster.address: expected a process that is not connected to Ray, found one that is to another "
                "cluster. Call ray.shutdown() first, or set cluster.address to the cluster that it is connected to."
            )
        _holders += 1
        if _holders > 1 or MODE in os.environ:
            return
        os.environ[MODE] = "token"
        _ours.add(MODE)
        if TOKEN not in os.environ:
            os.environ[TOKEN] = secrets.token_hex(32)
            _ours.add(TOKEN)
        _reread()


def release() -> None:
    """Undo one `hold`."""
    global _holders
    with _lock:
        _holders -= 1
        if _holders or not _ours:
            return
        for name in _ours:
            os.environ.pop(name, None)
        _ours.clear()
        _reread()


def environment() -> dict[str, str]:
    """The variables with which another process may connect."""
    return {name: os.environ[name] for name in (MODE, TOKEN) if name in os.environ}


def _reread() -> None:
    """Tell an imported ray what changed, unless it is connected."""
    if "ray" not in sys.modules:
        return
    import ray
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # absent from its stub

    if not ray.is_initialized():
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
