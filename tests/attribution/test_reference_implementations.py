"""Methods agree with grad-cam, Captum and torchcam, which run in a separate environment."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import visattn as va
from visattn.attribution import METHODS

PYTHON = Path(__file__).resolve().parents[2] / ".venv-peers" / "bin" / "python"
CLASS_INDICES = [2, 0]
SCRIPT = """
import sys, cv2, numpy as np, torch
from captum.attr import (
    InputXGradient, IntegratedGradients, LayerGradCam, Occlusion, Saliency)
from pytorch_grad_cam import (
    AblationCAM, EigenGradCAM, FinerCAM, FullGrad, GradCAM, GradCAMPlusPlus, HiResCAM, KPCA_CAM,
    LayerCAM, ScoreCAM, XGradCAM)
from pytorch_grad_cam import fullgrad_cam
from pytorch_grad_cam.utils.svd_on_activations import get_2d_projection
from pytorch_grad_cam.utils.model_targets import FinerWeightedTarget
from safetensors.torch import load_file, save_file
from torch import nn

class ClassScore:
    def __init__(self, index):
        self.index = index

    def __call__(self, scores):
        return scores[self.index]

inputs = load_file(sys.argv[1])
x = inputs.pop("x")
model = nn.Sequential(
    nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(5, 7, 3, stride=2, padding=1),
    nn.ReLU(), nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Linear(42, 4),
)
model.load_state_dict(inputs)
model.eval()
indices, results = [2, 0], {}
class SmallScore(ClassScore):
    def __call__(self, scores):
        return scores[self.index] / 1000

def centered(size):  # theirs aligns corners, and so shifts the masks
    return nn.Upsample(size=size, mode="bilinear", align_corners=False)

def per_layer(tensor, size):  # theirs normalizes each channel, the paper each layer
    low, high = tensor.min((1, 2, 3), keepdims=True), tensor.max((1, 2, 3), keepdims=True)
    shares = (tensor - low) / (high - low)
    return np.stack([[cv2.resize(c, size) for c in image] for image in shares])

nn.UpsamplingBilinear2d = centered
fullgrad_cam.scale_accross_batch_and_channels = per_layer
for name, method in (
    ("gradcam", GradCAM), ("gradcam++", GradCAMPlusPlus), ("layercam", LayerCAM),
    ("hirescam", HiResCAM), ("xgradcam", XGradCAM), ("scorecam", ScoreCAM),
    ("ablationcam", AblationCAM), ("fullgrad", FullGrad),
):
    score = SmallScore if name == "scorecam" else ClassScore
    layers = [] if name == "fullgrad" else [model[3]]
    with method(model=model, target_layers=layers) as cam:
        maps = cam(input_tensor=x.clone(), targets=[score(index) for index in indices])
        results[name] = torch.from_numpy(maps.copy())
model[6].weight.data /= 1000  # so that the softmax of these methods does not saturate
def cam(method, layer, *targets):
    with method(model=model, target_layers=[layer]) as one:
        return one(input_tensor=x.clone(), targets=list(targets))
results["finercam"] = torch.from_numpy(cam(
    GradCAM, model[3],
    *(FinerWeightedTarget(index, [(index + 1) % 4], 0.6) for index in indices)))
def projections(method, layer, *targets):
    with method(model=model, target_layers=[layer]) as one:
        one.compute_cam_per_layer = lambda *rest: one.get_cam_image(
            x, layer, None, one.activations_and_grads.activations[0].numpy(),
            one.activations_and_grads.gradients[0].numpy(), False)
        one.aggregate_multi_layers = lambda maps: maps
        one.uses_gradients = True
        return torch.from_numpy(one(input_tensor=x.clone(), targets=list(targets)))
results["eigengradcam"] = projections(EigenGradCAM, model[3], *map(ClassScore, indices))
results["kpcacam"] = projections(KPCA_CAM, model[3], *map(ClassScore, indices))
model[6].weight.data *= 1000
results["eigencam"] = torch.from_numpy(get_2d_projection(model[:4](x).detach().numpy()))
target = torch.tensor(indices)
results["captum_gradcam"] = LayerGradCam(model, model[3]).attribute(
    x, target, relu_attributions=True).detach()
results["integrated_gradients"] = IntegratedGradients(model).attribute(
    x, torch.zeros_like(x), target, n_steps=16, method="gausslegendre")
results["saliency"] = Saliency(model).attribute(x.clone().requires_grad_(), target).detach()
results["input_x_gradient"] = InputXGradient(model).attribute(
    x.clone().requires_grad_(), target).detach()
results["occlusion"] = Occlusion(model).attribute(
    x, (3, 9, 9), (3, 6, 6), target=target, baselines=0)
from torchcam import methods as torchcam
model.eval()
# Its Grad-CAM++ takes another divisor than the paper and grad-cam.
for name, kind in (("GradCAM", "gradcam"), ("LayerCAM", "layercam"), ("XGradCAM", "xgradcam")):
    for row, index in enumerate(indices):
        with getattr(torchcam, name)(model, "3") as extractor:
            [one] = extractor(index, model(x[row:row + 1]), normalized=False)
            results[f"torchcam {kind} {row}"] = one.detach()
