from .attention import (
    TokenAttention as TokenAttention,
)
from .drop import (
    DropPath as DropPath,
    LayerScale as LayerScale,
    PatchDropout as PatchDropout,
)
from .layer import (
    EncoderLayer as EncoderLayer,
    run_layers as run_layers,
)
from .mlp import (
    FeedForward as FeedForward,
    SwiGLU as SwiGLU,
)
from .multi_head import (
    MultiHeadAttention as MultiHeadAttention,
)
from .pooling import (
    AttentionPool as AttentionPool,
    SequencePool as SequencePool,
)
from .stems import (
    ConvStem as ConvStem,
    ConvTokenizer as ConvTokenizer,
    PatchEmbedding as PatchEmbedding,
    ShiftedPatchEmbedding as ShiftedPatchEmbedding,
)
from .swin_stage import (
    PatchMerging as PatchMerging,
    SwinStage as SwinStage,
    fit_window as fit_window,
)
from .token_layout import (
    TokenLayout as TokenLayout,
)
from .window_attention import (
    WindowAttention as WindowAttention,
)
