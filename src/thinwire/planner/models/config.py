"""A Hugging Face ``config.json``: numbers by key, and a clear sentence when one is missing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.planner.value_form import LARGEST, MOST_LAYERS, check_at_most, is_number
from thinwire.planner.workload import DTYPE_BYTES
from thinwire.quoting import quoted, shortened
from thinwire.table_file import file_label, read_json

__all__ = ["ModelConfig", "read_config"]

TORCH_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
ADVICE = "give the config.json of a Hugging Face model, or a number of parameters such as 1.3B"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The content of a config.

    Attributes:
        name: what the model is called: its folder, or the preset.
        values: what the config says.
        file: that it was read from; ``None``: from none.
    """

    name: str
    values: Mapping[str, Any]
    file: Path | None = None

    @property
    def label(self) -> str:
        """What messages call it, which say what to correct and where."""
        return file_label("model", self.file) if self.file else f"model {shortened(self.name)}"

    @property
    def family(self) -> str:
        """``model_type``.

        Raises:
            ConfigError: the config names none.
        """
        family = self.values.get("model_type")
        if family is None:
            raise ConfigError(f"{self.label}: names no model_type; {ADVICE}")
        if not isinstance(family, str):
            raise ConfigError(
                f"{self.label}: model_type = {quoted(family)} is not a text, such as 'llama'"
            )
        return family

    def integer(self, key: str, default: int | None = None, *, most: int = LARGEST) -> int:
        """A size, at least 1.

        Raises:
            ConfigError: it is missing and has no default, or is not a whole number above zero and
                at most ``most``.
        """
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ConfigError(
                    f"{self.label}: the config of a {self.family} model needs {key!r}; add it"
                )
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                f"{self.label}: {key} = {quoted(value)} is not a whole number above zero"
            )
        check_at_most(f"{self.label}: {key}", value, most)
        return value

    def depth(self, key: str, default: int | None = None) -> int:
        """A number of layers; errors as :meth:`integer`."""
        return self.integer(key, default, most=MOST_LAYERS)

    def flag(self, key: str, default: bool) -> bool:
        """A yes or no.

        Raises:
            ConfigError: it is neither true nor false.
        """
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{self.label}: {key} = {quoted(value)} is neither true nor false")
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
            raise ConfigError(f"{self.label}: {key} = {quoted(value)} is not a text")
        return value

    def dropout(self, *keys: str) -> bool:
        """Whether any of these dropout rates is above zero; an absent one is taken as zero.

        Every rate that a family has is to be asked for, for it is checked only here.

        Raises:
            ConfigError: one is no number from 0 to 1.
        """
        rates = {key: self.values.get(key) for key in keys}
        for key, rate in rates.items():
            if rate is not None and not (is_number(rate) and 0 <= rate <= 1):
                raise ConfigError(
                    f"{self.label}: {key} = {quoted(rate)} is not a number from 0 to 1"
                )
        return any(rate > 0 for rate in rates.values() if rate is not None)

    def check_divides(self, *pairs: tuple[str, str]) -> None:
        """Raise unless sizes are divided by others, given as pairs of keys.

        Raises:
            ConfigError: names all pairs that are not.
        """
        faults = []
        for key, divisor_key in pairs:
            value, divisor = self.integer(key), self.integer(divisor_key)
            if value % divisor:
                faults.append(f"{divisor_key} = {divisor} does not divide {key} = {value}")
        if faults:
            raise ConfigError(f"{self.label}: {', and '.join(faults)}; correct one of each two")

    def divided(self, key: str, divisor_key: str) -> int:
        """One size by another.

        Raises:
            ConfigError: it does not divide.
        """
        self.check_divides((key, divisor_key))
        return self.integer(key) // self.integer(divisor_key)

    @property
    def dtype(self) -> str:
        """The checkpoint's dtype; fp32 where the config names none.

        Raises:
            ConfigError: a dtype that is not trained in.
        """
        for key in ("dtype", "torch_dtype"):
            text = self.values.get(key)
            if text is None:
                continue
            word = text.removeprefix("torch.") if isinstance(text, str) else ""
            if word not in TORCH_DTYPES:
                raise ConfigError(
                    f"{self.label}: {key} {quoted(text)} is not one of {', '.join(TORCH_DTYPES)}"
                )
            assert TORCH_DTYPES[word] in DTYPE_BYTES
            return TORCH_DTYPES[word]
        return "fp32"


def read_config(path: Path) -> ModelConfig:
    """The config in a file, or in the folder that holds it.

    Raises:
        ConfigError: the file cannot be read, or is no JSON object.
    """
    file = path / "config.json" if os.path.isdir(path) else path
    content = read_json(file, "model", ADVICE)
    return ModelConfig(name=file.parent.name or str(file), values=content, file=file)
