"""Values that must not change: `make net` writes it anew, to be looked at in the difference."""

from collections.abc import Sequence
from typing import Any

import pytest
from kept_values import TOLERANCE, Keep, differences, write


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> Keep:
    """Compare plain values, arrays and tensors with kept/NAME.json, or write them."""
    writing = request.config.getoption("--write-golden")

    def check(
        name: str, values: Any, tolerance: float = TOLERANCE, exact_only: Sequence[str] = ()
    ) -> None:
        if writing:
            write(name, values)
        elif lines := differences(name, values, tolerance, exact_only):
            shown = "\n".join(lines[:11])
            pytest.fail(f"{len(lines)} values differ from kept/{name}.json:\n{shown}")

    return check