save_file({name: value.contiguous() for name, value in results.items()}, sys.argv[2])
"""


def network() -> nn.Module:
    torch.manual_seed(4)
    last = nn.Linear(42, 4)
    last.weight.data *= 1000  # so that the 1e-6 that grad-cam adds to a divisor do not count
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(5, 7, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), last,
    ).eval()  # fmt: skip


X = torch.randn(2, 3, 56, 72, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """Maps of the other libraries."""
    if not PYTHON.exists():
        pytest.fail("no .venv-peers; make peers installs it")
    folder = tmp_path_factory.mktemp("peers")
    files = [str(folder / f"{name}.safetensors") for name in ("inputs", "results")]
    save_file({**network().state_dict(), "x": X}, files[0])
    subprocess.run([PYTHON, "-c", SCRIPT, *files], check=True)
    return load_file(files[1])


def ours(method: str, *, divisor: float = 1.0, target: Any = None, **options: Any) -> Tensor:
    """Return the maps of both images, of a network whose scores are smaller by a divisor."""
    model: Any = network()
    model[6].weight.data /= divisor
    if method == "occlusion":  # of a class it is the probability
        targets = [[lambda scores, index=index: scores[:, index]] for index in CLASS_INDICES]
    else:
        targets = [[target or index] for index in CLASS_INDICES]
    if METHODS[method].needs == "features" and method != "fullgrad":
        options["layers"] = "3"
    maps = va.explain(model, X, method, targets, input_size=(56, 72), **options)
    return torch.stack([heatmap.values for [heatmap] in maps])


def unit(maps: Tensor) -> Tensor:
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return (maps - low) / (1e-7 + high - low)


def resized(maps: Tensor) -> Tensor:
    """Return maps normalized and resized as grad-cam does."""
    scaled = unit(maps)[:, None]
    return unit(nn.functional.interpolate(scaled, (56, 72), mode="bilinear")[:, 0])


def small(output: Tensor) -> Tensor:
    return output[range(len(output)), CLASS_INDICES] / 1000


def finer(output: Tensor) -> Tensor:
    """With one reference, which grad-cam takes from a list."""
    rows, index = torch.arange(len(output)), torch.tensor(CLASS_INDICES)
    return output[rows, index] - 0.6 * output[rows, (index + 1) % 4]


GRAD_CAM = (
    "gradcam", "gradcam++", "layercam", "hirescam", "xgradcam", "ablationcam", "scorecam",
    "finercam", "fullgrad", "eigencam", "eigengradcam", "kpcacam",
)  # fmt: skip


@pytest.mark.peers
@pytest.mark.parametrize("name", GRAD_CAM)
def test_grad_cam(name: str, expected: dict[str, Tensor]) -> None:
    theirs = expected[name]
    if name in ("eigencam", "eigengradcam", "kpcacam"):  # before normalization, of any sign
        maps = ours(name, divisor=1.0 if name == "eigencam" else 1000.0)
        signs = (maps * theirs).sum((1, 2), keepdim=True).sign()
        torch.testing.assert_close(maps, (signs * theirs).relu(), atol=5e-6, rtol=1e-4)
    elif name == "fullgrad":
        torch.testing.assert_close(unit(ours(name)), theirs, atol=5e-6, rtol=0)
    else:
        maps = {
            "scorecam": lambda: ours(name, target=small),
            "finercam": lambda: ours("gradcam", divisor=1000.0, target=finer),
        }.get(name, lambda: ours(name))()
        torch.testing.assert_close(resized(maps), theirs, atol=5e-6, rtol=0)


CAPTUM: dict[str, tuple[str, dict[str, Any], float]] = {
    "captum_gradcam": ("gradcam", {}, 1e-6),
    "input_x_gradient": ("input_x_gradient", {}, 1e-4),
    "integrated_gradients": ("integrated_gradients", {"n_steps": 16}, 1e-4),
    "saliency": ("input_gradient", {}, 1e-6),
    "occlusion": ("occlusion", {"sliding_window_size": 9, "stride": 6}, 1e-2),
}  # fmt: skip


@pytest.mark.peers
@pytest.mark.parametrize("name", CAPTUM)
def test_captum(name: str, expected: dict[str, Tensor]) -> None:
    method, options, atol = CAPTUM[name]
    theirs = expected[name]
    over_colors = {"saliency": theirs.amax(1), "occlusion": theirs[:, 0]}
    right = over_colors.get(name, theirs.sum(1))
    torch.testing.assert_close(ours(method, **options), right, atol=atol, rtol=1e-4)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["gradcam", "layercam", "xgradcam"])
def test_torchcam(name: str, expected: dict[str, Tensor]) -> None:
    theirs = torch.cat([expected[f"torchcam {name} {row}"] for row in (0, 1)])
    torch.testing.assert_close(unit(ours(name)), unit(theirs), atol=5e-6, rtol=0)
