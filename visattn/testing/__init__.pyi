from .behavior import (
    awakened as awakened,
)
from .behavior import (
    ignores_layout as ignores_layout,
)
from .behavior import (
    leaves_input as leaves_input,
)
from .behavior import (
    looks_at_input as looks_at_input,
)
from .behavior import (
    repeats_itself as repeats_itself,
)
from .behavior import (
    sees_each_alone as sees_each_alone,
)
from .candidate import (
    BlockUnderTest as BlockUnderTest,
)
from .candidate import (
    CheckResult as CheckResult,
)
from .candidate import (
    answered as answered,
)
from .candidate import (
    catalogd as catalogd,
)
from .candidate import (
    distance as distance,
)
from .candidate import (
    facing as facing,
)
from .candidate import (
    failed as failed,
)
from .candidate import (
    learn as learn,
)
from .candidate import (
    stood as stood,
)
from .export import (
    compiles as compiles,
)
from .export import (
    copies_whole as copies_whole,
)
from .export import (
    exports as exports,
)
from .export import (
    stays_on_device as stays_on_device,
)
from .export import (
    traces as traces,
)
from .gradients import (
    has_right_slopes as has_right_slopes,
)
from .gradients import (
    learns_everywhere as learns_everywhere,
)
from .shapes_and_dtypes import (
    is_advice as is_advice,
)
from .shapes_and_dtypes import (
    keeps_shape as keeps_shape,
)
from .shapes_and_dtypes import (
    stays_finite as stays_finite,
)
from .shapes_and_dtypes import (
    takes_widths as takes_widths,
)
from .shapes_and_dtypes import (
    trains_alone as trains_alone,
)
from .shapes_and_dtypes import (
    works_in_half as works_in_half,
)
from .suite import (
    examine as examine,
)
from .suite import (
    examine_all as examine_all,
)
from .suite import (
    listed as listed,
)
from .suite import (
    tabled as tabled,
)
