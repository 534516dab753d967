from .bam import (
    BAM as BAM,
)
from .cbam import (
    CBAM as CBAM,
)
from .coordinate import (
    CoordinateAttention as CoordinateAttention,
)
from .scse import (
    SCSE as SCSE,
)
from .simam import (
    SimAM as SimAM,
)
from .triplet import (
    AxisPairGate as AxisPairGate,
    TripletAttention as TripletAttention,
)
