from .attention import (
    TokenAttention as TokenAttention,
)
from .drop import (
    DropPath as DropPath,
)
from .drop import (
    LayerScale as LayerScale,
)
from .drop import (
    PatchDropout as PatchDropout,
)
from .layer import (
    EncoderLayer as EncoderLayer,
)
from .layer import (
    through_layers as through_layers,
)
from .mlp import (
    FeedForward as FeedForward,
)
from .mlp import (
    SwiGLU as SwiGLU,
)
from .multi_head import (
    MultiHeadAttention as MultiHeadAttention,
)
from .pooling import (
    AttentionPool as AttentionPool,
)
from .pooling import (
    SequencePool as SequencePool,
)
from .stems import (
    ConvStem as ConvStem,
)
from .stems import (
    ConvTokenizer as ConvTokenizer,
)
from .stems import (
    PatchEmbedding as PatchEmbedding,
)
from .stems import (
    ShiftedPatchEmbedding as ShiftedPatchEmbedding,
)
from .swin_stage import (
    PatchMerging as PatchMerging,
)
from .swin_stage import (
    WindowStage as WindowStage,
)
from .swin_stage import (
    fitted_window as fitted_window,
)
from .token_layout import (
    TokenLayout as TokenLayout,
)
from .window_attention import (
    WindowAttention as WindowAttention,
)
