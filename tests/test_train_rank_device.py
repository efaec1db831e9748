"""Which device a rank computes on."""

from __future__ import annotations

import os
from unittest import mock

import pytest
import torch

from thinwire.errors import ConfigError
from thinwire.train.rank_device import rank_device


def test_a_processor_serves_any_number_of_ranks() -> None:
    assert rank_device("cpu") == torch.device("cpu")


def test_a_device_that_is_not_there_is_refused() -> None:
    missing = str(torch.cuda.device_count())
    with (
        mock.patch.dict(os.environ, {"RANK": missing}),
        pytest.raises(ConfigError, match="use --device cpu or fewer ranks"),
    ):
        rank_device("cuda")


def test_under_torchrun_devices_are_counted_on_the_host() -> None:
    environment = {"RANK": "9", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "a run"}
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(torch.cuda, "device_count", return_value=2),
        mock.patch.object(torch.cuda, "set_device") as chosen,
    ):
        assert rank_device("cuda") == torch.device("cuda", 1)
    chosen.assert_called_once_with(1)
