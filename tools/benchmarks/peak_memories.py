"""Peak memory of a training step, measured in a separate process.

python -m benchmarks.peak_memories timm S/16 8 2      library, model, images, threads
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.transformer_rivals import CASES, TransformerCase, build_model, forward_function

STATUS = Path("/proc/self/status")


def peak_memory(library: str, case: TransformerCase) -> float | None:
    """Return the peak megabytes that a forward and a backward pass add to a process.

    Weights do not count; their gradients do. None if not measurable: only Linux reports the peak
    of a single process.

    Raises:
        RuntimeError: If the process failed.
    """
    arguments = [library, case.title, str(case.batch), str(torch.get_num_threads())]
    return printed_memory("benchmarks.peak_memories", arguments)


def printed_memory(module: str, arguments: Sequence[str]) -> float | None:
    """Return the megabytes that a program prints; None if not measurable.

    Raises:
        RuntimeError: If the process failed.
    """
    if not STATUS.exists():
        return None
    tools = str(Path(__file__).resolve().parents[1])
    paths = [tools, os.environ.get("PYTHONPATH", "")]
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "MALLOC_MMAP_THRESHOLD_": "65536",  # returns freed memory: reproducible
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"the process that measures memory failed: {result.stderr}")
    return float(result.stdout)


def step_memory(library: str, case: TransformerCase) -> float:
    """Return the megabytes that the first step of this process adds."""
    torch.manual_seed(0)
    forward = forward_function(build_model(library, case).train())
    images = torch.randn(case.batch, 3, 224, 224)
    before = megabytes("VmRSS")
    forward(images).square().mean().backward()
    return megabytes("VmHWM") - before


def megabytes(entry: str) -> float:
    """Return the current (`VmRSS`) or peak (`VmHWM`) memory of this process."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines[entry].split()[0]) / 1024


def main(argv: Sequence[str]) -> int:
    """Print the peak memory of one step."""
    library, title, batch, threads = argv
    torch.set_num_threads(int(threads))
    (case,) = (case for case in CASES if case.title == title)
    print(step_memory(library, case._replace(batch=int(batch))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
