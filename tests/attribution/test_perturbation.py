"""Occlusion and RISE equal plain loops over images and masks."""

import pytest
import torch
from small_models import images, linear_model, small_cnn
from torch import Tensor

from visattn.attribution.perturbation import occlusion, rise, rise_grids, rise_masks, variant_scorer
from visattn.attribution.targets import resolve_target
from visattn.recording.subject import Subject


def test_occlusion_is_the_mean_decrease_over_all_windows_of_a_pixel() -> None:
    explained, x = small_cnn(), images()
    result = occlusion(
        explained,
        x,
        resolve_target([1, 2], explained),
        sliding_window_size=5,
        stride=4,
        baselines="black",
    )
    model = explained.model.eval()
    with torch.no_grad():
        for row, class_index in ((0, 1), (1, 2)):
            total, counts = torch.zeros(2, 13, 17, dtype=torch.float64)
            original = model(x[row : row + 1]).softmax(1)[0, class_index]
            for top in range(0, 13, 4):
                for left in range(0, 17, 4):
                    if top - 4 + 5 >= 13 or left - 4 + 5 >= 17:
                        continue  # the previous window reached the border
                    hidden = x[row : row + 1].clone()
                    hidden[:, :, top : top + 5, left : left + 5] = -2
                    decrease = original - model(hidden).softmax(1)[0, class_index]
                    total[top : top + 5, left : left + 5] += decrease
                    counts[top : top + 5, left : left + 5] += 1
            torch.testing.assert_close(result[row], total / counts)


@pytest.mark.parametrize("channels", [1, 3])
def test_occlusion_of_single_pixels_of_a_linear_model_is_their_contribution(channels: int) -> None:
    weights = torch.randn(4, channels, 5, 7, dtype=torch.float64)
    explained, x = linear_model(weights), torch.randn(2, channels, 5, 7, dtype=torch.float64)
    result = occlusion(
        explained, x, resolve_target(2, explained), sliding_window_size=1, score_type="logits"
    )
    torch.testing.assert_close(result, (weights[2] * x).sum(1))


def test_rise_is_the_mean_of_masks_weighted_by_scores() -> None:
    explained, x = small_cnn(), images()
    options = {"num_masks": 11, "grid_size": 3, "keep_probability": 0.4, "seed": 2}
    result = rise(explained, x, resolve_target([0, 3], explained), **options)
    masks = rise_masks(
        *rise_grids(11, num_cells=3, keep_probability=0.4, seed=2), (13, 17)
    ).double()
    expected = torch.zeros(2, 13, 17, dtype=torch.float64)
    with torch.no_grad():
        for row, class_index in ((0, 0), (1, 3)):
            for mask in masks:
                score = explained.model.eval()((mask * x[row])[None]).softmax(1)[0, class_index]
                expected[row] += score * mask / (11 * 0.4)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("internal_batch_size", [1, 7, 100, None])
def test_maps_do_not_depend_on_the_batch_or_internal_batch_size(
    internal_batch_size: int | None,
) -> None:
    explained, x = small_cnn(), images(3)

    def both(batch: Tensor, internal_batch_size: int | None) -> Tensor:
        hidden = occlusion(
            explained,
            batch,
            resolve_target(None, explained),
            sliding_window_size=4,
            internal_batch_size=internal_batch_size,
        )
        return hidden + rise(
            explained,
            batch,
            resolve_target(None, explained),
            num_masks=5,
            internal_batch_size=internal_batch_size,
        )

    before = torch.get_rng_state()
    result = both(x, internal_batch_size)
    assert torch.equal(torch.get_rng_state(), before)
    for row in range(3):
        torch.testing.assert_close(both(x[row : row + 1], 32)[0], result[row])


class Viewed(torch.nn.Module):
    """Flattens features with `view`, which channels-last features do not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 5, 3), torch.nn.Linear(5 * 11 * 15, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x).view(len(x), -1)
        return self.head(features)


def test_models_that_call_view_are_scored_in_their_own_layout() -> None:
    torch.manual_seed(0)
    model, x = Viewed(), torch.randn(2, 3, 13, 17)
    explained = Subject(model, small_cnn().info, model)
    target = resolve_target([1, 2], explained)
    with torch.no_grad():
        score, count, original = variant_scorer(explained, x, target, internal_batch_size=3)
        variants = torch.stack((x, -x))
        expected = torch.stack([model(part)[[0, 1], [1, 2]] for part in variants])
        torch.testing.assert_close(score(variants), expected)
        torch.testing.assert_close(original, expected[:1])
    assert count == 1


@pytest.mark.gpu
def test_maps_on_a_gpu_equal_those_on_the_host() -> None:
    torch.manual_seed(0)
    model, x = Viewed().eval(), torch.randn(2, 3, 13, 17)
    info = small_cnn().info
    maps = []
    for device in ("cpu", "cuda"):
        explained = Subject(model.to(device), info, model)
        target = resolve_target([1, 2], explained)
        images = x.to(device)
        maps.append(torch.stack((rise(explained, images, target, num_masks=9),
                                 occlusion(explained, images, target))).cpu())  # fmt: skip
    torch.testing.assert_close(*maps, atol=1e-3, rtol=1e-3)  # TensorFloat-32


def test_the_default_window_depends_on_the_image_size() -> None:
    explained = small_cnn()
    result = occlusion(explained, images(1), resolve_target(0, explained))
    assert torch.equal(
        result,
        occlusion(
            explained, images(1), resolve_target(0, explained), sliding_window_size=1, stride=1
        ),
    )


def test_windows_that_leave_gaps_are_refused() -> None:
    explained, x = small_cnn(), images()
    target = resolve_target(0, explained)
    with pytest.raises(ValueError, match="to cover the image"):
        occlusion(explained, x, target, sliding_window_size=3, stride=4)
