from .additive import (
    AdditiveAttention as AdditiveAttention,
)
from .luong import (
    LuongAttention as LuongAttention,
)
