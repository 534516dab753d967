from .captions import (
    Caption as Caption,
    Phrase as Phrase,
)
from .info import (
    MapInfo as MapInfo,
)
from .kinds import (
    MapKind as MapKind,
)
from .map_files import (
    read_saved_maps as read_saved_maps,
)
from .scale import (
    map_scale as map_scale,
)
from .values import (
    Answer as Answer,
    DetectedObject as DetectedObject,
    Detections as Detections,
    ScanPath as ScanPath,
    Segmentation as Segmentation,
)
