from .cache import (
    CachePlan as CachePlan,
)
from .cache import (
    FeatureCache as FeatureCache,
)
from .cache import (
    cache_plan as cache_plan,
)
from .format import (
    FeatureHeader as FeatureHeader,
)
from .format import (
    alone as alone,
)
from .format import (
    differences as differences,
)
from .format import (
    packed as packed,
)
from .format import (
    read_record as read_record,
)
from .format import (
    some as some,
)
from .format import (
    unpacked as unpacked,
)
from .request import (
    Images as Images,
)
from .request import (
    check_given as check_given,
)
from .request import (
    check_size as check_size,
)
from .request import (
    check_there as check_there,
)
from .request import (
    found as found,
)
from .request import (
    requested as requested,
)
from .writer import (
    check_alike as check_alike,
)
from .writer import (
    features_of as features_of,
)
from .writer import (
    placed as placed,
)
from .writer import (
    write_features as write_features,
)
