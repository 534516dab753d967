from .captioning import (
    ReferenceScores as ReferenceScores,
    SceneScores as SceneScores,
)
from .chance_level import (
    ChanceLevel as ChanceLevel,
    ClassCounts as ClassCounts,
    chance_level as chance_level,
    wilson_interval as wilson_interval,
)
from .classification import (
    ClassificationScores as ClassificationScores,
)
from .grounding import (
    PhraseScores as PhraseScores,
)
from .weighted_mean import (
    WeightedMean as WeightedMean,
)
