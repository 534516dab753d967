from .bleu import (
    NgramCounts as NgramCounts,
)
from .bleu import (
    bleu_scores as bleu_scores,
)
from .bleu import (
    ngram_counts as ngram_counts,
)
from .cider import (
    IdfTable as IdfTable,
)
from .cider import (
    cider_score as cider_score,
)
from .cider import (
    cider_scores as cider_scores,
)
from .cider import (
    rarity_of as rarity_of,
)
from .java import (
    JavaScore as JavaScore,
)
from .java import (
    java_score as java_score,
)
from .ptb_tokenizer import (
    outline as outline,
)
from .ptb_tokenizer import (
    ptb_tokens as ptb_tokens,
)
from .ptb_tokenizer import (
    spans as spans,
)
from .rouge import (
    rouge_score as rouge_score,
)
from .rouge import (
    shared_length as shared_length,
)
from .scores import (
    CaptionScores as CaptionScores,
)
from .scores import (
    caption_scores as caption_scores,
)
from .scores import (
    listed as listed,
)
from .scores import (
    score_signature as score_signature,
)
