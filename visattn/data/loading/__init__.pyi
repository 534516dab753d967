from .fallback import (
    ReadFallback as ReadFallback,
)
from .sample_seed import (
    mixed as mixed,
)
from .sample_seed import (
    numbered_uniforms as numbered_uniforms,
)
from .samplers import (
    DistributedEvalSampler as DistributedEvalSampler,
)
from .samplers import (
    EpochIndexSampler as EpochIndexSampler,
)
from .samplers import (
    LengthBucketBatchSampler as LengthBucketBatchSampler,
)
from .samplers import (
    PairsOnce as PairsOnce,
)
from .stateful_loader import (
    StatefulDataLoader as StatefulDataLoader,
)
