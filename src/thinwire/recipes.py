"""The named recipes, and how a recipe is written in text and in files.

zeropp                                a named recipe
zeropp:grads=int8/128:compute=fp32    with fields overridden, each after a colon
thin:grads_for=*embed*>int8|*head*>bf16   formats of single parameters, by patterns on their names
my-recipe.toml                        a TOML file of fields, with an optional ``base`` name
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.quoting import quoted, shortened
from thinwire.recipe import Recipe
from thinwire.table_file import errors_in, file_label, read_toml
from thinwire.validity import RULE_FIELDS

__all__ = [
    "ddp",
    "ddp_powersgd",
    "ddp_sign",
    "ddp_topk",
    "format_recipe",
    "hpz",
    "hsdp",
    "names",
    "parse_recipe",
    "parse_recipes",
    "qsdp",
    "recipe_files",
    "sdp4bit",
    "thin",
    "zero1",
    "zero2",
    "zero3",
    "zeropp",
]


def ddp(**fields: Any) -> Recipe:
    """Stock DDP: everything replicated, gradients all-reduced in the parameters' dtype."""
    return _named("ddp", {"stage": 0, "grads": "fp32", "compute": "fp32"}, fields)


def _fed_back(name: str, grads: str, fields: Mapping[str, Any], warmup_steps: int = 0) -> Recipe:
    """DDP whose gradients travel in a biased format, which needs error feedback to train."""
    defaults = {"stage": 0, "grads": grads, "compute": "fp32", "feedback": True}
    return _named(name, {**defaults, "warmup_steps": warmup_steps}, fields)


def ddp_powersgd(**fields: Any) -> Recipe:
    """PowerSGD (arXiv 1905.13727): every gradient as the product of two matrices of rank 4."""
    return _fed_back("ddp_powersgd", "lowrank=4", fields)


def ddp_topk(**fields: Any) -> Recipe:
    """The 1 % of largest gradients, with feedback (arXiv 1809.07599)."""
    return _fed_back("ddp_topk", "topk=0.01", fields)


def ddp_sign(**fields: Any) -> Recipe:
    """One bit per gradient, with feedback (arXiv 1901.09847), after an uncompressed start.

    One bit is too coarse for the large gradients of the first steps (arXiv 2102.02888, section 3),
    so the first 20 are sent in full; a long run takes more.
    """
    return _fed_back("ddp_sign", "sign/128", fields, warmup_steps=20)


def _stock(name: str, stage: int, compute: str, fields: Mapping[str, Any]) -> Recipe:
    """Stock FSDP2 with weights and gradients on the wire in the dtype that computes."""
    defaults = {"stage": stage, "weights": compute, "grads": compute, "compute": compute}
    return _named(name, defaults, fields)


def zero1(*, compute: str = "bf16", **fields: Any) -> Recipe:
    """Optimizer states sharded (arXiv 1910.02054, section 5.1), uncompressed."""
    return _stock("zero1", 1, compute, fields)


def zero2(*, compute: str = "bf16", **fields: Any) -> Recipe:
    """Optimizer states and gradients sharded (section 5.2), uncompressed: stock FSDP2."""
    return _stock("zero2", 2, compute, fields)


def zero3(*, compute: str = "bf16", **fields: Any) -> Recipe:
    """Parameters sharded too (section 5.3), uncompressed: stock FSDP2."""
    return _stock("zero3", 3, compute, fields)


def hpz(*, compute: str = "bf16", **fields: Any) -> Recipe:
    """``zero3`` with the second gather served within the host (arXiv 2306.10209, section 3.2)."""
    defaults = {"weights": compute, "grads": compute, "compute": compute, "replica": "host"}
    return _named("hpz", defaults, fields)


def hsdp(*, compute: str = "bf16", **fields: Any) -> Recipe:
    """Shards within the host, uncompressed, and int8 gradients across (arXiv 2304.11277, 3.2.2)."""
    defaults = {"weights": compute, "grads": "int8/128", "compute": compute, "hybrid": True}
    return _named("hsdp", defaults, fields)


