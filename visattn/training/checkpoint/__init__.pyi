from .atomic_writer import (
    AtomicCheckpointIO as AtomicCheckpointIO,
)
from .atomic_writer import (
    tensor_bytes as tensor_bytes,
)
from .loop_state import (
    gathered as gathered,
)
from .loop_state import (
    settle as settle,
)
from .loop_state import (
    validates_next as validates_next,
)
from .reader import (
    Progress as Progress,
)
from .reader import (
    read_checkpoint as read_checkpoint,
)
from .reader import (
    read_model as read_model,
)
from .reader import (
    read_progress as read_progress,
)
from .reader import (
    read_recorded_score as read_recorded_score,
)
from .resume_checks import (
    check_resumable as check_resumable,
)
from .resume_checks import (
    check_schedules as check_schedules,
)
