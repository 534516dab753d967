from .insertion import (
    Insertion as Insertion,
)
from .with_block import (
    WithBlock as WithBlock,
)
