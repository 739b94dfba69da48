"""Chat templates, one file each exporting TEMPLATE: a Chat to segments. Core."""

import importlib
import pkgutil

from stages.errors import ConfigError
from stages.prompt.segments import Template


def load_template(name: str) -> Template:
    """Return the TEMPLATE of the file of that name; raises ConfigError naming the ones there are."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if name not in names:
        raise ConfigError(f"there is no chat template {name!r}; there are: {', '.join(names)}")
    template: Template = importlib.import_module(f"{__name__}.{name}").TEMPLATE
    return template
