"""Other rounding errors in a model, which show how much its output depends on them."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_PRODUCTS = frozenset({F.linear, torch.matmul, torch.bmm, torch.addmm, Tensor.matmul,
                       Tensor.__matmul__, F.scaled_dot_product_attention})  # fmt: skip


class Rounding(TorchFunctionMode):
    """Changes each result of a matrix product in its last digit, at random.

    Another order of the terms, as in another kernel or batch size, does the same.

    Example:
        >>> ones = torch.ones(2, 3)
        >>> with Rounding():
        ...     product = ones @ ones.T
        >>> bool((product != 3).any()), torch.allclose(product, torch.tensor(3.0))
        (True, True)
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function, and change its result if it is a product."""
        result = func(*args, **(kwargs or {}))
        if func in _PRODUCTS and result.is_floating_point():
            sign = torch.randint(0, 2, result.shape, device=result.device) * 2 - 1
            result = result * (1 + torch.finfo(result.dtype).eps * sign).to(result.dtype)
        return result
