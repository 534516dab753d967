from .attending_decoder import (
    AttendingDecoder as AttendingDecoder,
    AttendingDecoderState as AttendingDecoderState,
    CaptionAttention as CaptionAttention,
    SoftAttention as SoftAttention,
)
from .show_attend_tell import (
    ShowAttendTell as ShowAttendTell,
)
