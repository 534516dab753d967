"""Blocks of timm that correspond to those of visattn, with the same widths."""

from collections.abc import Callable

from timm.layers.bottleneck_attn import BottleneckAttn
from timm.layers.cbam import CbamModule, SpatialAttn
from timm.layers.coord_attn import CoordAttn
from timm.layers.eca import EcaModule
from timm.layers.global_context import GlobalContext
from timm.layers.non_local_attn import NonLocalAttn
from timm.layers.selective_kernel import SelectiveKernel
from timm.layers.split_attn import SplitAttn
from timm.layers.squeeze_excite import EffectiveSEModule, SEModule
from torch import nn

Rival = Callable[[int, tuple[int, int]], nn.Module]

RIVALS: dict[str, Rival] = {
    "se": lambda c, _: SEModule(c, rd_ratio=1 / 16, rd_divisor=1),
    "ese": lambda c, _: EffectiveSEModule(c),
    "eca": lambda c, _: EcaModule(c),
    "gc": lambda c, _: GlobalContext(
        c, fuse_add=True, fuse_scale=False, rd_channels=max(1, c // 16)
    ),
    "spatial": lambda _channels, _: SpatialAttn(7),
    "cbam": lambda c, _: CbamModule(c, rd_channels=max(1, c // 16)),
    "coordinate": lambda c, _: CoordAttn(c, rd_channels=max(8, c // 32)),
    "sk": lambda c, _: SelectiveKernel(
        c, c, split_input=False, groups=32, rd_channels=max(32, c // 16)
    ),
    "split": lambda c, _: SplitAttn(c, c, norm_layer=nn.BatchNorm2d),
    "nonlocal": lambda c, _: NonLocalAttn(c, use_scale=False, rd_channels=c // 2),
    "botnet": lambda c, size: BottleneckAttn(c, feat_size=size, scale_pos_embed=True),
}
"""Factories by the name of our block, called with channels and (height, width)."""
