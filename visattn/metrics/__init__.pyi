from .captions import (
    CaptionScores as CaptionScores,
    caption_scores as caption_scores,
)
from .detection import (
    average_precision as average_precision,
)
from .faithfulness import (
    PerturbationSchedule as PerturbationSchedule,
    insertion_deletion as insertion_deletion,
)
from .grounding import (
    attention_correctness as attention_correctness,
)
from .localization import (
    LocalizationRule as LocalizationRule,
    localization_scores as localization_scores,
    thing_scores as thing_scores,
)
from .ngrams import (
    bleu_scores as bleu_scores,
    cider_d as cider_d,
    rouge_l as rouge_l,
)
from .ptb_tokenizer import (
    ptb_tokenize as ptb_tokenize,
)
