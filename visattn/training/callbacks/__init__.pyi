from .best_checkpoint import (
    BestCheckpoint as BestCheckpoint,
)
from .best_checkpoint import (
    relocate as relocate,
)
from .ema import (
    EMA as EMA,
)
from .ema import (
    moved_average as moved_average,
)
from .image_logging import (
    CaptionPanels as CaptionPanels,
)
from .image_logging import (
    CropPanels as CropPanels,
)
from .image_logging import (
    ImageLogger as ImageLogger,
)
from .image_logging import (
    drawn_crops as drawn_crops,
)
from .last_checkpoint import (
    LastCheckpoint as LastCheckpoint,
)
from .monitor import (
    MonitorFallback as MonitorFallback,
)
from .monitor import (
    check_monitor as check_monitor,
)
from .monitor import (
    monitor_of as monitor_of,
)
from .nonfinite_guard import (
    OutputProbe as OutputProbe,
)
from .nonfinite_guard import (
    SkipNonFiniteSteps as SkipNonFiniteSteps,
)
from .pace import (
    RunPace as RunPace,
)
from .pace import (
    clock as clock,
)
from .pace import (
    epoch_text as epoch_text,
)
from .pace import (
    planned_epochs as planned_epochs,
)
from .pace import (
    planned_steps as planned_steps,
)
from .pace import (
    seconds_left as seconds_left,
)
from .progress_bar import (
    RunProgressBar as RunProgressBar,
)
from .progress_bar import (
    progress_callback as progress_callback,
)
from .progress_lines import (
    ProgressReport as ProgressReport,
)
from .signals import (
    GracefulExit as GracefulExit,
)
from .signals import (
    LeaveAtSignal as LeaveAtSignal,
)
from .signals import (
    SignalWatch as SignalWatch,
)
