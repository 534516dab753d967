from .attention_stats import (
    LayerDiagnostics as LayerDiagnostics,
    diagnose_layers as diagnose_layers,
    layer_diagnostics as layer_diagnostics,
)
from .faithfulness import (
    PerturbationSchedule as PerturbationSchedule,
    insertion_deletion as insertion_deletion,
    perturbation_curve as perturbation_curve,
    pixel_ranks as pixel_ranks,
    road_scores as road_scores,
)
from .grounding import (
    attention_correctness as attention_correctness,
    box_coverage as box_coverage,
    box_target as box_target,
    mask_coverage as mask_coverage,
    paper_correctness as paper_correctness,
    pointing_hit as pointing_hit,
    uniform_baseline as uniform_baseline,
)
from .localization import (
    LocalizationRule as LocalizationRule,
    LocalizationScores as LocalizationScores,
    is_constant_map as is_constant_map,
    localization_scores as localization_scores,
)
from .sanity_checks import (
    cascading_module_groups as cascading_module_groups,
    cascading_randomization as cascading_randomization,
    map_similarity as map_similarity,
    shuffle_weights as shuffle_weights,
)
