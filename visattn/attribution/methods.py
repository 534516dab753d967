"""All attribution methods: importing this module fills the table of `registry`."""

from visattn.attribution import (  # noqa: F401 (each registers its methods)
    attention_based,
    attention_flow,
    attn_lrp,
    cam,
    channel_perturbation,
    drise,
    gradient_based,
    legrad,
    model_free,
    modified_backward,
    perturbation,
)
from visattn.attribution.registry import (
    METHODS as METHODS,
    Method as Method,
    get_method as get_method,
    method as method,
    sort_by_needs,
    supported_methods as supported_methods,
)

sort_by_needs()
