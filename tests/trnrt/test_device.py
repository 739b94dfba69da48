"""Building the device of a server: what of it is shown where."""

import pytest

from trnrt.config import Config
from trnrt.device import build_device
from trnrt.resolve import resolve
from trnrt.served import read_served_model


@pytest.mark.parametrize(("log_format", "has_bars"), [("text", True), ("json", False)])
def test_bars_of_progress_stand_in_no_log_of_json_lines(
    log_format: str, has_bars: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    config = Config(device_mode="eager", log_format=log_format)  # type: ignore[arg-type]
    model = read_served_model(config)
    build_device(resolve(config, model), model).close()
    assert bool(capfd.readouterr().err) == has_bars
