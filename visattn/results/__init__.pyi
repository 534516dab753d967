from .captions import (
    Caption as Caption,
)
from .info import (
    MapInfo as MapInfo,
)
from .values import (
    Answer as Answer,
    Detections as Detections,
    ScanPath as ScanPath,
    Segmentation as Segmentation,
)
