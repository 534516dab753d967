from .base import (
    Block as Block,
)
from .base import (
    BlockInfo as BlockInfo,
)
from .base import (
    check_choice as check_choice,
)
from .base import (
    check_odd as check_odd,
)
from .base import (
    hidden_width as hidden_width,
)
from .base import (
    scaled as scaled,
)
from .branch.selective_kernel import (
    SelectiveKernel as SelectiveKernel,
)
from .branch.selective_kernel import (
    dividing_groups as dividing_groups,
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
)
from .channel.squeeze_excite import (
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
    PairGate as PairGate,
)
from .combined.triplet import (
    TripletAttention as TripletAttention,
)
from .external import (
    check_class as check_class,
)
from .external import (
    imported as imported,
)
from .external import (
    imported_module as imported_module,
)
from .external import (
    path_of as path_of,
)
from .external import (
    plain_card as plain_card,
)
from .norm import (
    MapNorm as MapNorm,
)
from .norm import (
    VectorNorm as VectorNorm,
)
from .recurrent.additive import (
    AdditiveAttention as AdditiveAttention,
)
from .recurrent.luong import (
    LuongAttention as LuongAttention,
)
from .registry import (
    block_class as block_class,
)
from .registry import (
    create as create,
)
from .registry import (
    info as info,
)
from .registry import (
    is_known as is_known,
)
from .registry import (
    name_of as name_of,
)
from .registry import (
    names as names,
)
from .registry import (
    register as register,
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
)
from .spatial.spatial_gate import (
    SpatialSE as SpatialSE,
)
from .spatial.spatial_transformer import (
    PoseRegression as PoseRegression,
)
from .spatial.spatial_transformer import (
    SpatialTransformer as SpatialTransformer,
)
from .tap import (
    RecordRequest as RecordRequest,
)
from .tap import (
    Tap as Tap,
)
from .transformer.attention import (
    TokenAttention as TokenAttention,
)
from .transformer.drop import (
    DropPath as DropPath,
)
from .transformer.drop import (
    LayerScale as LayerScale,
)
from .transformer.drop import (
    PatchDropout as PatchDropout,
)
from .transformer.layer import (
    EncoderLayer as EncoderLayer,
)
from .transformer.layer import (
    through_layers as through_layers,
)
from .transformer.mlp import (
    FeedForward as FeedForward,
)
from .transformer.mlp import (
    SwiGLU as SwiGLU,
)
from .transformer.multi_head import (
    MultiHeadAttention as MultiHeadAttention,
)
from .transformer.pooling import (
    AttentionPool as AttentionPool,
)
from .transformer.pooling import (
    SequencePool as SequencePool,
)
from .transformer.stems import (
    ConvStem as ConvStem,
)
from .transformer.stems import (
    ConvTokenizer as ConvTokenizer,
)
from .transformer.stems import (
    PatchEmbedding as PatchEmbedding,
)
from .transformer.stems import (
    ShiftedPatchEmbedding as ShiftedPatchEmbedding,
)
from .transformer.swin_stage import (
    PatchMerging as PatchMerging,
)
from .transformer.swin_stage import (
    WindowStage as WindowStage,
)
from .transformer.swin_stage import (
    fitted_window as fitted_window,
)
from .transformer.token_layout import (
    TokenLayout as TokenLayout,
)
from .transformer.window_attention import (
    WindowAttention as WindowAttention,
)
