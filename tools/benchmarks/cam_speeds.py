"""Speed of Score-CAM and Ablation-CAM, compared with pytorch-grad-cam of `make peers`."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchvision.models import get_model

from benchmarks.transformer_speeds import SpeedFigure
from visattn.attribution.channel_cam import ablationcam, scorecam
from visattn.attribution.explained_model import analyze_model

PYTHON = Path(__file__).resolve().parents[2] / ".venv-peers" / "bin" / "python"
CNN, SIDE = "resnet18", 64
METHODS = {"Score-CAM": scorecam, "Ablation-CAM": ablationcam}
_PEER = """
import sys, time, torch
from pytorch_grad_cam import AblationCAM, ScoreCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from safetensors.torch import load_file, save_file
from torchvision.models import get_model

name, threads, tensors, out = sys.argv[1:]
torch.set_num_threads(int(threads))
model = get_model(name, weights=None).eval()
state = load_file(tensors)
image = state.pop("image")
model.load_state_dict(state, strict=False)
classes = {"Score-CAM": ScoreCAM, "Ablation-CAM": AblationCAM}
for line in sys.stdin:
    with classes[line.strip()](model=model, target_layers=[model.layer4]) as cam:
        begin = time.perf_counter()
        maps = cam(input_tensor=image, targets=[ClassifierOutputTarget(1)])
        seconds = time.perf_counter() - begin
    save_file({"maps": torch.from_numpy(maps.copy())}, out)
    print(seconds, flush=True)
"""


def cam_speed(rounds: int) -> Iterator[SpeedFigure]:
    """Time both methods on one image in turn with pytorch-grad-cam; nothing without .venv-peers."""
    if not PYTHON.exists():
        return
    model, image = get_model(CNN, weights=None).eval(), torch.randn(1, 3, SIDE, SIDE)
    explained = analyze_model(model, (SIDE, SIDE))
    with TemporaryDirectory() as folder:
        tensors, out = Path(folder) / "model.safetensors", Path(folder) / "maps.safetensors"
        save_file({**model.state_dict(), "image": image}, tensors)
        command = [PYTHON, "-c", _PEER, CNN, str(torch.get_num_threads()), tensors, out]
        with subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as peer:
            for name, method in METHODS.items():
                seconds: dict[str, list[float]] = {"ours": [], "grad-cam": []}
                maps = torch.zeros(0)
                for _ in range(rounds):
                    begin = time.perf_counter()
                    maps = method(explained, image, lambda scores: scores[:, 1])
                    seconds["ours"].append(time.perf_counter() - begin)
                    assert peer.stdin is not None  # noqa: S101
                    assert peer.stdout is not None  # noqa: S101
                    peer.stdin.write(f"{name}\n")
                    peer.stdin.flush()
                    seconds["grad-cam"].append(float(peer.stdout.readline()))
                check_similar(maps, load_file(out)["maps"], name)
                pairs = zip(seconds["grad-cam"], seconds["ours"], strict=True)
                ratios = [theirs / ours for theirs, ours in pairs]
                yield SpeedFigure(
                    f"{name}, {CNN}, 1 image of {SIDE} px, s; grad-cam / ours",
                    {way: median(values) for way, values in seconds.items()},
                    *(median(ratios), min(ratios), max(ratios)),
                    "target: at least 2",
                )
            if peer.stdin:
                peer.stdin.close()


def check_similar(ours: Tensor, theirs: Tensor, name: str) -> None:
    """Raise an error if maps do not correlate: Score-CAM masks of grad-cam are shifted a little.

    Raises:
        AssertionError: If the correlation is below 0.95.
    """
    large = torch.nn.functional.interpolate(ours[:, None], theirs.shape[1:], mode="bilinear")
    pair = torch.stack((large.flatten(), theirs.flatten()))
    if not float(torch.corrcoef(pair)[0, 1]) > 0.95:
        raise AssertionError(f"{name} differs from pytorch-grad-cam")
