from .conversion import (
    timm_swin_model as timm_swin_model,
)
from .conversion import (
    timm_swin_parts as timm_swin_parts,
)
from .conversion import (
    torchvision_swin_parts as torchvision_swin_parts,
)
from .hierarchical import (
    HierarchicalTransformer as HierarchicalTransformer,
)
from .hierarchical import (
    swin as swin,
)
