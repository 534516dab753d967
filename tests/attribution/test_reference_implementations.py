"""Methods agree with pytorch-grad-cam and Captum, which run in a separate environment."""

import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from visattn.attribution.cam import (
    eigencam,
    eigengradcam,
    finercam,
    gradcam,
    gradcam_plus_plus,
    hirescam,
    kpcacam,
    layercam,
    xgradcam,
)
from visattn.attribution.channel_cam import ablationcam, scorecam
from visattn.attribution.fullgrad import fullgrad
from visattn.attribution.gradient import input_gradient, input_x_gradient, integrated_gradients
from visattn.attribution.perturbation import occlusion
from visattn.attribution.targets import resolve_target
from visattn.recording.model_info import FeatureLayer, ModelInfo
from visattn.recording.subject import Subject

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
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
save_file({name: value.contiguous() for name, value in results.items()}, sys.argv[2])
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


def normalized_and_resized(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Return maps normalized to [0, 1] and resized, as pytorch-grad-cam does."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    scaled = ((maps - low) / (1e-7 + high - low))[:, None]
    large = nn.functional.interpolate(scaled, size, mode="bilinear", align_corners=False)[:, 0]
    low, high = large.amin((1, 2), keepdim=True), large.amax((1, 2), keepdim=True)
    return (large - low) / (1e-7 + high - low)


def check_maps_of_small_scores(subject: Subject, x: Tensor, expected: dict[str, Tensor]) -> None:
    last: nn.Linear = subject.model[6]  # pyright: ignore[reportIndexIssue, reportAssignmentType]
    last.weight.data /= 1000
    target = resolve_target(CLASS_INDICES, subject)
    # Theirs takes the references from a list; of a single one no weight is left.
    index = torch.tensor(CLASS_INDICES)

    def difference(scores: Tensor) -> Tensor:
        rows = torch.arange(2)
        return scores[rows, index] - 0.6 * scores[rows, (index + 1) % 4]

    result = normalized_and_resized(gradcam(subject, x, difference), (56, 72))
    torch.testing.assert_close(result, expected["finercam"], atol=5e-6, rtol=0)
    scores = subject.model(x).detach()
    for row, image in enumerate(x):
        distances = (scores[row] - scores[row, index[row]]).abs()
        nearest = int(distances.argsort()[1])
        ours = finercam(
            subject, image[None], resolve_target(int(index[row]), subject), num_references=1
        )
        theirs = gradcam(
            subject, image[None], lambda out, n=nearest, c=index[row]: out[:, c] - out[:, n]
        )
        torch.testing.assert_close(ours, theirs)
    for name, method in (("eigengradcam", eigengradcam), ("kpcacam", kpcacam)):
        result = method(subject, x, target)
        for ours, projection in zip(result, expected[name], strict=True):
            sign = 1 if bool((ours * projection).sum() > 0) else -1  # theirs is arbitrary
            torch.testing.assert_close(ours, (sign * projection).relu(), atol=5e-6, rtol=1e-4)
    last.weight.data *= 1000


@pytest.mark.peers
def test_maps_equal_those_of_pytorch_grad_cam_and_captum(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.fail("no .venv-peers; make peers installs it")
    model, x = network(), torch.randn(2, 3, 56, 72, generator=torch.Generator().manual_seed(0))
    save_file({**model.state_dict(), "x": x}, tmp_path / "inputs.safetensors")
    files = [str(tmp_path / f"{name}.safetensors") for name in ("inputs", "results")]
    subprocess.run([PYTHON, "-c", SCRIPT, *files], check=True)
    expected = load_file(files[1])
    layer = FeatureLayer("3", "b c y x", (14, 18))
    info = ModelInfo(
        "net", "other", (56, 72), (0.5,) * 3, (0.5,) * 3, "none", feature_layers=(layer,)
    )
    subject = Subject(model, info, model)
    target = resolve_target(CLASS_INDICES, subject)
    for name, method in (
        ("gradcam", gradcam),
        ("gradcam++", gradcam_plus_plus),
        ("layercam", layercam),
        ("hirescam", hirescam),
        ("xgradcam", xgradcam),
        ("ablationcam", ablationcam),
    ):
        result = normalized_and_resized(method(subject, x, target), (56, 72))
        torch.testing.assert_close(result, expected[name], atol=5e-6, rtol=0)
    small = scorecam(subject, x, lambda scores: scores[[0, 1], CLASS_INDICES] / 1000)
    result = normalized_and_resized(small, (56, 72))
    torch.testing.assert_close(result, expected["scorecam"], atol=5e-6, rtol=0)
    maps = fullgrad(subject, x, target)
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    result = (maps - low) / (high - low)
    torch.testing.assert_close(result, expected["fullgrad"], atol=5e-6, rtol=0)
    for result, projection in zip(eigencam(subject, x, target), expected["eigencam"], strict=True):
        sign = 1 if bool((result * projection).sum() > 0) else -1  # theirs is arbitrary
        torch.testing.assert_close(result, (sign * projection).relu(), atol=5e-6, rtol=1e-5)
    check_maps_of_small_scores(subject, x, expected)
    result = input_x_gradient(subject, x, target)
    theirs = expected["input_x_gradient"].sum(1)
    torch.testing.assert_close(result, theirs, atol=1e-4, rtol=1e-5)
    result = gradcam(subject, x, target)
    torch.testing.assert_close(result, expected["captum_gradcam"][:, 0], atol=1e-6, rtol=1e-6)
    result = integrated_gradients(subject, x, target, n_steps=16)
    torch.testing.assert_close(
        result, expected["integrated_gradients"].sum(1), atol=1e-4, rtol=1e-5
    )
    result = input_gradient(subject, x, target)
    torch.testing.assert_close(result, expected["saliency"].amax(1), atol=0, rtol=1e-6)
    result = occlusion(subject, x, target, sliding_window_size=9, stride=6, score_type="logits")
    torch.testing.assert_close(result, expected["occlusion"][:, 0], atol=1e-2, rtol=1e-4)
