"""torch._dynamo is imported when something compiles, not before.

torchvision and timm mark functions as not to be compiled while they are imported, and torch those
of its own when they first run, such as dispatch modes. This imports torch._dynamo, and with it
torch._inductor and sympy: 1.8 of the 5 s that `import timm` takes.

Imports only the standard library, since `visattn.cli` uses this module.
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_LIBRARIES = ("torchvision", "timm")
_DECORATOR = "torch._compile"  # defines how torch itself marks functions
_COMPILER = "torch._dynamo.utils"


@contextmanager
def deferred_compiler() -> Iterator[None]:
    """Import torch, torchvision and timm without torch._dynamo, in the body of a `with` statement.

    What they marked as not to be compiled stays so, and torch._dynamo can be imported at any time.
    """
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the libraries as usual; they are executed by a `_Loader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_ours = fullname == _DECORATOR or fullname.partition(".")[0] in _LIBRARIES
        if not is_ours or "torch._dynamo" in sys.modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Executes a module, with torch.compiler.disable and torch._dynamo.utils deferred."""

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == _DECORATOR:
            super().exec_module(module)
            decorator: Any = module
            decorator._disable_dynamo = _deferred_disable(decorator._disable_dynamo)  # noqa: SLF001
            return
        compiler: Any = importlib.import_module("torch.compiler")
        disable = compiler.disable
        lazy = _LazyModule(_COMPILER)
        # The outermost module defers for those that it imports.
        if is_first := "torch._dynamo" not in sys.modules and _COMPILER not in sys.modules:
            compiler.disable = _deferred_disable(disable)
            sys.modules[_COMPILER] = lazy
        try:
            super().exec_module(module)
        finally:
            if is_first:
                compiler.disable = disable
                if sys.modules.get(_COMPILER) is lazy:
                    del sys.modules[_COMPILER]


class _LazyModule(ModuleType):
    """Imports torch._dynamo.utils when an attribute of it is read."""

    def is_compile_supported(self, device_type: str) -> bool:
        return bool(_compiler_utilities().is_compile_supported(device_type))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of the import system
            raise AttributeError(name)
        return getattr(_compiler_utilities(), name)


def _compiler_utilities() -> ModuleType:
    """Import torch._dynamo.utils, in place of the lazy module."""
    if isinstance(sys.modules.get(_COMPILER), _LazyModule):
        del sys.modules[_COMPILER]
    return importlib.import_module(_COMPILER)


def _deferred_disable(disable: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decorator that disables compilation once torch._dynamo is imported, not before."""

    @functools.wraps(disable)
    def deferred(fn: Any = None, *args: Any, **options: Any) -> Any:
        if fn is None:
            return functools.partial(deferred, *args, **options)
        if isinstance(fn, type) or not hasattr(fn, "__qualname__"):
            return disable(fn, *args, **options)
        disabled = functools.cache(lambda: disable(fn, *args, **options))

        @functools.wraps(fn)
        def call(*values: Any, **keywords: Any) -> Any:
            run = disabled() if "torch._dynamo" in sys.modules else fn
            return run(*values, **keywords)

        return call

    return deferred
