"""ROAD imputation against a dense linear system."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from visattn.metrics.faithfulness import linear_imputation

ROOT = Path(__file__).resolve().parents[2]
SIDE = {0: 1 / 12, 1: 1 / 6}  # of a neighbor, by how many axes it shares


def solved(image: Tensor, known: Tensor) -> Tensor:
    """The dense linear system of a channel, row by row."""
    height, width = image.shape
    holes = [(y, x) for y in range(height) for x in range(width) if not known[y, x]]
    system = torch.zeros(len(holes), len(holes), dtype=torch.float64)
    right = torch.zeros(len(holes), dtype=torch.float64)
    for row, (y, x) in enumerate(holes):
        for v in range(max(y - 1, 0), min(y + 2, height)):
            for u in range(max(x - 1, 0), min(x + 2, width)):
                if (v, u) == (y, x):
                    continue
                weight = SIDE[int(v == y or u == x)]
                system[row, row] += weight
                if known[v, u]:
                    right[row] += weight * image[v, u]
                else:
                    system[row, holes.index((v, u))] -= weight
    filled = image.clone()
    for place, value in zip(holes, torch.linalg.solve(system, right), strict=True):
        filled[place] = value
    return filled


@pytest.mark.parametrize("share", [0.1, 0.6, 0.95])
def test_imputation_solves_the_linear_system_of_each_image(share: float) -> None:
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(2, 3, 11, 13, generator=generator, dtype=torch.float64)
    known = torch.rand(2, 11, 13, generator=generator) >= share
    filled = linear_imputation(images, known, tolerance=1e-13)
    for image, own, imputed in zip(images, known, filled, strict=True):
        for channel, plane in zip(image, imputed, strict=True):
            assert torch.allclose(plane, solved(channel, own), atol=1e-9, rtol=0)


def test_a_batch_without_images_stays_empty() -> None:
    filled = linear_imputation(torch.zeros(0, 3, 7, 5), torch.zeros(0, 7, 5, dtype=torch.bool))
    assert filled.shape == (0, 3, 7, 5)


def test_known_pixels_are_unchanged_and_hidden_pixels_are_ignored() -> None:
    images = torch.randn(2, 3, 17, 11)
    known = torch.rand(2, 17, 11) < 0.3
    filled = linear_imputation(images, known)
    assert torch.equal(
        filled[known[:, None].expand_as(filled)], images[known[:, None].expand_as(images)]
    )
    hidden = torch.where(known[:, None], images, 1e6 * torch.randn_like(images))
    assert torch.equal(linear_imputation(hidden, known), filled)
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    assert bool(((filled >= low - 1e-4) & (filled <= high + 1e-4)).all())


def test_default_tolerance_is_below_the_noise_of_the_method() -> None:
    generator = torch.Generator().manual_seed(3)
    image = torch.randn(1, 1, 64, 64, generator=generator)
    smooth = torch.nn.functional.avg_pool2d(image, 9, 1, 4, count_include_pad=False)
    known = torch.rand(1, 64, 64, generator=generator) < 0.2
    known[:, 16:48, 16:48] = False
    exact = linear_imputation(smooth.double(), known, tolerance=1e-12)
    assert (linear_imputation(smooth, known) - exact).abs().max() < 1e-3


def test_image_without_known_pixels_is_refused_and_without_unknown_is_unchanged() -> None:
    images = torch.randn(2, 3, 5, 7)
    everything = torch.ones(2, 5, 7, dtype=torch.bool)
    assert torch.equal(linear_imputation(images, everything), images)
    with pytest.raises(ValueError, match="must have a known pixel"):
        linear_imputation(images, everything & torch.tensor([True, False])[:, None, None])


_PEER = """
import json, sys, torch
from pytorch_grad_cam.metrics.road import NoisyLinearImputer
image, known = (torch.tensor(one) for one in json.load(sys.stdin))
print(json.dumps(NoisyLinearImputer(noise=0.0)(image, known.float()).tolist()))
"""


@pytest.mark.peers
def test_matches_pytorch_grad_cam_imputation() -> None:
    image, known = torch.randn(3, 29, 31), torch.rand(29, 31) < 0.3
    request = json.dumps([image.tolist(), known.tolist()])
    python = ROOT / ".venv-peers" / "bin" / "python"
    done = subprocess.run(
        [python, "-c", _PEER], input=request, capture_output=True, text=True, check=True
    )
    theirs = torch.tensor(json.loads(done.stdout))
    ours = linear_imputation(image[None], known[None], tolerance=1e-7)[0]
    assert (ours - theirs).abs().max() < 1e-4