def zeropp(**fields: Any) -> Recipe:
    """ZeRO++ (arXiv 2306.10209): int8 weights, replica per host, int4 gradients."""
    defaults = {"weights": "int8/256", "grads": "int4/128", "replica": "host"}
    return _named("zeropp", defaults, fields)


def qsdp(**fields: Any) -> Recipe:
    """QSDP (arXiv 2302.02390): int8 weights on a shifted lattice, unbiased int8 gradients."""
    defaults = {"weights": "int8/256+shift", "grads": "int8/256+stochastic"}
    return _named("qsdp", defaults, fields)


def sdp4bit(**fields: Any) -> Recipe:
    """SDP4Bit (arXiv 2410.15526): int4 weight deltas, gradients int8 within and int4 across hosts.

    Gradients are rotated by a Hadamard transform as in the paper (section 3.2), and rounded
    stochastically.
    """
    defaults = {
        "weights": "int4/2048",
        "replica": "rank/bf16",
        "grads_within": "int8/128+stochastic+hadamard",
        "grads": "int4/128+stochastic+hadamard",
    }
    return _named("sdp4bit", defaults, fields)


def thin(**fields: Any) -> Recipe:
    """The project's own best: int3 deltas into a bf16 replica; gradients int8, then int4."""
    defaults = {
        "weights": "int3/128+bf16scale",
        "replica": "rank/bf16",
        "grads_within": "int8/128",
        "grads": "int4/128+bf16scale",
    }
    return _named("thin", defaults, fields)


NAMED: Mapping[str, Callable[..., Recipe]] = types.MappingProxyType(
    {
        "ddp": ddp,
        "ddp_powersgd": ddp_powersgd,
        "ddp_topk": ddp_topk,
        "ddp_sign": ddp_sign,
        "zero1": zero1,
        "zero2": zero2,
        "zero3": zero3,
        "hpz": hpz,
        "hsdp": hsdp,
        "zeropp": zeropp,
        "qsdp": qsdp,
        "sdp4bit": sdp4bit,
        "thin": thin,
    }
)

_KNOWN = ", ".join(NAMED)


def names() -> tuple[str, ...]:
    """The names of all named recipes."""
    return tuple(NAMED)


