from .conversion import (
    swin_from_timm as swin_from_timm,
    swin_from_torchvision as swin_from_torchvision,
    swin_to_timm as swin_to_timm,
)
from .swin_transformer import (
    SwinTransformer as SwinTransformer,
    create_swin as create_swin,
)
