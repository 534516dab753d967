from .baking import (
    Baked as Baked,
)
from .baking import (
    bake as bake,
)
from .baking import (
    remove as remove,
)
from .baking import (
    unbaked as unbaked,
)
from .convert_weights import (
    block_state as block_state,
)
from .convert_weights import (
    model_state as model_state,
)
from .feature_layout import (
    grid_of as grid_of,
)
from .feature_layout import (
    last_after as last_after,
)
from .feature_layout import (
    last_by_shape as last_by_shape,
)
from .gating_signal import (
    Signal as Signal,
)
from .gating_signal import (
    check_proportion as check_proportion,
)
from .gating_signal import (
    takes_signal as takes_signal,
)
from .graft import (
    InsertedBlock as InsertedBlock,
)
from .graft import (
    attend as attend,
)
from .graft import (
    displace as displace,
)
from .graft import (
    graft_of as graft_of,
)
from .graft import (
    modules_of as modules_of,
)
from .graft import (
    path_in as path_in,
)
from .graft import (
    place as place,
)
from .graft import (
    runs_its_own_loop as runs_its_own_loop,
)
from .graft import (
    scale_name as scale_name,
)
from .hosts import (
    NoFeatureMapError as NoFeatureMapError,
)
from .hosts import (
    Site as Site,
)
from .hosts import (
    candidates as candidates,
)
from .hosts import (
    site_at as site_at,
)
from .hosts import (
    stage_number as stage_number,
)
from .insertion import (
    Insertion as Insertion,
)
from .insertion import (
    check_open as check_open,
)
from .insertion import (
    graft_for as graft_for,
)
from .insertion import (
    insert as insert,
)
from .resolutions import (
    Change as Change,
)
from .resolutions import (
    Features as Features,
)
from .resolutions import (
    ResolutionTracker as ResolutionTracker,
)
from .resolutions import (
    same_size as same_size,
)
from .signal_source import (
    Source as Source,
)
from .signal_source import (
    source_of as source_of,
)
from .sites import (
    Choice as Choice,
)
from .sites import (
    chosen_sites as chosen_sites,
)
from .sites import (
    close_names as close_names,
)
from .stages import (
    Stage as Stage,
)
from .stages import (
    stages_of as stages_of,
)
from .stages import (
    wrappers_of as wrappers_of,
)
from .summary import (
    Cost as Cost,
)
from .summary import (
    Table as Table,
)
from .summary import (
    Work as Work,
)
from .summary import (
    table as table,
)
from .summary import (
    work as work,
)
from .trace_records import (
    Addition as Addition,
)
from .trace_records import (
    Lineage as Lineage,
)
from .trace_records import (
    Output as Output,
)
from .trace_records import (
    Trace as Trace,
)
from .tracer import (
    resting as resting,
)
from .tracer import (
    run as run,
)
from .tracer import (
    trace as trace,
)
