from .cam import (
    grad_cam as grad_cam,
    grad_cam_plus_plus as grad_cam_plus_plus,
    layer_cam as layer_cam,
)
from .masks import (
    occlusion_windows as occlusion_windows,
    rise_grids as rise_grids,
    rise_masks as rise_masks,
    window_masks as window_masks,
)
from .rollout import (
    attention_rollout as attention_rollout,
    discard_lowest as discard_lowest,
    fuse_heads as fuse_heads,
    gradient_rollout_weights as gradient_rollout_weights,
    positive_grad_times_attention as positive_grad_times_attention,
    propagate_relevance as propagate_relevance,
)
