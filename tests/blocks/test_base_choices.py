"""Options that are one of a few."""

import pytest

from visattn.blocks.base import check_choice, check_odd


def test_another_word_is_refused_and_the_choices_are_named() -> None:
    check_choice("combine", "mul", ("add", "mul"))
    with pytest.raises(ValueError, match="combine must be one of add, mul, got 'sum'"):
        check_choice("combine", "sum", ("add", "mul"))


@pytest.mark.parametrize("kernel", [0, 2, -3])
def test_a_size_without_a_middle_is_refused(kernel: int) -> None:
    check_odd("kernel", 1)
    with pytest.raises(ValueError, match=f"kernel must be odd.*got {kernel}"):
        check_odd("kernel", kernel)
