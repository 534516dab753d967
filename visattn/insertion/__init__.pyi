from .cost import (
    summary as summary,
)
from .insertion import (
    Insertion as Insertion,
    freeze_except_blocks as freeze_except_blocks,
    insert as insert,
    remove as remove,
)
from .with_block import (
    WithBlock as WithBlock,
)
