from .captioning.bleu import (
    NgramCounts as NgramCounts,
)
from .captioning.bleu import (
    bleu_scores as bleu_scores,
)
from .captioning.bleu import (
    ngram_counts as ngram_counts,
)
from .captioning.cider import (
    IdfTable as IdfTable,
)
from .captioning.cider import (
    cider_score as cider_score,
)
from .captioning.cider import (
    cider_scores as cider_scores,
)
from .captioning.cider import (
    rarity_of as rarity_of,
)
from .captioning.java import (
    JavaScore as JavaScore,
)
from .captioning.java import (
    java_score as java_score,
)
from .captioning.ptb_tokenizer import (
    outline as outline,
)
from .captioning.ptb_tokenizer import (
    ptb_tokens as ptb_tokens,
)
from .captioning.ptb_tokenizer import (
    spans as spans,
)
from .captioning.rouge import (
    rouge_score as rouge_score,
)
from .captioning.rouge import (
    shared_length as shared_length,
)
from .captioning.scores import (
    CaptionScores as CaptionScores,
)
from .captioning.scores import (
    caption_scores as caption_scores,
)
from .captioning.scores import (
    listed as listed,
)
from .captioning.scores import (
    score_signature as score_signature,
)
from .maps.attention_stats import (
    LayerDiagnostics as LayerDiagnostics,
)
from .maps.attention_stats import (
    diagnosed_layers as diagnosed_layers,
)
from .maps.attention_stats import (
    layer_diagnostics as layer_diagnostics,
)
from .maps.faithfulness import (
    PerturbationSchedule as PerturbationSchedule,
)
from .maps.faithfulness import (
    exchange_curve as exchange_curve,
)
from .maps.faithfulness import (
    insertion_deletion as insertion_deletion,
)
from .maps.faithfulness import (
    pixel_ranks as pixel_ranks,
)
from .maps.faithfulness import (
    road_scores as road_scores,
)
from .maps.grounding import (
    attention_correctness as attention_correctness,
)
from .maps.grounding import (
    box_target as box_target,
)
from .maps.grounding import (
    boxes_coverage as boxes_coverage,
)
from .maps.grounding import (
    cell_coverage as cell_coverage,
)
from .maps.grounding import (
    paper_correctness as paper_correctness,
)
from .maps.grounding import (
    pointing_hit as pointing_hit,
)
from .maps.grounding import (
    uniform_baseline as uniform_baseline,
)
from .maps.localization import (
    LocationRule as LocationRule,
)
from .maps.localization import (
    LocationScores as LocationScores,
)
from .maps.localization import (
    is_flat as is_flat,
)
from .maps.localization import (
    scores_on_region as scores_on_region,
)
from .maps.sanity_checks import (
    map_likeness as map_likeness,
)
from .maps.sanity_checks import (
    parts_from_the_top as parts_from_the_top,
)
from .maps.sanity_checks import (
    randomized_likeness as randomized_likeness,
)
from .maps.sanity_checks import (
    shuffled_weights as shuffled_weights,
)
