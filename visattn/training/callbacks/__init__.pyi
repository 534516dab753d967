from .best_checkpoint import (
    BestCheckpoint as BestCheckpoint,
    relocate_checkpoint_paths as relocate_checkpoint_paths,
)
from .ema import (
    EMA as EMA,
    ema_update as ema_update,
)
from .image_logging import (
    CaptionPanels as CaptionPanels,
    CropPanels as CropPanels,
    ImageLogger as ImageLogger,
    draw_crops as draw_crops,
)
from .last_checkpoint import (
    LastCheckpoint as LastCheckpoint,
)
from .monitor import (
    MonitorFallback as MonitorFallback,
    check_monitor as check_monitor,
    monitor_with_mode as monitor_with_mode,
)
from .nonfinite_guard import (
    SkipNonFiniteSteps as SkipNonFiniteSteps,
)
from .progress import (
    ProgressReport as ProgressReport,
    RunPace as RunPace,
    RunProgressBar as RunProgressBar,
    format_duration as format_duration,
    format_epoch as format_epoch,
    planned_epochs as planned_epochs,
    planned_steps as planned_steps,
    progress_callback as progress_callback,
    seconds_left as seconds_left,
)
from .signals import (
    ExitOnSignal as ExitOnSignal,
    GracefulExit as GracefulExit,
    SignalHandler as SignalHandler,
)
