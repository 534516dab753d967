from .insertion import (
    Insertion as Insertion,
    freeze_except_blocks as freeze_except_blocks,
)
from .with_block import (
    WithBlock as WithBlock,
)
