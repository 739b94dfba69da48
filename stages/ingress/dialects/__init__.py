"""Dialects, one file each: JSON to neutral messages and back; core. A module without a DIALECT is shared by others."""

from importlib import import_module
from pkgutil import iter_modules

from stages.ingress.dialect import Dialect


def find_dialects() -> tuple[Dialect, ...]:
    """Return the DIALECT of every module of this folder that has one, by module name."""
    names = sorted(module.name for module in iter_modules(__path__))
    modules = [import_module(f"{__name__}.{name}") for name in names]
    return tuple(module.DIALECT for module in modules if hasattr(module, "DIALECT"))
