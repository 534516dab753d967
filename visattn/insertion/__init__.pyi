from .cost import (
    count_macs as count_macs,
    summary as summary,
)
from .insertion import (
    Insertion as Insertion,
    freeze_except_blocks as freeze_except_blocks,
    insert as insert,
)
from .sites import (
    NotAFeatureMapError as NotAFeatureMapError,
)
from .weights import (
    bake as bake,
    remove as remove,
)
