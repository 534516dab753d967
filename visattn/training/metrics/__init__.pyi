from .captioning import (
    ReferenceScores as ReferenceScores,
)
from .captioning import (
    SceneScores as SceneScores,
)
from .chance_level import (
    ChanceLevel as ChanceLevel,
)
from .chance_level import (
    ClassCounts as ClassCounts,
)
from .chance_level import (
    chance_level as chance_level,
)
from .chance_level import (
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
