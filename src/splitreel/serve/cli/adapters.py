"""`--lora`: adapters named on the command line, checked before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from splitreel.config import Config, LoraConfig
from splitreel.errors import InvalidRequest
from splitreel.lora import LoraUse
from splitreel.roles.adapters.files import check_adapter, find_adapter, hub_file
from splitreel.serve.cli.failures import Refused
from splitreel.serve.cli.inputs import Order


def read_adapters(texts: Sequence[str], config: Config) -> tuple[Config, tuple[LoraUse, ...]]:
    """`FILE`, `FILE=SCALE`, `NAME` or `NAME=SCALE` of each: the config with the files in it, and what requests use.

    A name is one of the config's `lora` section; anything else is a file, a folder or a hub id, called by its file's
    name. Raises AdapterError for a local file that is none, InvalidRequest for a scale.
    """
    known = dict(config.lora)
    uses: list[LoraUse] = []
    for text in texts:
        source, scale = _split(text)
        if source in config.lora:
            uses.append(LoraUse(source, config.lora[source].scale if scale is None else scale))
            continue
        if hub_file(source) is None:
            check_adapter(find_adapter(source))
        name = Path(source).stem
        name = next(free for free in (name, *(f"{name}-{n}" for n in range(2, 100))) if free not in known)
        known[name] = LoraConfig(path=source, active=False)
        uses.append(LoraUse(name, 1.0 if scale is None else scale))
    return config.model_copy(update={"lora": known}), tuple(uses)


def check_names(orders: Sequence[Order], config: Config) -> None:
    """Raise Refused unless every adapter that a request names will be loaded."""
    bad = [
        order.locate(
            f"lora: expected an adapter of the config or of --lora ({', '.join(config.lora) or 'none is given'}), found "
            f"{use.name!r}."
        )
        for order in orders
        for use in order.request.lora or ()
        if use.name not in config.lora
    ]
    if bad:
        raise Refused("\n".join(bad))


def _split(text: str) -> tuple[str, float | None]:
    source, separator, number = text.rpartition("=")
    if not separator:
        return text, None
    try:
        return source, float(number)
    except ValueError:
        if Path(text).expanduser().exists():
            return text, None  # a file's own "="
        raise InvalidRequest(f"--lora: expected a number after =, found {number!r}.", field="lora") from None
