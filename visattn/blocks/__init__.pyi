from .base import (
    Block as Block,
    BlockInfo as BlockInfo,
    apply_gate as apply_gate,
    check_choice as check_choice,
    check_odd as check_odd,
    reduced_channels as reduced_channels,
)
from .branch.selective_kernel import (
    SelectiveKernel as SelectiveKernel,
    resolve_groups as resolve_groups,
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
    AxisPairGate as AxisPairGate,
    TripletAttention as TripletAttention,
)
from .dropout import (
    FastDropout as FastDropout,
)
from .external import (
    check_block_class as check_block_class,
    default_info as default_info,
    import_block as import_block,
    import_module as import_module,
    import_path as import_path,
)
from .norm import (
    CheckedBatchNorm1d as CheckedBatchNorm1d,
    CheckedBatchNorm2d as CheckedBatchNorm2d,
)
from .recurrent.additive import (
    AdditiveAttention as AdditiveAttention,
)
from .recurrent.luong import (
    LuongAttention as LuongAttention,
)
from .registry import (
    BLOCKS as BLOCKS,
    block_class as block_class,
    block_info as block_info,
    block_name as block_name,
    create_block as create_block,
    is_registered as is_registered,
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
    LocalizationNetwork as LocalizationNetwork,
    SpatialTransformer as SpatialTransformer,
)
from .tap import (
    RecordRequest as RecordRequest,
    Tap as Tap,
)
from .transformer.attention import (
    TokenAttention as TokenAttention,
)
from .transformer.deformable import (
    DeformableAttention as DeformableAttention,
    SamplingPoints as SamplingPoints,
)
from .transformer.drop import (
    DropPath as DropPath,
    LayerScale as LayerScale,
    PatchDropout as PatchDropout,
)
from .transformer.layer import (
    EncoderLayer as EncoderLayer,
    run_layers as run_layers,
)
from .transformer.mlp import (
    FeedForward as FeedForward,
    SwiGLU as SwiGLU,
)
from .transformer.multi_head import (
    MultiHeadAttention as MultiHeadAttention,
)
from .transformer.pooling import (
    AttentionPool as AttentionPool,
    SequencePool as SequencePool,
)
from .transformer.stems import (
    ConvStem as ConvStem,
    ConvTokenizer as ConvTokenizer,
    PatchEmbedding as PatchEmbedding,
    ShiftedPatchEmbedding as ShiftedPatchEmbedding,
)
from .transformer.swin_stage import (
    PatchMerging as PatchMerging,
    SwinStage as SwinStage,
    fit_window as fit_window,
)
from .transformer.token_layout import (
    TokenLayout as TokenLayout,
)
from .transformer.window_attention import (
    WindowAttention as WindowAttention,
)
