from .base import (
    Block as Block,
    BlockInfo as BlockInfo,
)
from .branch.selective_kernel import (
    SelectiveKernel as SelectiveKernel,
)
from .branch.split_attention import (
    SplitAttention as SplitAttention,
)
from .channel.eca import (
    ECA as ECA,
)
from .channel.gct import (
    GCT as GCT,
)
from .channel.global_context import (
    GlobalContext as GlobalContext,
)
from .channel.squeeze_excite import (
    EffectiveSE as EffectiveSE,
    SqueezeExcite as SqueezeExcite,
)
from .channel.srm import (
    SRM as SRM,
)
from .combined.bam import (
    BAM as BAM,
)
from .combined.cbam import (
    CBAM as CBAM,
)
from .combined.coordinate import (
    CoordinateAttention as CoordinateAttention,
)
from .combined.scse import (
    SCSE as SCSE,
)
from .combined.simam import (
    SimAM as SimAM,
)
from .combined.triplet import (
    TripletAttention as TripletAttention,
)
from .recurrent.additive import (
    AdditiveAttention as AdditiveAttention,
)
from .recurrent.luong import (
    LuongAttention as LuongAttention,
)
from .registry import (
    block_class as block_class,
    block_info as block_info,
    create_block as create_block,
    list_blocks as list_blocks,
    register_block as register_block,
)
from .self_attention.botnet import (
    BoTNetAttention as BoTNetAttention,
)
from .self_attention.criss_cross import (
    CrissCrossAttention as CrissCrossAttention,
)
from .self_attention.danet import (
    DANet as DANet,
)
from .self_attention.double_attention import (
    DoubleAttention as DoubleAttention,
)
from .self_attention.non_local import (
    NonLocal as NonLocal,
)
from .spatial.attention_gate import (
    AttentionGate as AttentionGate,
)
from .spatial.spatial_gate import (
    SpatialGate as SpatialGate,
    SpatialSE as SpatialSE,
)
from .spatial.spatial_transformer import (
    SpatialTransformer as SpatialTransformer,
)
from .tap import (
    Tap as Tap,
)
from .transformer.attention import (
    TokenAttention as TokenAttention,
)
from .transformer.deformable import (
    DeformableAttention as DeformableAttention,
)
from .transformer.layer import (
    EncoderLayer as EncoderLayer,
)
from .transformer.multi_head import (
    MultiHeadAttention as MultiHeadAttention,
)
from .transformer.token_layout import (
    TokenLayout as TokenLayout,
)
from .transformer.window_attention import (
    WindowAttention as WindowAttention,
)
