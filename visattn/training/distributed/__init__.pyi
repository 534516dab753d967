from .launcher import (
    ChildMonitor as ChildMonitor,
)
from .launcher import (
    WatchedLauncher as WatchedLauncher,
)
from .launcher import (
    end_children as end_children,
)
from .launcher import (
    failed_child as failed_child,
)
from .launcher import (
    keep_watch as keep_watch,
)
from .peers import (
    LifeSigns as LifeSigns,
)
from .peers import (
    PeerMonitor as PeerMonitor,
)
from .peers import (
    losses_told as losses_told,
)
from .peers import (
    peer_lost as peer_lost,
)
from .reduce import (
    fair_share as fair_share,
)
from .reduce import (
    known_anywhere as known_anywhere,
)
from .reduce import (
    mean_of_all as mean_of_all,
)
from .reduce import (
    processes as processes,
)
from .reduce import (
    spread_of_all as spread_of_all,
)
from .sample_rng import (
    StepDraws as StepDraws,
)
from .sample_rng import (
    step_draws as step_draws,
)
from .seed import (
    reseed as reseed,
)
