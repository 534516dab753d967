"""What tests of blocks share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_compiler(request: pytest.FixtureRequest) -> Iterator[None]:
    """Forget compiled graphs between tests that compile.

    Functions with shapes in their signature share one wrapper, so torch takes all of them for one
    function that is compiled again and again, and gives up at the ninth.
    """
    yield
    if request.node.get_closest_marker("compile"):
        torch.compiler.reset()
