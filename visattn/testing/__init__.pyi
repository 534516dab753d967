from .behavior import (
    depends_on_input as depends_on_input,
    is_batch_independent as is_batch_independent,
    is_deterministic as is_deterministic,
    is_memory_format_invariant as is_memory_format_invariant,
    perturbed_block as perturbed_block,
    preserves_input as preserves_input,
)
from .block_under_test import (
    BlockUnderTest as BlockUnderTest,
    CheckResult as CheckResult,
    backward as backward,
    checked_forward as checked_forward,
    error_context as error_context,
    failed as failed,
    passed as passed,
    registered_block as registered_block,
    relative_error as relative_error,
)
from .export import (
    follows_device as follows_device,
    supports_compile as supports_compile,
    supports_copying as supports_copying,
    supports_export as supports_export,
    supports_fx as supports_fx,
)
from .gradients import (
    passes_gradcheck as passes_gradcheck,
    reaches_all_parameters as reaches_all_parameters,
)
from .shapes_and_dtypes import (
    is_informative as is_informative,
    is_numerically_stable as is_numerically_stable,
    preserves_shape as preserves_shape,
    supports_channel_counts as supports_channel_counts,
    supports_half_precision as supports_half_precision,
    trains_on_single_image as trains_on_single_image,
)
from .suite import (
    format_results as format_results,
    format_table as format_table,
    run_check as run_check,
    run_checks as run_checks,
)
