"""A Hugging Face ``config.json``: numbers by key, and a clear sentence when one is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.file_kind import read_file_text
from thinwire.planner.value_form import check_below_limit, is_number
from thinwire.planner.workload import DTYPE_BYTES

__all__ = ["ModelConfig", "read_config"]

TORCH_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The content of a config.

    Attributes:
        name: what the model is called: its folder, or the preset.
        values: what the config says.
    """

    name: str
    values: Mapping[str, Any]

    @property
    def family(self) -> str:
        """``model_type``.

        Raises:
            ConfigError: the config names none.
        """
        family = self.values.get("model_type")
        if not isinstance(family, str):
            raise ConfigError(
                f"model {self.name}: names no model_type, so it is not the config of a "
                "Hugging Face model"
            )
        return family

    def integer(self, key: str, default: int | None = None) -> int:
        """A size, at least 1.

        Raises:
            ConfigError: it is missing and has no default, or is not a whole number above zero.
        """
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ConfigError(
                    f"model {self.name}: the config of a {self.family} model needs {key!r}; add it"
                )
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                f"model {self.name}: {key} = {value!r} is not a whole number above zero"
            )
        check_below_limit(f"model {self.name}: {key}", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A yes or no.

        Raises:
            ConfigError: it is neither true nor false.
        """
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"model {self.name}: {key} = {value!r} is neither true nor false")
        return value

    def text(self, key: str, default: str) -> str:
        """A word.

        Raises:
            ConfigError: it is not a text.
        """
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ConfigError(f"model {self.name}: {key} = {value!r} is not a text")
        return value

    def dropout(self, *keys: str) -> bool:
        """Whether any of these dropout rates is above zero; an absent one is taken as zero.

        Raises:
            ConfigError: one is no number.
        """
        rates = {key: self.values.get(key) for key in keys}
        for key, rate in rates.items():
            if rate is not None and not is_number(rate):
                raise ConfigError(f"model {self.name}: {key} = {rate!r} is not a number")
        return any(rate > 0 for rate in rates.values() if rate is not None)

    def divided(self, key: str, divisor_key: str) -> int:
        """One size by another.

        Raises:
            ConfigError: it does not divide.
        """
        value, divisor = self.integer(key), self.integer(divisor_key)
        if value % divisor:
            raise ConfigError(
                f"model {self.name}: {divisor_key} = {divisor} does not divide {key} = {value}"
            )
        return value // divisor

    @property
    def dtype(self) -> str:
        """The checkpoint's dtype; fp32 where the config names none.

        Raises:
            ConfigError: a dtype that is not trained in.
        """
        names = (self.values.get("dtype"), self.values.get("torch_dtype"), "float32")
        text = next(name for name in names if name is not None)
        word = str(text).removeprefix("torch.")
        if word not in TORCH_DTYPES:
            raise ConfigError(
                f"model {self.name}: dtype {text!r} is not one of {', '.join(TORCH_DTYPES)}"
            )
        assert TORCH_DTYPES[word] in DTYPE_BYTES
        return TORCH_DTYPES[word]


def read_config(path: Path) -> ModelConfig:
    """The config in a file, or in the folder that holds it.

    Raises:
        ConfigError: the file cannot be read, or is no JSON object.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(read_file_text(file))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"model {file}: cannot be read ({reason})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"model {file}: not a JSON file ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"model {file}: holds no JSON object")
    return ModelConfig(name=file.parent.name or str(file), values=content)
