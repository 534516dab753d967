"""Occlusion and RISE equal plain loops over images and masks."""

import pytest
import torch
from small_models import images, linear_model, small_cnn
from torch import Tensor

from visattn.attribution.perturbation import occlusion, rise
from visattn.attribution.targets import resolve_target
from visattn.functional.attribution.masks import rise_grids, rise_masks


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


def test_occlusion_of_single_pixels_of_a_linear_model_is_their_contribution() -> None:
    weights = torch.randn(4, 3, 5, 7, dtype=torch.float64)
    explained, x = linear_model(weights), torch.randn(2, 3, 5, 7, dtype=torch.float64)
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


@pytest.mark.parametrize("internal_batch_size", [1, 7, 100])
def test_maps_do_not_depend_on_the_batch_or_internal_batch_size(internal_batch_size: int) -> None:
    explained, x = small_cnn(), images(3)

    def both(batch: Tensor, internal_batch_size: int) -> Tensor:
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


def test_the_default_window_depends_on_the_image_size() -> None:
    explained = small_cnn()
    result = occlusion(explained, images(1), resolve_target(0, explained))
    assert torch.equal(
        result,
        occlusion(
            explained, images(1), resolve_target(0, explained), sliding_window_size=1, stride=1
        ),
    )


def test_invalid_arguments_raise_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    explained, x = small_cnn(), images()
    target = resolve_target(0, explained)
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # as outside of tests
    with pytest.raises(ValueError, match="to cover the image"):
        occlusion(explained, x, target, sliding_window_size=3, stride=4)
    with pytest.raises(ValueError, match="between 0 and 1"):
        rise(explained, x, target, keep_probability=0.0)
    with pytest.raises(ValueError, match="internal_batch_size must be at least 1, got 0"):
        rise(explained, x, target, internal_batch_size=0)
    with pytest.raises(ValueError, match="must be 'probabilities' or 'logits'"):
        rise(explained, x, target, score_type="odds")  # pyright: ignore[reportArgumentType]
