"""One folder, one kind of extension: lists and loads the files of a package by the name users know, - for _."""

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from typing import Any


def names_in(path: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the modules of the package whose __path__ is `path`, in order of the alphabet."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(path)))


def load(package: str, name: str, constant: str) -> Any:
    """Return the constant that the file of `name` exports; raises KeyError when there is no such file."""
    module_name = f"{package}.{name.replace('-', '_')}"
    try:
        return getattr(import_module(module_name), constant)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise KeyError(name) from None
