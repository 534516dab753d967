from .captioning.bleu import (
    NgramCounts as NgramCounts,
    bleu_scores as bleu_scores,
    ngram_counts as ngram_counts,
)
from .captioning.cider import (
    IdfTable as IdfTable,
    WeightedNgrams as WeightedNgrams,
    cider_d as cider_d,
    cider_d_score as cider_d_score,
    idf_table as idf_table,
    weighted_cider_d as weighted_cider_d,
    weighted_ngrams as weighted_ngrams,
)
from .captioning.java import (
    JavaScore as JavaScore,
    java_score as java_score,
)
from .captioning.ptb_tokenizer import (
    ptb_tokenize as ptb_tokenize,
    simplify_characters as simplify_characters,
    token_spans as token_spans,
)
from .captioning.rouge import (
    lcs_length as lcs_length,
    rouge_l as rouge_l,
)
from .captioning.scores import (
    CaptionScores as CaptionScores,
    caption_scores as caption_scores,
    score_signature as score_signature,
)
from .captioning.writing_systems import (
    separate_unspaced as separate_unspaced,
)
from .detection.average_precision import (
    AP_METRICS as AP_METRICS,
    APResult as APResult,
    DetectedBoxes as DetectedBoxes,
    TrueBoxes as TrueBoxes,
    average_precision as average_precision,
)
from .maps.attention_stats import (
    LayerDiagnostics as LayerDiagnostics,
    diagnose_layers as diagnose_layers,
    layer_diagnostics as layer_diagnostics,
)
from .maps.faithfulness import (
    PerturbationEnds as PerturbationEnds,
    PerturbationSchedule as PerturbationSchedule,
    insertion_deletion as insertion_deletion,
    perturbation_curve as perturbation_curve,
    perturbation_ends as perturbation_ends,
    pixel_ranks as pixel_ranks,
    road_scores as road_scores,
)
from .maps.grounding import (
    attention_correctness as attention_correctness,
    box_coverage as box_coverage,
    box_target as box_target,
    mask_coverage as mask_coverage,
    paper_correctness as paper_correctness,
    pointing_hit as pointing_hit,
    uniform_baseline as uniform_baseline,
)
from .maps.localization import (
    LocalizationRule as LocalizationRule,
    LocalizationScores as LocalizationScores,
    is_constant_map as is_constant_map,
    localization_scores as localization_scores,
)
from .maps.sanity_checks import (
    cascading_module_groups as cascading_module_groups,
    cascading_randomization as cascading_randomization,
    map_similarity as map_similarity,
    shuffle_weights as shuffle_weights,
)
from .maps.things import (
    thing_scores as thing_scores,
)