def _named(name: str, defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> Recipe:
    fields = {"name": name, **defaults, **overrides}
    if fields.get("stage") == 1:
        fields.setdefault("accumulate", "keep")  # which is what stage 1 means
    try:
        return Recipe(**fields)
    except TypeError as error:
        unknown = sorted(set(overrides) - set(_field_types()))
        if not unknown:
            raise
        raise ConfigError(_unknown_fields(unknown)) from error


def parse_recipe(text: str) -> Recipe:
    """The recipe that a text names.

    Args:
        text: a name (``zeropp``), a name with overrides (``zeropp:grads=int8/128:compute=fp32``),
            or the path of a TOML file.

    Raises:
        ConfigError: unknown name or field, or a value that the field cannot have; says which can.
    """
    text = text.strip()
    if text.endswith(".toml"):
        return read_recipe(Path(text))
    name, *assignments = text.split(":")
    if name not in NAMED:
        raise ConfigError(
            f"unknown recipe {quoted(name)}: use one of {_KNOWN}, "
            "or the path of a file that ends in .toml"
        )
    overrides: dict[str, Any] = {}
    for assignment in assignments:
        field, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(
                f"recipe {quoted(text)}: {quoted(assignment)} is not of the form field=value"
            )
        field = field.strip()
        if field in overrides:
            raise ConfigError(
                f"recipe {quoted(text)} gives {shortened(field)} twice: write it once"
            )
        overrides[field] = _parse_value(field, value.strip())
    return NAMED[name](**{"name": text, **overrides})


def parse_recipes(text: str) -> tuple[Recipe, ...]:
    """The recipes of a comma-separated list; see :func:`parse_recipe`.

    Raises:
        ConfigError: the list is empty, names a recipe twice, or one of them does not parse.
    """
    items = [item.strip() for item in text.split(",")] if text.strip() else []
    if not items:
        raise ConfigError(f"no recipe given: name one or more of {_KNOWN}")
    if "" in items:
        raise ConfigError(f"recipes {quoted(text)}: nothing between two commas; leave one out")
    twice = sorted({item for item in items if items.count(item) > 1})
    if twice:
        raise ConfigError(f"recipe {quoted(twice[0])} is listed twice: name each recipe once")
    return tuple(parse_recipe(item) for item in items)


def recipe_files(text: str) -> tuple[Path, ...]:
    """The files that :func:`parse_recipes` reads for a text."""
    items = (item.strip() for item in text.split(","))
    return tuple(Path(item) for item in items if item.endswith(".toml"))


def read_recipe(path: Path) -> Recipe:
    """The recipe of a TOML file: fields of :class:`Recipe`, and ``base``, a recipe to start from.

    Raises:
        ConfigError: the file cannot be read, is no TOML, says nothing, or has an unknown field.
    """
    label = file_label("recipe file", path)
    table = read_toml(path, "recipe file", f"give fields of a recipe in TOML, or one of {_KNOWN}")
    if not table:
        raise ConfigError(
            f"{label}: says nothing; give fields of a recipe, or a base to start from"
        )
    base = table.pop("base", None)
    if "exact" in table and isinstance(table["exact"], list):
        table["exact"] = tuple(table["exact"])
    for field in RULE_FIELDS:
        if isinstance(table.get(field), dict):
            table[field] = tuple(table[field].items())
    table.setdefault("name", path.stem)
    with errors_in(label):
        if base is None:
            return _named(path.stem, {}, table)
        if not isinstance(base, str) or base not in NAMED:
            raise ConfigError(f"unknown base {quoted(base)}: use one of {_KNOWN}")
        return NAMED[base](**table)


def format_recipe(recipe: Recipe) -> str:
    """A recipe as the text of a TOML file that :func:`parse_recipe` reads back."""
    lines = [f"# {recipe.name}"]
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if value is None:
            continue  # TOML has no null: an absent field keeps its default, which is None
        written = _format_table(value) if field.name in RULE_FIELDS else _format_value(value)
        lines.append(f"{field.name} = {written}")
    return "\n".join(lines) + "\n"


def _format_table(pairs: tuple[tuple[str, str], ...]) -> str:
    """An inline table, which keeps the order of the pairs."""
    entries = [f"{_format_value(pattern)} = {_format_value(text)}" for pattern, text in pairs]
    return "{" + ", ".join(entries) + "}"


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_format_value(item) for item in value) + "]"
    if isinstance(value, str):
        escaped = "".join(
            f"\\u{ord(char):04x}" if ord(char) < 0x20 or char in '"\\\x7f' else char
            for char in value
        )
        return f'"{escaped}"'
    return str(value)


def _field_types() -> dict[str, Any]:
    return typing.get_type_hints(Recipe)


def _unknown_fields(unknown: list[str]) -> str:
    return f"unknown recipe field {quoted(unknown[0])}: use one of {', '.join(_field_types())}"


def _parse_value(field: str, text: str) -> Any:
    """The value that ``text`` means for a field, by the field's type."""
    types_by_field = _field_types()
    if field not in types_by_field:
        raise ConfigError(_unknown_fields([field]))
    kind = types_by_field[field]
    optional = type(None) in typing.get_args(kind)
    if optional and text == "none":
        return None
    if kind is bool:
        return _parse_bool(field, text)
    if field == "exact":
        return () if text == "none" else tuple(part for part in text.split("|") if part)
    if field in RULE_FIELDS:
        return tuple(_parse_pair(field, part) for part in text.split("|") if part)
    kinds = (kind, *typing.get_args(kind))
    number = float if float in kinds else int if int in kinds else None
    if number is None:
        return text
    try:
        return number(text)
    except ValueError:
        article = "a whole number" if number is int else "a number"
        raise ConfigError(f"recipe field {field}: {quoted(text)} is not {article}") from None


def _parse_pair(field: str, text: str) -> tuple[str, str]:
    pattern, arrow, fmt = text.rpartition(">")
    if not arrow:
        raise ConfigError(
            f"recipe field {field}: {quoted(text)} is not of the form pattern>format; "
            "for example *embed*>int8/128"
        )
    return pattern.strip(), fmt.strip()


def _parse_bool(field: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"recipe field {field}: {quoted(text)} is not one of true, false")
    return text == "true"
