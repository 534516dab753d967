from .base import (
    DataModule as DataModule,
    InputSpec as InputSpec,
    Task as Task,
    check_class_names as check_class_names,
)
from .callbacks.attention_logging import (
    AttentionLogger as AttentionLogger,
)
from .callbacks.best_checkpoint import (
    BestCheckpoint as BestCheckpoint,
    relocate_checkpoint_paths as relocate_checkpoint_paths,
)
from .callbacks.ema import (
    EMA as EMA,
    AveragedWeights as AveragedWeights,
    ema_decay as ema_decay,
    ema_update as ema_update,
)
from .callbacks.even_forwards import (
    EvenForwards as EvenForwards,
)
from .callbacks.image_logging import (
    CaptionPanels as CaptionPanels,
    CropPanels as CropPanels,
    ImageLogger as ImageLogger,
    SegmentationPanels as SegmentationPanels,
    draw_crops as draw_crops,
    require_whole_model as require_whole_model,
)
from .callbacks.last_checkpoint import (
    LastCheckpoint as LastCheckpoint,
)
from .callbacks.lightning_callbacks import (
    TrainingMetricCheck as TrainingMetricCheck,
    prepare_callbacks as prepare_callbacks,
)
from .callbacks.monitor import (
    MonitorFallback as MonitorFallback,
    check_monitor as check_monitor,
    monitor_with_mode as monitor_with_mode,
)
from .callbacks.nonfinite_guard import (
    SkipNonFiniteSteps as SkipNonFiniteSteps,
)
from .callbacks.progress import (
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
from .callbacks.signals import (
    ExitOnSignal as ExitOnSignal,
    GracefulExit as GracefulExit,
    SignalHandler as SignalHandler,
)
from .checkpoint.atomic_writer import (
    AtomicCheckpointIO as AtomicCheckpointIO,
    tensor_bytes as tensor_bytes,
)
from .checkpoint.loop_state import (
    is_accumulation_complete as is_accumulation_complete,
    normalize_loop_state as normalize_loop_state,
    validates_after_batch as validates_after_batch,
)
from .checkpoint.resume_checks import (
    check_resumable as check_resumable,
    check_scheduler_states as check_scheduler_states,
)
from .cli.arguments import (
    complete_args as complete_args,
    expand_env_vars as expand_env_vars,
    option_values as option_values,
    resolve_configs as resolve_configs,
    validate_args as validate_args,
)
from .cli.entry import (
    help_text as help_text,
)
from .cli.lightning_cli import (
    TrainingCLI as TrainingCLI,
    silence_lightning as silence_lightning,
)
from .cli.parser import (
    Parser as Parser,
    configure_jsonargparse as configure_jsonargparse,
    format_error as format_error,
    report_user_errors as report_user_errors,
)
from .cli.score_table import (
    score_table as score_table,
)
from .cli.trainer_checks import (
    check_trainer as check_trainer,
)
from .cli.yaml_safety import (
    check_yaml as check_yaml,
    read_config as read_config,
)
from .data.captions import (
    CaptionDataModule as CaptionDataModule,
    CaptionedImagesDataModule as CaptionedImagesDataModule,
)
from .data.classification import (
    ClassificationDataModule as ClassificationDataModule,
)
from .data.cluttered_mnist import (
    ClutteredMNISTDataModule as ClutteredMNISTDataModule,
)
from .data.dense import (
    DenseDataModule as DenseDataModule,
)
from .data.detection import (
    CocoDetectionDataModule as CocoDetectionDataModule,
    DetectionDataModule as DetectionDataModule,
    ScenesDetectionDataModule as ScenesDetectionDataModule,
)
from .data.digit_sequences import (
    DigitSequenceDataModule as DigitSequenceDataModule,
)
from .data.fallback import (
    ReadFallbackDataModule as ReadFallbackDataModule,
)
from .data.folder import (
    FolderDataModule as FolderDataModule,
)
from .data.questions import (
    QuestionDataModule as QuestionDataModule,
    SceneQuestionsDataModule as SceneQuestionsDataModule,
    SortOfClevrDataModule as SortOfClevrDataModule,
)
from .data.scenes import (
    ScenesDataModule as ScenesDataModule,
    SingleObjectDataModule as SingleObjectDataModule,
)
from .data.segmentation import (
    CocoSegmentationDataModule as CocoSegmentationDataModule,
    MaskFolderDataModule as MaskFolderDataModule,
    SceneSegmentationDataModule as SceneSegmentationDataModule,
    SegmentationDataModule as SegmentationDataModule,
)
from .data.shards import (
    ShardCaptionDataModule as ShardCaptionDataModule,
    ShardClassificationDataModule as ShardClassificationDataModule,
    open_shards as open_shards,
    read_word_counts as read_word_counts,
)
from .data.torchvision import (
    TorchvisionDataModule as TorchvisionDataModule,
)
from .data.vqa import (
    VQADataModule as VQADataModule,
)
from .data.webdataset import (
    WebDatasetCaptionDataModule as WebDatasetCaptionDataModule,
    WebDatasetClassificationDataModule as WebDatasetClassificationDataModule,
    concatenate_batches as concatenate_batches,
    stream_loader as stream_loader,
    to_caption_sample as to_caption_sample,
    to_labeled_batch as to_labeled_batch,
)
from .distributed.accumulation import (
    GradientAccumulation as GradientAccumulation,
)
from .distributed.fsdp import (
    FSDP2Strategy as FSDP2Strategy,
    all_shards_finite as all_shards_finite,
    check_shardable as check_shardable,
    gather_state as gather_state,
    local_shards as local_shards,
    repeated_layers as repeated_layers,
    shard_model as shard_model,
    shard_optimizer_state as shard_optimizer_state,
    shard_state as shard_state,
)
from .distributed.launcher import (
    ChildLauncher as ChildLauncher,
    configure_strategy as configure_strategy,
    failed_child as failed_child,
    terminate_children as terminate_children,
)
from .distributed.peers import (
    SameDataCheck as SameDataCheck,
    is_peer_lost as is_peer_lost,
    report_lost_peers as report_lost_peers,
)
from .distributed.reduce import (
    all_gather_union as all_gather_union,
    all_reduce_max as all_reduce_max,
    all_reduce_mean as all_reduce_mean,
    all_reduce_std as all_reduce_std,
    ddp_loss_scale as ddp_loss_scale,
    world_size as world_size,
)
from .distributed.rng import (
    StepGenerator as StepGenerator,
    seed_step as seed_step,
    step_generator as step_generator,
)
from .metrics.captioning import (
    GateAUC as GateAUC,
    ReferenceScores as ReferenceScores,
    SceneScores as SceneScores,
)
from .metrics.chance_level import (
    ChanceLevel as ChanceLevel,
    ClassCounts as ClassCounts,
    chance_level as chance_level,
    wilson_interval as wilson_interval,
)
from .metrics.classification import (
    ClassificationScores as ClassificationScores,
)
from .metrics.detection import (
    DetectionScores as DetectionScores,
)
from .metrics.grounding import (
    PhraseScores as PhraseScores,
)
from .metrics.questions import (
    QuestionScores as QuestionScores,
    ReferentScores as ReferentScores,
    answer_scores as answer_scores,
    referent_boxes as referent_boxes,
)
from .metrics.segmentation import (
    FOREGROUND_METRIC as FOREGROUND_METRIC,
    SEGMENTATION_METRICS as SEGMENTATION_METRICS,
    GateScores as GateScores,
    SegmentationScores as SegmentationScores,
    boundary_band as boundary_band,
)
from .metrics.sequences import (
    SequenceScores as SequenceScores,
)
from .metrics.weighted_mean import (
    WeightedMean as WeightedMean,
)
from .optim import (
    OptimizerGroup as OptimizerGroup,
    Schedule as Schedule,
    build_optimizer as build_optimizer,
    constant as constant,
    cosine as cosine,
    trapezoid as trapezoid,
    warmup_schedule as warmup_schedule,
    weight_decay_groups as weight_decay_groups,
)
from .run_dir.checkpoints import (
    ResumePoint as ResumePoint,
    find_resume_point as find_resume_point,
    set_aside as set_aside,
)
from .run_dir.create import (
    ScoreWriter as ScoreWriter,
    create_run_dir as create_run_dir,
    latest_run_dir as latest_run_dir,
    lock_run_dir as lock_run_dir,
    next_run_dir as next_run_dir,
    require_empty_run_dir as require_empty_run_dir,
)
from .targets import (
    TargetCounts as TargetCounts,
)
from .tasks.caption_eval import (
    CaptionEvalTask as CaptionEvalTask,
)
from .tasks.caption_generation import (
    CaptionWithMaps as CaptionWithMaps,
    encode_images as encode_images,
    generate_captions as generate_captions,
    reference_captions as reference_captions,
    teacher_force_batch as teacher_force_batch,
)
from .tasks.caption_hard import (
    HardAttentionTask as HardAttentionTask,
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
from .tasks.detection import (
    DetectionTask as DetectionTask,
)
from .tasks.detection_losses import (
    Matches as Matches,
    SetCriterion as SetCriterion,
    denoising_pairs as denoising_pairs,
    identity_matches as identity_matches,
)
from .tasks.glimpse import (
    GlimpseTask as GlimpseTask,
)
from .tasks.glimpse_diagnostics import (
    gradient_norms as gradient_norms,
    gradient_signal_to_noise as gradient_signal_to_noise,
    policy_diagnostics as policy_diagnostics,
)
from .tasks.glimpse_eval import (
    ErrorPerGlimpse as ErrorPerGlimpse,
    GlimpseEvaluator as GlimpseEvaluator,
    SequenceError as SequenceError,
    batch_centers as batch_centers,
    knows_centers as knows_centers,
    object_centers as object_centers,
)
from .tasks.glimpse_losses import (
    GlimpseLosses as GlimpseLosses,
    ValueBaseline as ValueBaseline,
    check_num_labels as check_num_labels,
    compute_glimpse_losses as compute_glimpse_losses,
    label_targets as label_targets,
    total_cross_entropy as total_cross_entropy,
)
from .tasks.glimpse_supervision import (
    digit_scanpaths as digit_scanpaths,
    supervised_policy_loss as supervised_policy_loss,
    supervised_rollout as supervised_rollout,
)
from .tasks.question_losses import (
    answer_loss as answer_loss,
    hop_targets as hop_targets,
)
from .tasks.questions import (
    QuestionEvaluation as QuestionEvaluation,
    QuestionTask as QuestionTask,
)
from .tasks.segmentation import (
    SegmentationTask as SegmentationTask,
    SplitScores as SplitScores,
)
from .tasks.sequence_recognition import (
    SequenceRecognitionTask as SequenceRecognitionTask,
)
