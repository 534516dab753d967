"""Maps beside those of other libraries: first and later ones, memory, and their values.

The libraries of `make peers` run in `.venv-peers`, timm and algorithms written out in `.venv`; each
in a process of its own, and the later maps of all in turn. A row has CPU seconds of one thread.
"""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import interpolate

from benchmarks.cam_speeds import PYTHON
from benchmarks.peer_runs import build

CAMS = ("gradcam", "layercam", "gradcam++")
CNNS = ("resnet50@224", "mobilenet_v2@224")
CASES: dict[str, Sequence[tuple[str, str, Sequence[str]]]] = {
    "cams": [
        ("gradcam", network, ("grad-cam", "torchcam", "captum")) for network in CNNS
    ] + [(method, CNNS[0], ("grad-cam", "torchcam")) for method in CAMS[1:]],
    "channels": [
        ("scorecam", "resnet18@64", ("grad-cam", "torchcam")),
        ("ablationcam", "resnet18@64", ("grad-cam",)),
    ],
    "pixels": [
        (method, network, ("captum",))
        for network in CNNS
        for method in ("input_gradient", "integrated_gradients", "smoothgrad")
    ],
    "perturbation": [
        (method, network, libraries)
        for network in (*CNNS, "densenet121@224", "convnext_tiny@224")
        for method, libraries in (("occlusion", ("captum",)), ("rise", ("plain loop",)))
    ],
    "attention": [
        ("rollout", "vit_small_patch16_224@224", ("vit-explain", "row by row")),
        ("attention", "vit_small_patch16_224@224", ("timm",)),
    ],
}  # fmt: skip
"""Parts: method, network, and the libraries that have it."""
RANDOM = {"smoothgrad": "other noise"}
"""Methods whose values differ, and why."""
OWN = ("visattn", "timm", "vit-explain", "row by row", "plain loop")  # in our environment


class PeerRow(NamedTuple):
    """A method of visattn and of another library; values of visattn first.

    Args:
        ratio: Later seconds of the other library by ours; above 1, visattn is faster.
        difference: Largest difference of values, each map in [0, 1]; or why they differ.
    """

    method: str
    network: str
    library: str
    first: tuple[float, float]
    later: tuple[float, float]
    ratio: float
    least: float
    most: float
    megabytes: tuple[float, float]
    difference: str

    def cells(self) -> dict[str, str]:
        """Return the cells of a row of the table."""
        return {
            "map": self.method,
            "network": self.network.replace("@", ", ") + " px",
            "compared with": self.library,
            "first, s": f"{self.first[0]:.2f}, {self.first[1]:.2f}",
            "later, s": f"{self.later[0]:.3f}, {self.later[1]:.3f}",
            "ratio of times": f"{self.ratio:.2f}",
            "rounds": f"{self.least:.2f} to {self.most:.2f}",
            "MB": f"{self.megabytes[0]:.0f}, {self.megabytes[1]:.0f}",
            "difference": self.difference,
        }


class Process:
    """A library that computes one map after the other in a process of its own."""

    def __init__(self, library: str, case: tuple[str, str], label: int, folder: Path) -> None:
        method, network = case
        self.file = folder / f"{library}.safetensors"
        script = Path(__file__).with_name("peer_runs.py")
        python = sys.executable if library in OWN else str(PYTHON)
        paths = str(script.parents[2]) if library in OWN else ""
        self.process = subprocess.Popen(
            [python, str(script), library, method, network, str(label), str(self.file)],
            env={
                **os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1",
                "VISATTN_CACHE": str(folder / "cache"),
                "MALLOC_MMAP_THRESHOLD_": "65536",  # returns freed memory: reproducible
            },
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        first = json.loads(self._line(f"{library} gives no {method} of {network}"))
        self.first, self.memory = float(first["first"]), float(first["memory"])
        self.maps = load_file(self.file)["maps"]
        self.later: list[float] = []

    def measure(self) -> None:
        """Compute a later map."""
        if self.process.stdin is not None:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        self.later.append(float(self._line("the process ended")))

    def _line(self, problem: str) -> str:
        line = "" if self.process.stdout is None else self.process.stdout.readline()
        if not line:
            raise RuntimeError(problem)
        return line

    def close(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


def peer_rows(parts: Sequence[str], *, rounds: int) -> Iterator[PeerRow]:
    """Measure one case after the other; nothing for libraries without `make peers`."""
    for method, network, libraries in (case for part in parts for case in CASES[part]):
        known = [library for library in libraries if library in OWN or PYTHON.exists()]
        label = predicted_class(network)  # others may have an empty Grad-CAM
        with TemporaryDirectory() as folder:
            processes = {
                library: Process(library, (method, network), label, Path(folder))
                for library in ("visattn", *known)
            }
            try:
                for _ in range(rounds):
                    for process in processes.values():
                        process.measure()
            finally:
                for process in processes.values():
                    process.close()
        ours = processes["visattn"]
        for library in known:
            yield _row(method, network, library, ours, processes[library])


@torch.no_grad()
def predicted_class(network: str) -> int:
    """Return the class that a network predicts for the image of its processes."""
    model, image = build(network)
    return int(model(image).argmax())


def _row(method: str, network: str, library: str, ours: Process, theirs: Process) -> PeerRow:
    ratios = [b / a for a, b in zip(ours.later, theirs.later, strict=True)]
    difference = RANDOM.get(method) or largest_difference(ours.maps, theirs.maps)
    return PeerRow(
        method, network, library,
        (ours.first, theirs.first), (median(ours.later), median(theirs.later)),
        median(ratios), min(ratios), max(ratios),
        (ours.memory, theirs.memory), difference,
    )  # fmt: skip


def largest_difference(ours: Tensor, theirs: Tensor) -> str:
    """Return the largest difference of maps in [0, 1], ours resized from edge to edge."""
    if ours.shape != theirs.shape:
        ours = interpolate(ours[:, None], theirs.shape[-2:], mode="bilinear")[:, 0]
    return f"{float((in_unit_range(ours) - in_unit_range(theirs)).abs().max()):.0e}"


def in_unit_range(maps: Tensor) -> Tensor:
    """Return maps with a minimum of 0 and a maximum of 1."""
    low, high = maps.min(), maps.max()
    return (maps - low) / (high - low).clamp(min=torch.finfo(maps.dtype).tiny)


def write_table(rows: Sequence[PeerRow], file: Path, measured: str) -> None:
    """Write rows as a table of `docs/results/`."""
    with file.open("w", encoding="utf-8", newline="") as opened:
        cells = [{**row.cells(), "measured": measured} for row in rows]
        writer = csv.DictWriter(opened, list(cells[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells)
