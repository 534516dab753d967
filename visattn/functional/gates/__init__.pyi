from .branch import (
    branch_shares as branch_shares,
)
from .branch import (
    merged as merged,
)
from .branch import (
    radix_weights as radix_weights,
)
from .channel import (
    channel_styles as channel_styles,
)
from .channel import (
    context_shift as context_shift,
)
from .channel import (
    effective_gate as effective_gate,
)
from .channel import (
    efficient_gate as efficient_gate,
)
from .channel import (
    efficient_kernel as efficient_kernel,
)
from .channel import (
    global_context as global_context,
)
from .channel import (
    squeeze_excitation_gate as squeeze_excitation_gate,
)
from .channel import (
    style_scores as style_scores,
)
from .channel import (
    transformation_gate as transformation_gate,
)
from .combined import (
    axis_pools as axis_pools,
)
from .combined import (
    coordinate_gate as coordinate_gate,
)
from .combined import (
    energy_gate as energy_gate,
)
from .combined import (
    joint_gate as joint_gate,
)
from .combined import (
    mean_max_gate as mean_max_gate,
)
from .combined import (
    strip_means as strip_means,
)
from .combined import (
    triplet_gate as triplet_gate,
)
from .spatial import (
    additive_gate as additive_gate,
)
from .spatial import (
    channel_pools as channel_pools,
)
from .spatial import (
    pooled_gate as pooled_gate,
)
from .spatial import (
    projected_gate as projected_gate,
)
from .spatial import (
    resampled as resampled,
)
