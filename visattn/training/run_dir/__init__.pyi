from .checkpoints import (
    ResumePoint as ResumePoint,
)
from .checkpoints import (
    find_resume_point as find_resume_point,
)
from .checkpoints import (
    set_aside as set_aside,
)
from .create import (
    ScoresFile as ScoresFile,
)
from .create import (
    claim as claim,
)
from .create import (
    held as held,
)
from .create import (
    latest_run as latest_run,
)
from .create import (
    next_run as next_run,
)
from .create import (
    refuse_taken as refuse_taken,
)
from .find import (
    finished_run as finished_run,
)
from .find import (
    run_checkpoint as run_checkpoint,
)
from .find import (
    run_config as run_config,
)
from .find import (
    run_of as run_of,
)
