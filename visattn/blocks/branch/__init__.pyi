from .selective_kernel import (
    SelectiveKernel as SelectiveKernel,
)
from .selective_kernel import (
    dividing_groups as dividing_groups,
)
from .split_attention import (
    SplitAttention as SplitAttention,
)
