"""What a step of training holds at most, in a process of its own.

python -m benchmarks.peak_memories timm S/16 8 2      whose, which, images, threads
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.transformer_rivals import CASES, TransformerCase, forward_of, made

STATUS = Path("/proc/self/status")


def peak_memory(hand: str, case: TransformerCase) -> float | None:
    """Return the megabytes that a forward and a backward pass add to a process at most.

    Weights stood before and do not count; their gradients do. None where the machine keeps no such
    account: only Linux does, and what other accounts say of a child holds its parent's too.

    Raises:
        RuntimeError: If the process failed.
    """
    words = [hand, case.title, str(case.batch), str(torch.get_num_threads())]
    return printed_memory("benchmarks.peak_memories", words)


def printed_memory(module: str, words: Sequence[str]) -> float | None:
    """Return the megabytes that a program prints; None where the machine keeps no account.

    Raises:
        RuntimeError: If the process failed.
    """
    if not STATUS.exists():
        return None
    tools = str(Path(__file__).resolve().parents[1])
    paths = [tools, os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [sys.executable, "-m", module, *words],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "MALLOC_MMAP_THRESHOLD_": "65536",  # what is freed goes back: figures repeat
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(f"the process that was to measure memory failed: {ran.stderr}")
    return float(ran.stdout)


def step_memory(hand: str, case: TransformerCase) -> float:
    """Return the megabytes that this process, which took no step before, adds for one."""
    torch.manual_seed(0)
    forward = forward_of(made(hand, case).train())
    images = torch.randn(case.batch, 3, 224, 224)
    before = megabytes("VmRSS")
    forward(images).square().mean().backward()
    return megabytes("VmHWM") - before


def megabytes(entry: str) -> float:
    """Return what this process holds (`VmRSS`), or held at most (`VmHWM`)."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines[entry].split()[0]) / 1024


def main(argv: Sequence[str]) -> int:
    """Print what one step holds."""
    hand, title, batch, threads = argv
    torch.set_num_threads(int(threads))
    (case,) = (case for case in CASES if case.title == title)
    print(step_memory(hand, case._replace(batch=int(batch))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
