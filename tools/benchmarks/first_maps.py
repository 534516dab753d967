"""CPU time of the first map of a model in a new process, compared with later maps and grad-cam.

Each first map needs a process of its own:

    python -m benchmarks.first_maps gradcam resnet50      one process, in tools/
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.cam_speeds import PYTHON

CNNS = ("resnet50", "mobilenet_v2", "convnext_tiny", "efficientnet_b0", "densenet121")
VITS = ("vit_base_patch16_224", "swin_tiny_patch4_window7_224")
CASES = {
    "cnns": (*(("gradcam", cnn) for cnn in CNNS), ("layercam", CNNS[0])),
    "vits": (
        *(("gradcam", vit) for vit in VITS),
        ("attention", VITS[1]),
        *((method, VITS[0]) for method in ("attention", "rollout", "relevance")),
    ),
}
"""Parts: pairs of a method and a network, of torchvision or timm."""
SIDE, LATER = 224, 5
PLAIN = "plain"  # a forward pass in place of a method
_ENGINE = "_engine_run_backward"
_PEER = """
import sys, time, torch
from pytorch_grad_cam import GradCAM, LayerCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torchvision.models import get_model

method, name, threads, side = sys.argv[1:]
torch.set_num_threads(int(threads))
torch.manual_seed(0)
model, image = get_model(name, weights=None).eval(), torch.randn(1, 3, int(side), int(side))
layers = [model.layer4 if name.startswith("resnet") else model.features]
begin = time.process_time()
with {"gradcam": GradCAM, "layercam": LayerCAM}[method](model=model, target_layers=layers) as cam:
    cam(input_tensor=image, targets=[ClassifierOutputTarget(1)])
print(time.process_time() - begin)
"""


class FirstMap(NamedTuple):
    """CPU seconds and passes of the first map of a network; medians over the rounds.

    Args:
        second: Seconds of the first map in a second process; None if it starts like the first.
        forward: Forward passes of the first map, its own included.
        images: Images in them.
        backward: Backward passes, or parts of them.
        plain: Seconds of a later forward pass alone, which no map undercuts.
        plain_first: Those of the first one of a process, which no map of a second process
            undercuts.
        grad_cam: Seconds of grad-cam's first map; None if it has none.
    """

    method: str
    network: str
    first: float
    second: float | None
    later: float
    plain: float
    plain_first: float
    forward: int
    images: int
    backward: int
    grad_cam: float | None

    def __str__(self) -> str:
        """Return a row of the table."""
        peer = "" if self.grad_cam is None else f"{self.grad_cam:.2f}"
        ratio = "" if self.grad_cam is None else f"{self.first / self.grad_cam:.2f}"
        second = "" if self.second is None else f"{self.second:.2f}"
        plain = f"{self.plain_first:.3f} | {self.plain:.3f}"
        seconds = f"{self.first:.2f} | {second} | {self.later:.3f} | {plain}"
        passes = f"{self.forward} ({self.images}) | {self.backward}"
        return f"| {self.method} | {self.network} | {seconds} | {passes} | {peer} | {ratio} |"


HEAD = (
    "| method | network | first, s | second process | later | first plain forward | plain forward "
    "| forward passes (images) | backward | grad-cam's first | ours / theirs |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def first_maps(parts: Sequence[str], *, rounds: int) -> Iterator[FirstMap]:
    """Measure the first map of each case, in turn with grad-cam of `make peers`."""
    for method, network in (case for part in parts for case in CASES[part]):
        runs: list[dict[str, float]] = []
        for _ in range(rounds):
            with TemporaryDirectory() as folder:
                run, again = (_in_process(method, network, folder) for _ in range(2))
                bare = _in_process(PLAIN, network, folder)
            peer = _peer_seconds(method, network)
            others = {"second": again["first"], "plain_first": bare["first"]}
            runs.append(run | others | ({"peer": peer} if peer else {}))
        middle = {name: median(run[name] for run in runs) for name in runs[0]}
        forward, images, backward = (
            int(middle[name]) for name in ("forward", "images", "backward")
        )
        yield FirstMap(
            *(method, network, middle["first"], middle["second"], middle["later"]),
            *(middle["plain"], middle["plain_first"], forward, images, backward),
            middle.get("peer"),
        )


def _in_process(method: str, network: str, cache: str) -> dict[str, float]:
    """Return what `measure` returns in a new process."""
    command = [sys.executable, "-m", "benchmarks.first_maps", method, network]
    folder = Path(__file__).resolve().parents[1]
    paths = [str(folder.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment |= {"VISATTN_CACHE": cache, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _peer_seconds(method: str, network: str) -> float | None:
    """Return the CPU seconds of grad-cam's first map; None for another network, or without it."""
    if not PYTHON.exists() or network not in CNNS:
        return None
    command = [str(PYTHON), "-c", _PEER, method, network, str(torch.get_num_threads()), str(SIDE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def build(network: str) -> nn.Module:
    """Return a network of torchvision or timm with random weights."""
    torch.manual_seed(0)
    if network in CNNS:
        from torchvision.models import get_model

        return get_model(network, weights=None).eval()
    import timm

    return timm.create_model(network).eval()


def measure(method: str, network: str) -> dict[str, float]:
    """Return CPU seconds of the first map, of later ones, and the passes of the first.

    Of the method `plain`, only those of the first forward pass.
    """
    model = build(network)
    image = torch.randn(1, 3, SIDE, SIDE)
    if method == PLAIN:
        with torch.no_grad():
            return {"first": _seconds(lambda: model(image))}
    from visattn.attribution.methods import METHODS

    def run(model: nn.Module = model) -> Tensor:
        return METHODS[method](model, image, 1)

    first = _seconds(run)
    later = median(_seconds(run) for _ in range(LATER))
    other = build(network)
    counts = _passes(other, lambda: run(other))
    with torch.no_grad():
        plain = median(_seconds(lambda: model(image)) for _ in range(LATER))
    return {"first": first, "later": later, "plain": plain, **counts}


def _seconds(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def _passes(model: nn.Module, run: Callable[[], object]) -> dict[str, int]:
    """Return how often a model runs forward and backward, without runs on meta tensors."""
    counts = {"forward": 0, "images": 0, "backward": 0}
    original: Any = getattr(torch.autograd, _ENGINE)

    def count(_: nn.Module, args: Any) -> None:
        if not args[0].is_meta:
            counts["forward"] += 1
            counts["images"] += len(args[0])

    def counted(*args: Any, **kwargs: Any) -> Any:
        counts["backward"] += 1
        return original(*args, **kwargs)

    model.register_forward_pre_hook(count)
    setattr(torch.autograd, _ENGINE, counted)  # what `grad` and `backward` call
    try:
        run()
    finally:
        setattr(torch.autograd, _ENGINE, original)
    return counts


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print(json.dumps(measure(*sys.argv[1:])))
