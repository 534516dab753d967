from .attending_decoder import (
    AttendingDecoder as AttendingDecoder,
    AttendingDecoderState as AttendingDecoderState,
    CaptionAttention as CaptionAttention,
    SoftAttention as SoftAttention,
    feature_projection as feature_projection,
)
from .decoder_layer import (
    CaptionDecoderLayer as CaptionDecoderLayer,
    CausalSelfAttention as CausalSelfAttention,
    GridAttention as GridAttention,
    GridAttentionOutput as GridAttentionOutput,
    KeyValues as KeyValues,
    PackedWords as PackedWords,
)
from .grid_encoder import (
    GridEncoder as GridEncoder,
    MemoryAttention as MemoryAttention,
)
from .show_attend_tell import (
    ShowAttendTell as ShowAttendTell,
)
from .transformer_captioner import (
    TransformerCaptioner as TransformerCaptioner,
)
from .transformer_decoder import (
    TransformerDecoder as TransformerDecoder,
    TransformerDecoderState as TransformerDecoderState,
)
