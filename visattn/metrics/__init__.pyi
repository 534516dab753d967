from .captions import (
    caption_scores as caption_scores,
)
from .detection import (
    average_precision as average_precision,
)
from .faithfulness import (
    insertion_deletion as insertion_deletion,
)
from .grounding import (
    attention_correctness as attention_correctness,
)
from .localization import (
    localization_scores as localization_scores,
)
from .ngrams import (
    bleu_scores as bleu_scores,
    cider_d as cider_d,
    rouge_l as rouge_l,
)
