"""Builds the device that Config names."""

from graphs.step import Device
from stages.errors import StartupError
from trnrt.config import Config
from trnrt.served import ServedModel


def build_device(config: Config, model: ServedModel) -> Device:
    """Return the device."""
    raise StartupError("no device yet")
