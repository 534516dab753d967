from .baking import (
    bake as bake,
    remove as remove,
)
from .convert_weights import (
    convert_block_state_dict as convert_block_state_dict,
    convert_model_state_dict as convert_model_state_dict,
)
from .cost import (
    count_macs as count_macs,
    summary as summary,
)
from .freezing import (
    freeze_except_blocks as freeze_except_blocks,
)
from .insertion import (
    Insertion as Insertion,
    insert as insert,
)
from .sites import (
    NotAFeatureMapError as NotAFeatureMapError,
)
