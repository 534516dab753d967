from .attending_decoder import (
    AttendingDecoder as AttendingDecoder,
    AttendingDecoderState as AttendingDecoderState,
    CaptionAttention as CaptionAttention,
    SoftAttention as SoftAttention,
)
from .hard_attention import (
    HardAttention as HardAttention,
    PlaceRollouts as PlaceRollouts,
    PlaceSampler as PlaceSampler,
    one_place as one_place,
    select_places as select_places,
)
from .show_attend_tell import (
    ShowAttendTell as ShowAttendTell,
)
