"""The public face: exact names, lazy imports, no torch before it is needed."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import thinwire

PUBLIC = [
    "Recipe",
    "WireFormat",
    "accumulate",
    "blank_compression_state",
    "compress",
    "compression_state",
    "ledger",
    "load_compression_state",
    "parse_format",
    "plan",
    "recipes",
    "shard",
    "skip_step",
]


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_the_public_names_are_these() -> None:
    assert sorted(thinwire.__all__) == PUBLIC
    assert set(PUBLIC) <= set(dir(thinwire))
    for name in PUBLIC:
        assert getattr(thinwire, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        thinwire.nonsense  # noqa: B018


HEAVY = ("torch", "numpy", "numba", "matplotlib", "rich", "typer")


@pytest.mark.parametrize(
    "statement",
    [
        "import thinwire",
        "import thinwire; thinwire.parse_format('int4/128')",
        "import thinwire; thinwire.recipes.zeropp()",
        "import thinwire; thinwire.plan",
        "import thinwire.errors, thinwire.formats, thinwire.recipe, thinwire.recipes",
    ],
)
def test_the_light_half_loads_nothing_heavy(statement: str) -> None:
    assert not modules_after(statement) & set(HEAVY)


def test_the_check_for_heavy_modules_can_fail() -> None:
    assert "torch" in modules_after("import thinwire; thinwire.shard")


def test_a_public_name_is_never_shadowed_by_a_submodule() -> None:
    """Importing a package's submodule sets its name on the package, and would hide a function."""
    submodules = {module.name for module in pkgutil.iter_modules(thinwire.__path__)}
    assert submodules & set(thinwire.__all__) <= {"recipes"}  # which is a module on purpose
