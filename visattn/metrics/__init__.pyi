from .captioning.bleu import (
    bleu_scores as bleu_scores,
)
from .captioning.cider import (
    cider_d as cider_d,
)
from .captioning.ptb_tokenizer import (
    ptb_tokenize as ptb_tokenize,
)
from .captioning.rouge import (
    rouge_l as rouge_l,
)
from .captioning.scores import (
    CaptionScores as CaptionScores,
    caption_scores as caption_scores,
)
from .detection.average_precision import (
    average_precision as average_precision,
)
from .faithfulness import (
    PerturbationSchedule as PerturbationSchedule,
    insertion_deletion as insertion_deletion,
)
from .localization import (
    LocalizationRule as LocalizationRule,
    localization_scores as localization_scores,
    thing_scores as thing_scores,
)
from .maps.grounding import (
    attention_correctness as attention_correctness,
)
