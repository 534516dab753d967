from .baking import (
    BakedModule as BakedModule,
    bake as bake,
    remove as remove,
    unbake_state_dict as unbake_state_dict,
)
from .convert_weights import (
    convert_block_state_dict as convert_block_state_dict,
    convert_model_state_dict as convert_model_state_dict,
)
from .cost import (
    MACs as MACs,
    ModelSummary as ModelSummary,
    SiteCost as SiteCost,
    count_macs as count_macs,
    summary as summary,
)
from .feature_layout import (
    channels_last_after as channels_last_after,
    infer_channels_last as infer_channels_last,
    spatial_size as spatial_size,
)
from .freezing import (
    check_all_saved as check_all_saved,
    freeze_except_blocks as freeze_except_blocks,
    trained_tensors as trained_tensors,
    unfreeze as unfreeze,
)
from .gating_signal import (
    GatingSignal as GatingSignal,
    accepts_signal as accepts_signal,
    check_aspect_ratio as check_aspect_ratio,
)
from .inserted_block import (
    InsertedBlock as InsertedBlock,
    attach as attach,
    attention_hook as attention_hook,
    detach as detach,
    get_inserted as get_inserted,
    has_custom_loop as has_custom_loop,
    module_path as module_path,
    named_modules as named_modules,
    scale_name as scale_name,
)
from .insertion import (
    Insertion as Insertion,
    build_blocks as build_blocks,
    check_modifiable as check_modifiable,
    insert as insert,
)
from .resolutions import (
    FeatureMap as FeatureMap,
    ResolutionChange as ResolutionChange,
    ResolutionTracker as ResolutionTracker,
    same_size as same_size,
)
from .signal_source import (
    SignalSource as SignalSource,
    check_signal_source as check_signal_source,
    find_signal_source as find_signal_source,
)
from .sites import (
    NotAFeatureMapError as NotAFeatureMapError,
    Site as Site,
    SiteSelection as SiteSelection,
    describe_candidates as describe_candidates,
    make_site as make_site,
    select_sites as select_sites,
    stage_number as stage_number,
    suggest_names as suggest_names,
)
from .stages import (
    Stage as Stage,
    find_stages as find_stages,
    multi_stage_modules as multi_stage_modules,
)
from .tracer import (
    Addition as Addition,
    ModuleOutput as ModuleOutput,
    Provenance as Provenance,
    Trace as Trace,
    eval_mode as eval_mode,
    run_model as run_model,
    trace_model as trace_model,
)
