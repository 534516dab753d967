from .launcher import (
    ChildLauncher as ChildLauncher,
    configure_strategy as configure_strategy,
    failed_child as failed_child,
    terminate_children as terminate_children,
)
from .peers import (
    SameDataCheck as SameDataCheck,
    is_peer_lost as is_peer_lost,
    report_lost_peers as report_lost_peers,
)
from .reduce import (
    all_gather_union as all_gather_union,
    all_reduce_mean as all_reduce_mean,
    all_reduce_std as all_reduce_std,
    ddp_loss_scale as ddp_loss_scale,
    world_size as world_size,
)
from .rng import (
    StepGenerator as StepGenerator,
    seed_step as seed_step,
    step_generator as step_generator,
)
