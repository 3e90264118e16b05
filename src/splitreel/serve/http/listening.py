"""The socket, bound before anything heavy is imported or loaded."""

from __future__ import annotations

import socket

from splitreel.config import ServeConfig
from splitreel.errors import ConfigError
from splitreel.serve.http.keys import check_exposure


def listen(settings: ServeConfig) -> socket.socket:
    """Bind before anything loads. Raises ConfigError: exposed without keys, or an address that cannot be had."""
    check_exposure(settings)
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((settings.host, settings.port))
        bound.listen(1024)
    except OSError as error:
        raise ConfigError(
            f"serve.port: expected to listen on {settings.host}:{settings.port}, found {error.strerror}. Choose another."
        ) from error
    return bound
