from .block_under_test import (
    BlockUnderTest as BlockUnderTest,
    CheckResult as CheckResult,
    registered_block as registered_block,
)
from .suite import (
    format_table as format_table,
    run_checks as run_checks,
)
