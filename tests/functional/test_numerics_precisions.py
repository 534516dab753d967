"""Where half precision is widened, and kept wide."""

import pytest
import torch

from visattn.functional.numerics import at_least_float32, without_autocast


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_only_narrow_numbers_are_widened(given: torch.dtype, wanted: torch.dtype) -> None:
    x = torch.ones(3, dtype=given)
    assert at_least_float32(x).dtype == wanted
    assert (at_least_float32(x) is x) == (given == wanted)


def test_products_stay_wide_under_autocast() -> None:
    one = torch.ones(1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert (one @ one).dtype == torch.bfloat16
        with without_autocast(one.device):
            assert (one @ one).dtype == torch.float32
        assert (one @ one).dtype == torch.bfloat16


def test_devices_without_autocast_are_left_alone() -> None:
    one = torch.ones(1, 1, device="meta")
    with without_autocast(one.device):
        assert (one @ one).shape == (1, 1)
