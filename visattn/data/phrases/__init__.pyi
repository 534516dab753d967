from .grounding import (
    GroundingResult as GroundingResult,
)
from .grounding import (
    SupervisedWords as SupervisedWords,
)
from .grounding import (
    judge_phrases as judge_phrases,
)
from .grounding import (
    supervised_words as supervised_words,
)
from .phrases import (
    Phrase as Phrase,
)
from .phrases import (
    phrases_on_input as phrases_on_input,
)
from .phrases import (
    read_phrases as read_phrases,
)
from .phrases import (
    spoken_phrases as spoken_phrases,
)
