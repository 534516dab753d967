"""The methods agree with pytorch-grad-cam and captum, which run in an environment of their own."""

import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from visattn.attribution.cam import gradcam, gradcam_plus_plus, layercam
from visattn.attribution.gradient_based import input_gradient, integrated_gradients
from visattn.attribution.perturbation import occlusion
from visattn.attribution.targets import target_of
from visattn.recording.model_info import ExplainedModel, FeatureSite, ModelInfo

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
NUMBERS = [2, 0]
ASK = """
import sys, torch
from captum.attr import IntegratedGradients, LayerGradCam, Occlusion, Saliency
from pytorch_grad_cam import GradCAM, GradCAMPlusPlus, LayerCAM
from pytorch_grad_cam.utils.model_targets import RawScoresOutputTarget
from safetensors.torch import load_file, save_file
from torch import nn

class Wanted:
    def __init__(self, number):
        self.number = number

    def __call__(self, scores):
        return scores[self.number]

given = load_file(sys.argv[1])
x = given.pop("x")
model = nn.Sequential(
    nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(5, 7, 3, stride=2, padding=1),
    nn.ReLU(), nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Linear(42, 4),
)
model.load_state_dict(given)
model.eval()
numbers, found = [2, 0], {}
for name, method in (("gradcam", GradCAM), ("gradcam++", GradCAMPlusPlus), ("layercam", LayerCAM)):
    with method(model=model, target_layers=[model[3]]) as asked:
        maps = asked(input_tensor=x, targets=[Wanted(number) for number in numbers])
        found[name] = torch.from_numpy(maps.copy())
target = torch.tensor(numbers)
found["captum_gradcam"] = LayerGradCam(model, model[3]).attribute(
    x, target, relu_attributions=True).detach()
found["integrated_gradients"] = IntegratedGradients(model).attribute(
    x, torch.zeros_like(x), target, n_steps=16, method="gausslegendre")
found["saliency"] = Saliency(model).attribute(x.clone().requires_grad_(), target).detach()
found["occlusion"] = Occlusion(model).attribute(
    x, (3, 9, 9), (3, 6, 6), target=target, baselines=0)
save_file({name: value.contiguous() for name, value in found.items()}, sys.argv[2])
"""


def network() -> nn.Module:
    torch.manual_seed(4)
    last = nn.Linear(42, 4)
    last.weight.data *= 1000  # so that the 1e-6 that grad-cam adds to a divisor do not count
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(5, 7, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d((2, 3)),
        nn.Flatten(),
        last,
    )


def like_theirs(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Return maps after the two steps that pytorch-grad-cam has: 0 to 1, and enlarged."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    scaled = ((maps - low) / (1e-7 + high - low))[:, None]
    large = nn.functional.interpolate(scaled, size, mode="bilinear", align_corners=False)[:, 0]
    low, high = large.amin((1, 2), keepdim=True), large.amax((1, 2), keepdim=True)
    return (large - low) / (1e-7 + high - low)


@pytest.mark.peers
def test_maps_are_those_of_the_peers(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.fail("no .venv-peers; make peers installs it")
    model, x = network(), torch.randn(2, 3, 56, 72, generator=torch.Generator().manual_seed(0))
    save_file({**model.state_dict(), "x": x}, tmp_path / "given.safetensors")
    files = [str(tmp_path / f"{name}.safetensors") for name in ("given", "found")]
    subprocess.run([PYTHON, "-c", ASK, *files], check=True)
    theirs = load_file(files[1])
    site = FeatureSite("3", "b c y x", (14, 18))
    card = ModelInfo("net", "other", (56, 72), (0.5,) * 3, (0.5,) * 3, "none", features=(site,))
    subject = ExplainedModel(model, card, model)
    target = target_of(NUMBERS, subject)
    for name, method in (
        ("gradcam", gradcam),
        ("gradcam++", gradcam_plus_plus),
        ("layercam", layercam),
    ):
        ours = like_theirs(method(subject, x, target), (56, 72))
        torch.testing.assert_close(ours, theirs[name], atol=5e-6, rtol=0)
    ours = gradcam(subject, x, target)
    torch.testing.assert_close(ours, theirs["captum_gradcam"][:, 0], atol=1e-6, rtol=1e-6)
    ours = integrated_gradients(subject, x, target, steps=16)
    torch.testing.assert_close(ours, theirs["integrated_gradients"].sum(1), atol=1e-4, rtol=1e-5)
    ours = input_gradient(subject, x, target)
    torch.testing.assert_close(ours, theirs["saliency"].amax(1), atol=0, rtol=1e-6)
    ours = occlusion(subject, x, target, window=9, stride=6, of="scores")
    torch.testing.assert_close(ours, theirs["occlusion"][:, 0], atol=1e-2, rtol=1e-4)
