"""GPUs of a node, as the workers that are to use them would see them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

from splitreel.cluster.doctor.context import Context
from splitreel.cluster.doctor.finding import Check, Finding, fail, ok, skip, warn

GB = 1_000_000_000
_SMI_S = 5.0
_BFLOAT16 = (8, 0)  # the first capability with bfloat16 arithmetic in hardware


def devices(context: Context) -> Iterator[Finding]:
    """Whether each CUDA role has its device, and torch has kernels for it."""
    if not context.cuda_tasks:
        yield skip("gpu.present", "no role of the config uses a GPU here")
        return
    import torch

    from splitreel.roles.device import look_at_gpu

    for task in context.cuda_tasks:
        gpu = look_at_gpu(task.spec.device)
        if gpu is None:
            built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            yield fail(
                "gpu.present",
                f"no device {task.spec.device}: torch {torch.__version__} ({built}) sees {count}",
                "See that nvidia-smi lists it there, install a torch that is built for CUDA, or set the role's device to cpu.",
                role=task.worker,
            )
            continue
        memory = f"{gpu.total_bytes / GB:.1f} GB" if gpu.total_bytes is not None else "memory not told by its driver"
        free = f", {gpu.free_bytes / GB:.1f} free" if gpu.free_bytes is not None else ""
        shared = ", shared with the CPU" if gpu.unified else ""
        yield ok("gpu.present", f"{task.spec.device}: {gpu.name}, {memory}{free}{shared}", role=task.worker)
        capability = ".".join(map(str, gpu.capability))
        if not gpu.has_kernels:
            yield fail(
                "gpu.capability",
                f"{gpu.name} has compute capability {capability}; torch {torch.__version__} has kernels for "
                f"{', '.join(gpu.compiled_for)}",
                "Install a torch that is built for this GPU.",
                role=task.worker,
            )
        elif gpu.capability < _BFLOAT16 and "bfloat16" in dict(task.spec.dtypes).values():
            yield warn(
                "gpu.capability",
                f"compute capability {capability} has no bfloat16 arithmetic, which the role's dtype asks for",
                "Set the role's dtype to float16 or float32, or use a newer GPU.",
                role=task.worker,
            )
        else:
            yield ok("gpu.capability", f"compute capability {capability}", role=task.worker)


def other_programs(context: Context) -> Iterator[Finding]:
    """Who else computes on the GPUs, inside Ray or not."""
    smi = shutil.which("nvidia-smi")
    if not context.cuda_tasks or smi is None:
        yield skip("gpu.programs", "no role uses a GPU here" if not context.cuda_tasks else "no nvidia-smi here")
        return
    query = [smi, "--query-compute-apps=pid,process_name,used_gpu_memory", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True, timeout=_SMI_S)
    programs = [line.strip() for line in asked.stdout.splitlines() if line.strip()]
    if asked.returncode:
        yield warn(
            "gpu.programs", f"nvidia-smi: {asked.stderr.strip() or asked.stdout.strip()}", "Mend the driver there."
        )
    elif programs:
        yield warn(
            "gpu.programs",
            f"other programs use a GPU there (pid, name, memory): {'; '.join(programs)}",
            "End those that you do not need before weights load.",
        )
    else:
        yield ok("gpu.programs", "no other program uses a GPU")


# Programs first: looking at the devices makes one of this process.
CHECKS: tuple[tuple[str, Check], ...] = (("gpu.programs", other_programs), ("gpu.present", devices))
