from .attention_stats import (
    LayerDiagnostics as LayerDiagnostics,
)
from .attention_stats import (
    diagnosed_layers as diagnosed_layers,
)
from .attention_stats import (
    layer_diagnostics as layer_diagnostics,
)
from .faithfulness import (
    PerturbationSchedule as PerturbationSchedule,
)
from .faithfulness import (
    exchange_curve as exchange_curve,
)
from .faithfulness import (
    insertion_deletion as insertion_deletion,
)
from .faithfulness import (
    pixel_ranks as pixel_ranks,
)
from .faithfulness import (
    road_scores as road_scores,
)
from .grounding import (
    attention_correctness as attention_correctness,
)
from .grounding import (
    box_target as box_target,
)
from .grounding import (
    boxes_coverage as boxes_coverage,
)
from .grounding import (
    cell_coverage as cell_coverage,
)
from .grounding import (
    paper_correctness as paper_correctness,
)
from .grounding import (
    pointing_hit as pointing_hit,
)
from .grounding import (
    uniform_baseline as uniform_baseline,
)
from .localization import (
    LocationRule as LocationRule,
)
from .localization import (
    LocationScores as LocationScores,
)
from .localization import (
    is_flat as is_flat,
)
from .localization import (
    scores_on_region as scores_on_region,
)
from .sanity_checks import (
    map_likeness as map_likeness,
)
from .sanity_checks import (
    parts_from_the_top as parts_from_the_top,
)
from .sanity_checks import (
    randomized_likeness as randomized_likeness,
)
from .sanity_checks import (
    shuffled_weights as shuffled_weights,
)
