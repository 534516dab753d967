from .selective_kernel import (
    SelectiveKernel as SelectiveKernel,
    resolve_groups as resolve_groups,
)
from .split_attention import (
    SplitAttention as SplitAttention,
)
