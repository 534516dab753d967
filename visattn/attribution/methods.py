"""All attribution methods: importing this module fills the table of `registry`."""

from visattn.attribution import (  # noqa: F401 (each registers its methods)
    attention,
    cam,
    channel_cam,
    fullgrad,
    gates,
    gradient,
    legrad,
    perturbation,
    saliency,
)
from visattn.attribution.registry import (
    METHODS as METHODS,
    Method as Method,
    default_method as default_method,
    find_name as find_name,
    get_method as get_method,
    method as method,
    sort_by_needs,
    supported_methods as supported_methods,
)

sort_by_needs()
