from .cam import (
    grad_cam as grad_cam,
)
from .cam import (
    grad_cam_plus_plus as grad_cam_plus_plus,
)
from .cam import (
    layer_cam as layer_cam,
)
from .masks import (
    occlusion_windows as occlusion_windows,
)
from .masks import (
    random_grids as random_grids,
)
from .masks import (
    soft_masks as soft_masks,
)
from .masks import (
    window_masks as window_masks,
)
from .rollout import (
    fused_heads as fused_heads,
)
from .rollout import (
    relevance_rows as relevance_rows,
)
from .rollout import (
    rising_means as rising_means,
)
from .rollout import (
    rising_weights as rising_weights,
)
from .rollout import (
    rollout_rows as rollout_rows,
)
from .rollout import (
    without_weakest as without_weakest,
)
