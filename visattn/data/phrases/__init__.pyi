from .grounding import (
    GroundingResult as GroundingResult,
    SupervisedWords as SupervisedWords,
    score_phrases as score_phrases,
    supervised_words as supervised_words,
)
from .phrases import (
    Phrase as Phrase,
    match_phrases as match_phrases,
    phrases_to_input as phrases_to_input,
    read_phrases as read_phrases,
)
