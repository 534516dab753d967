"""Gauss and Legendre's places against NumPy's."""

import numpy as np
import pytest

from visattn.functional.numerics import gauss_legendre


@pytest.mark.parametrize("count", [1, 2, 5, 16, 50])
def test_places_and_weights_are_numpys(count: int) -> None:
    places, weights = np.polynomial.legendre.leggauss(count)
    found = gauss_legendre(count)
    np.testing.assert_allclose(found[0].numpy(), (places + 1) / 2, atol=1e-14)
    np.testing.assert_allclose(found[1].numpy(), weights / 2, atol=1e-14)


def test_there_must_be_a_place() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        gauss_legendre(0)
