from .base import (
    DataModule as DataModule,
)
from .base import (
    Task as Task,
)
from .callbacks.best_checkpoint import (
    BestCheckpoint as BestCheckpoint,
)
from .callbacks.best_checkpoint import (
    relocate as relocate,
)
from .callbacks.ema import (
    EMA as EMA,
)
from .callbacks.ema import (
    moved_average as moved_average,
)
from .callbacks.image_logging import (
    CaptionPanels as CaptionPanels,
)
from .callbacks.image_logging import (
    CropPanels as CropPanels,
)
from .callbacks.image_logging import (
    ImageLogger as ImageLogger,
)
from .callbacks.image_logging import (
    drawn_crops as drawn_crops,
)
from .callbacks.last_checkpoint import (
    LastCheckpoint as LastCheckpoint,
)
from .callbacks.monitor import (
    MonitorFallback as MonitorFallback,
)
from .callbacks.monitor import (
    check_monitor as check_monitor,
)
from .callbacks.monitor import (
    monitor_of as monitor_of,
)
from .callbacks.nonfinite_guard import (
    OutputProbe as OutputProbe,
)
from .callbacks.nonfinite_guard import (
    SkipNonFiniteSteps as SkipNonFiniteSteps,
)
from .callbacks.pace import (
    RunPace as RunPace,
)
from .callbacks.pace import (
    clock as clock,
)
from .callbacks.pace import (
    epoch_text as epoch_text,
)
from .callbacks.pace import (
    planned_epochs as planned_epochs,
)
from .callbacks.pace import (
    planned_steps as planned_steps,
)
from .callbacks.pace import (
    seconds_left as seconds_left,
)
from .callbacks.progress_bar import (
    RunProgressBar as RunProgressBar,
)
from .callbacks.progress_bar import (
    progress_callback as progress_callback,
)
from .callbacks.progress_lines import (
    ProgressReport as ProgressReport,
)
from .callbacks.signals import (
    GracefulExit as GracefulExit,
)
from .callbacks.signals import (
    LeaveAtSignal as LeaveAtSignal,
)
from .callbacks.signals import (
    SignalWatch as SignalWatch,
)
from .checkpoint.atomic_writer import (
    AtomicCheckpointIO as AtomicCheckpointIO,
)
from .checkpoint.atomic_writer import (
    tensor_bytes as tensor_bytes,
)
from .checkpoint.loop_state import (
    gathered as gathered,
)
from .checkpoint.loop_state import (
    settle as settle,
)
from .checkpoint.loop_state import (
    validates_next as validates_next,
)
from .checkpoint.reader import (
    Progress as Progress,
)
from .checkpoint.reader import (
    read_checkpoint as read_checkpoint,
)
from .checkpoint.reader import (
    read_model as read_model,
)
from .checkpoint.reader import (
    read_progress as read_progress,
)
from .checkpoint.reader import (
    read_recorded_score as read_recorded_score,
)
from .checkpoint.resume_checks import (
    check_resumable as check_resumable,
)
from .checkpoint.resume_checks import (
    check_schedules as check_schedules,
)
from .cli.arguments import (
    completed as completed,
)
from .cli.arguments import (
    mistake as mistake,
)
from .cli.arguments import (
    values as values,
)
from .cli.dry_run import (
    DryRunCLI as DryRunCLI,
)
from .cli.dry_run import (
    rehearse as rehearse,
)
from .cli.entry import (
    help_text as help_text,
)
from .cli.errors import (
    errors_told as errors_told,
)
from .cli.errors import (
    plain_error as plain_error,
)
from .cli.import_allowlist import (
    trust_only_known_packages as trust_only_known_packages,
)
from .cli.lightning_cli import (
    TrainingCLI as TrainingCLI,
)
from .cli.lightning_cli import (
    quieten as quieten,
)
from .cli.parser import (
    Parser as Parser,
)
from .cli.parser import (
    error_text as error_text,
)
from .cli.score_table import (
    score_table as score_table,
)
from .cli.trainer_checks import (
    check_trainer as check_trainer,
)
from .cli.variables import (
    expanded as expanded,
)
from .cli.yaml_safety import (
    check_configs as check_configs,
)
from .cli.yaml_safety import (
    checked_texts as checked_texts,
)
from .data.captions import (
    CaptionDataModule as CaptionDataModule,
)
from .data.captions import (
    CaptionedImagesDataModule as CaptionedImagesDataModule,
)
from .data.classification import (
    ClassificationDataModule as ClassificationDataModule,
)
from .data.cluttered_mnist import (
    ClutteredMNISTDataModule as ClutteredMNISTDataModule,
)
from .data.fallback import (
    ReadFallbackDataModule as ReadFallbackDataModule,
)
from .data.folder import (
    FolderDataModule as FolderDataModule,
)
from .data.scenes import (
    ScenesDataModule as ScenesDataModule,
)
from .data.shards import (
    ShardCaptionDataModule as ShardCaptionDataModule,
)
from .data.shards import (
    ShardClassificationDataModule as ShardClassificationDataModule,
)
from .data.shards import (
    counted_words as counted_words,
)
from .data.shards import (
    opened as opened,
)
from .data.single_object_scenes import (
    SingleObjectDataModule as SingleObjectDataModule,
)
from .data.torchvision import (
    TorchvisionDataModule as TorchvisionDataModule,
)
from .data.webdataset import (
    WebDatasetCaptionDataModule as WebDatasetCaptionDataModule,
)
from .data.webdataset import (
    WebDatasetClassificationDataModule as WebDatasetClassificationDataModule,
)
from .data.webdataset import (
    joined as joined,
)
from .data.webdataset import (
    labeled_sample as labeled_sample,
)
from .data.webdataset import (
    loader as loader,
)
from .data.webdataset import (
    told_sample as told_sample,
)
from .distributed.launcher import (
    ChildMonitor as ChildMonitor,
)
from .distributed.launcher import (
    WatchedLauncher as WatchedLauncher,
)
from .distributed.launcher import (
    end_children as end_children,
)
from .distributed.launcher import (
    failed_child as failed_child,
)
from .distributed.launcher import (
    keep_watch as keep_watch,
)
from .distributed.peers import (
    LifeSigns as LifeSigns,
)
from .distributed.peers import (
    PeerMonitor as PeerMonitor,
)
from .distributed.peers import (
    losses_told as losses_told,
)
from .distributed.peers import (
    peer_lost as peer_lost,
)
from .distributed.reduce import (
    fair_share as fair_share,
)
from .distributed.reduce import (
    known_anywhere as known_anywhere,
)
from .distributed.reduce import (
    mean_of_all as mean_of_all,
)
from .distributed.reduce import (
    processes as processes,
)
from .distributed.reduce import (
    spread_of_all as spread_of_all,
)
from .distributed.sample_rng import (
    StepDraws as StepDraws,
)
from .distributed.sample_rng import (
    step_draws as step_draws,
)
from .distributed.seed import (
    reseed as reseed,
)
from .metrics.captioning import (
    ReferenceScores as ReferenceScores,
)
from .metrics.captioning import (
    SceneScores as SceneScores,
)
from .metrics.chance_level import (
    ChanceLevel as ChanceLevel,
)
from .metrics.chance_level import (
    ClassCounts as ClassCounts,
)
from .metrics.chance_level import (
    chance_level as chance_level,
)
from .metrics.chance_level import (
    wilson_interval as wilson_interval,
)
from .metrics.classification import (
    ClassScores as ClassScores,
)
from .metrics.grounding import (
    PhraseScores as PhraseScores,
)
from .metrics.weighted_mean import (
    WeightedMean as WeightedMean,
)
from .optim import (
    cosine as cosine,
)
from .optim import (
    trapezoid as trapezoid,
)
from .optim import (
    with_schedule as with_schedule,
)
from .run_dir.checkpoints import (
    ResumePoint as ResumePoint,
)
from .run_dir.checkpoints import (
    find_resume_point as find_resume_point,
)
from .run_dir.checkpoints import (
    set_aside as set_aside,
)
from .run_dir.create import (
    ScoresFile as ScoresFile,
)
from .run_dir.create import (
    claim as claim,
)
from .run_dir.create import (
    held as held,
)
from .run_dir.create import (
    latest_run as latest_run,
)
from .run_dir.create import (
    next_run as next_run,
)
from .run_dir.create import (
    refuse_taken as refuse_taken,
)
from .run_dir.find import (
    finished_run as finished_run,
)
from .run_dir.find import (
    run_checkpoint as run_checkpoint,
)
from .run_dir.find import (
    run_config as run_config,
)
from .run_dir.find import (
    run_of as run_of,
)
from .tasks.caption_eval import (
    CaptionEvalTask as CaptionEvalTask,
)
from .tasks.caption_generation import (
    CaptionWithMaps as CaptionWithMaps,
)
from .tasks.caption_generation import (
    features as features,
)
from .tasks.caption_generation import (
    generated as generated,
)
from .tasks.caption_generation import (
    given as given,
)
from .tasks.caption_generation import (
    read as read,
)
from .tasks.caption_scst import (
    SCSTTask as SCSTTask,
)
from .tasks.captioning import (
    CaptioningTask as CaptioningTask,
)
from .tasks.classification import (
    ClassificationTask as ClassificationTask,
)
from .tasks.glimpse import (
    GlimpseTask as GlimpseTask,
)
from .tasks.glimpse import (
    check_options as check_options,
)
from .tasks.glimpse_diagnostics import (
    gradient_norms as gradient_norms,
)
from .tasks.glimpse_diagnostics import (
    gradient_signal as gradient_signal,
)
from .tasks.glimpse_diagnostics import (
    policy_figures as policy_figures,
)
from .tasks.glimpse_eval import (
    ErrorPerGlimpse as ErrorPerGlimpse,
)
from .tasks.glimpse_eval import (
    GlimpseEvaluator as GlimpseEvaluator,
)
from .tasks.glimpse_eval import (
    known_centers as known_centers,
)
from .tasks.glimpse_losses import (
    GlimpseLosses as GlimpseLosses,
)
from .tasks.glimpse_losses import (
    ValueBaseline as ValueBaseline,
)
from .tasks.glimpse_losses import (
    losses_of_looks as losses_of_looks,
)
