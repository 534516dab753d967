"""Checks of constructor arguments."""

import pytest

from visattn.blocks.base import check_choice, check_odd


def test_unknown_choice_raises() -> None:
    check_choice("combine", "mul", ("add", "mul"))
    with pytest.raises(ValueError, match="combine must be one of add, mul, got 'sum'"):
        check_choice("combine", "sum", ("add", "mul"))


@pytest.mark.parametrize("kernel", [0, 2, -3])
def test_even_kernel_size_raises(kernel: int) -> None:
    check_odd("kernel_size", 1)
    with pytest.raises(ValueError, match=f"kernel_size must be odd.*got {kernel}"):
        check_odd("kernel_size", kernel)
