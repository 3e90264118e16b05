"""How fast a payload is received between two machines, against a pickled dataclass and raw TCP. Prints JSON.

    python benchmarks/receive.py --repeats 15        # root: makes two network namespaces

The payload of claim 1 (5.2 MB: 512 text rows of 5,120 bfloat16, tags) goes from one namespace to the other, through two
raylets. `packed` is received as splitreel does (fetch into the store, then views of it as tensors), `ray_get` is the same
object by nothing but `ray.get`, so the difference is what splitreel adds; `dataclass` is the same tensors in a plain
dataclass through Ray's own pickling, `tcp` is one socket that sends the same bytes and is answered. All on the receiver's
clock, in turns, each object new.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

import ray
import torch
from claims import Claim, ratio, report, spread
from payload_bytes import into_denoise
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from namespaces import PORT, two_machines
from splitreel.cluster.transport import arrive
from splitreel.observe.spans import Place, SpanRecorder
from splitreel.wire import pack, unpack

KINDS = ("packed", "ray_get", "dataclass", "tcp")
TCP_PORT = 7400


@dataclass
class Plain:
    """The same tensors as one would send them without thinking about it."""

    prompt_embeds: torch.Tensor
    text_token_tags: torch.Tensor


@ray.remote(num_cpus=0)
class Sender:
    """On the first machine."""

    def __init__(self) -> None:
        payload = into_denoise()
        self._packed = pack(payload)
        self._plain = Plain(**payload.tensors)  # type: ignore[arg-type]

    def make(self, kind: str) -> Any:
        """A new object of this kind in this machine's store."""
        return self._plain if kind == "dataclass" else self._packed

    def serve(self, address: str) -> int:
        """Send the bytes to whoever connects, again and again; how many there are."""
        data = b"".join(buffer.tobytes() for buffer in self._packed.buffers)
        listening = socket.create_server((address, TCP_PORT))

        def answer() -> None:
            while True:
                connection, _ = listening.accept()
                with connection:
                    connection.sendall(data)

        threading.Thread(target=answer, daemon=True).start()
        return len(data)


@ray.remote(num_cpus=0)
class Receiver:
    """On the second machine."""

    def take(self, kind: str, nested: list[Any]) -> float:
        """Seconds from asking for the object until its tensors can be read."""
        ray.wait(nested, fetch_local=False)  # it is there, on the other machine
        began = time.perf_counter()
        if kind == "packed":
            spans = SpanRecorder(Place("", "", ""))
            packed = arrive(nested[0], hop="", timeout=30.0, spans=spans, check=lambda: None)()
            tensor = unpack(packed).tensors["prompt_embeds"]
        elif kind == "ray_get":
            tensor = unpack(ray.get(nested[0])).tensors["prompt_embeds"]
        else:
            tensor = ray.get(nested[0]).prompt_embeds
        assert isinstance(tensor, torch.Tensor)
        float(tensor[0, 0, 0])
        return time.perf_counter() - began

    def read(self, address: str, size: int) -> float:
        """Seconds for so many bytes over a new connection."""
        buffer = bytearray(size)
        view, got = memoryview(buffer), 0
        began = time.perf_counter()
        with socket.create_connection((address, TCP_PORT), timeout=30) as connection:
            while got < size:
                got += connection.recv_into(view[got:])
        return time.perf_counter() - began


def inside(repeats: int) -> None:
    """Run in the first namespace; prints the seconds."""
    ray.init(address=f"10.77.0.1:{PORT}", log_to_driver=False, logging_level="ERROR")
    nodes = {row["NodeManagerAddress"]: row["NodeID"] for row in ray.nodes() if row["Alive"]}

    def at(address: str) -> NodeAffinitySchedulingStrategy:
        return NodeAffinitySchedulingStrategy(nodes[address], soft=False)

    sender = Sender.options(scheduling_strategy=at("10.77.0.1")).remote()
    receiver = Receiver.options(scheduling_strategy=at("169.254.77.2")).remote()
    size = ray.get(sender.serve.remote("10.77.0.1"), timeout=60)
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for index in range(-2, repeats):  # the first two warm up
        for kind in KINDS if index % 2 else reversed(KINDS):
            if kind == "tcp":
                seconds = ray.get(receiver.read.remote("10.77.0.1", size), timeout=60)
            else:
                reference = sender.make.remote(kind)
                ray.wait([reference], fetch_local=False, timeout=60)
                seconds = ray.get(receiver.take.remote(kind, [reference]), timeout=60)
                del reference
            if index >= 0:
                taken[kind].append(seconds)
    print(json.dumps({"taken": taken, "bytes": size}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.repeats)
        return
    with two_machines() as cable:
        # The workers find this folder's modules as the driver does.
        command = cable.a.command(sys.executable, __file__, "--inside", "--repeats", str(options.repeats))
        ended = subprocess.run(command, env=cable.environment, capture_output=True, text=True, timeout=300)
    if ended.returncode:
        raise RuntimeError(ended.stderr[-3000:])
    found = json.loads(ended.stdout.splitlines()[-1])
    taken = found["taken"]
    details = {name: spread(values) for name, values in taken.items()} | {"bytes": found["bytes"]}
    report(
        Claim(
            3,
            "receive time between two namespaces (fetch + materialize)",
            "the same tensors as a pickled dataclass through Ray",
            ratio(taken["packed"], taken["dataclass"]),
            0.5,
            details=details,
        ),
        Claim(
            3,
            "receive time between two namespaces",
            "raw TCP of the same bytes",
            ratio(taken["packed"], taken["tcp"]),
            3.0,
        ),
    )


if __name__ == "__main__":
    main()
