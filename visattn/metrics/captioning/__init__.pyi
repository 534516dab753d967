from .bleu import (
    NgramCounts as NgramCounts,
    bleu_scores as bleu_scores,
    ngram_counts as ngram_counts,
)
from .cider import (
    IdfTable as IdfTable,
    cider_d as cider_d,
    cider_d_score as cider_d_score,
    idf_table as idf_table,
)
from .java import (
    JavaScore as JavaScore,
    java_score as java_score,
)
from .ptb_tokenizer import (
    ptb_tokenize as ptb_tokenize,
    simplify_characters as simplify_characters,
    token_spans as token_spans,
)
from .rouge import (
    lcs_length as lcs_length,
    rouge_l as rouge_l,
)
from .scores import (
    CaptionScores as CaptionScores,
    caption_scores as caption_scores,
    format_ids as format_ids,
    score_signature as score_signature,
)
