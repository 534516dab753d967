from .atomic_writer import (
    AtomicCheckpointIO as AtomicCheckpointIO,
    tensor_bytes as tensor_bytes,
)
from .loop_state import (
    is_accumulation_complete as is_accumulation_complete,
    normalize_loop_state as normalize_loop_state,
    validates_after_batch as validates_after_batch,
)
from .resume_checks import (
    check_resumable as check_resumable,
    check_scheduler_states as check_scheduler_states,
)
