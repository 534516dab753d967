from .show_attend_tell import (
    ShowAttendTell as ShowAttendTell,
)
from .show_attend_tell import (
    ShowAttendTellState as ShowAttendTellState,
)
