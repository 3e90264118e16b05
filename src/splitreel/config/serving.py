"""The config's `serve` section: where the server listens, who may ask for what, and what it keeps."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from splitreel.config.section import Section

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


class KeyConfig(Section):
    """A client's key. `splitreel key NAME` makes one and prints both lines."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", description="Owns the jobs made with the key.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="Digest of the key; the key itself is kept nowhere.")
    max_active: int | None = Field(default=None, ge=0, description="Replaces serve.max_active_per_key for this key.")


class ServeConfig(Section):
    """Of `splitreel serve`. Times in seconds unless the name says otherwise."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Any other than a loopback address needs keys.")
    port: int = Field(default=8000, ge=0, le=65535, description="0 takes a free one and prints it.")
    folder: str = Field(default="jobs", min_length=1, description="Where jobs, their inputs and their films are kept.")
    database: str | None = Field(
        default=None,
        min_length=1,
        description="An SQLAlchemy URL, or env:NAME for one in an environment variable. Default: SQLite in the folder. "
        "Several servers may share one, with the same folder.",
    )
    model_names: list[str] = Field(
        default=[], description="Names that clients may give for the model beside its path, such as sora-2."
    )
    keys: list[KeyConfig] = Field(default=[], description="Who may use the API; none: whoever can connect.")
    allow_without_key: bool = Field(default=False, description="Listen on other than loopback without any key.")
    hosts: list[str] = Field(
        default=[], description="Host names that clients use, beside localhost; checked while there are no keys."
    )
    studio: bool | None = Field(
        default=None, description="The page at /. Default: where its package is installed (splitreel[studio])."
    )
    max_queued: int = Field(default=256, ge=0, description="Jobs that may wait; one more is refused with 429.")
    max_active_per_key: int | None = Field(
        default=None, ge=0, description="Jobs of one key that may wait or run. Default: no bound of its own."
    )
    attempts: int = Field(
        default=5, ge=1, le=100, description="How often a job may be begun, when servers or workers die under it."
    )
    max_upload_bytes: int = Field(default=268_435_456, ge=1024, description="Of one request's body.")
    max_field_bytes: int = Field(
        default=33_554_432, ge=1024, description="Of a JSON body, and of one form field that is no file."
    )
    max_pixels: int = Field(default=33_177_600, ge=1024, description="Of one picture, or one frame of a clip (8K).")
    max_seconds: float = Field(default=60.0, gt=0, description="Of one clip or sound.")
    upload_timeout: float = Field(default=300.0, gt=0, description="Until a request's body has arrived.")
    fetch_hosts: list[str] = Field(
        default=[], description="Hosts whose https URLs the server may fetch media from. Default: none."
    )
    keep_days: float = Field(
        default=7.0, gt=0, le=36_500, description="Ended jobs and their films are deleted after this; 36500 keeps them."
    )
    keep_gb: float = Field(
        default=50.0,
        gt=0,
        le=1e9,
        description="Bound on all films and inputs; the oldest go first. 1000000 bounds nothing.",
    )
    drain: float = Field(
        default=30.0, ge=0, description="What running jobs get to finish in when the server is told to stop."
    )
    lease: float = Field(
        default=30.0, gt=1, description="Silence after which another server takes over a server's jobs."
    )
    give_up_after: float = Field(
        default=900.0,
        gt=0,
        description="The server ends when a role has been away this long, for its supervisor to act.",
    )

    @field_validator("fetch_hosts", "hosts")
    @classmethod
    def _host_names(cls, value: list[str]) -> list[str]:
        for name in value:
            if not _HOST.fullmatch(name):
                raise ValueError(
                    f"expected a host name such as media.example.org, without scheme or port, found {name!r}"
                )
        return [name.lower() for name in value]

    @field_validator("keys")
    @classmethod
    def _distinct(cls, value: list[KeyConfig]) -> list[KeyConfig]:
        names = [key.name for key in value]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"expected each name once, found {twice[0]!r} twice")
        return value
