"""All attribution methods, registered when this module is imported."""

from typing import get_args

from visattn.attribution import (  # noqa: F401 (each registers its methods)
    attention,
    cam,
    gates,
    gradient,
    legrad,
    perturbation,
    saliency,
)
from visattn.attribution.registry import (
    METHODS as METHODS,
    Method as Method,
    Needs,
    default_method as default_method,
    find_name as find_name,
    get_method as get_method,
    method as method,
    supported_methods as supported_methods,
)

_ORDER = {needs: number for number, needs in enumerate(get_args(Needs))}
for _entry in sorted(
    METHODS.values(), key=lambda each: (_ORDER[each.needs], each.function.__module__)
):
    METHODS[_entry.name] = METHODS.pop(_entry.name)  # the same order however modules were imported
