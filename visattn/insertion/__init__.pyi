from .with_block import (
    WithBlock as WithBlock,
)
