from .attention_map import (
    AttentionMap as AttentionMap,
)
from .kinds import (
    MapKind as MapKind,
)
from .records import (
    read_saved_maps as read_saved_maps,
)
from .scale import (
    map_scale as map_scale,
)
from .values import (
    Answer as Answer,
    Caption as Caption,
    DetectedObject as DetectedObject,
    DetectionResult as DetectionResult,
    Phrase as Phrase,
    ScanPath as ScanPath,
    Segmentation as Segmentation,
)
