from .branch import (
    branch_softmax as branch_softmax,
    merge_branches as merge_branches,
    radix_softmax as radix_softmax,
)
from .channel import (
    eca_gate as eca_gate,
    eca_kernel_size as eca_kernel_size,
    effective_se_gate as effective_se_gate,
    gct_gate as gct_gate,
    global_context_pool as global_context_pool,
    global_context_transform as global_context_transform,
    squeeze_excitation_gate as squeeze_excitation_gate,
    style_pool as style_pool,
    style_scores as style_scores,
)
from .combined import (
    bam_gate as bam_gate,
    cbam_channel_gate as cbam_channel_gate,
    coordinate_gate as coordinate_gate,
    simam_gate as simam_gate,
    strip_pools as strip_pools,
    triplet_gate as triplet_gate,
    z_pool as z_pool,
)
from .spatial import (
    additive_gate as additive_gate,
    cbam_spatial_gate as cbam_spatial_gate,
    channel_pool as channel_pool,
    resize_bilinear as resize_bilinear,
    spatial_squeeze_gate as spatial_squeeze_gate,
)
