"""Files of torch.save: nested containers, tied weights, optimizer states, and no code."""

from __future__ import annotations

import datetime
import os
import pickle
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from thinwire.errors import InputError
from thinwire.inspection.opening import open_source
from thinwire.inspection.stored import Source


def save(path: Path, content: object, **options: bool) -> Source:
    torch.save(content, path, **options)
    return open_source(path)


def names(source: Source) -> list[str]:
    return [tensor.name for tensor in source.tensors]


def test_names_are_paths_through_the_containers(tmp_path: Path) -> None:
    content = {
        "model": {"a": torch.ones(2), "deep": {"b": torch.ones(3)}},
        "grads": [torch.ones(4), (torch.ones(5),)],
        "epoch": 3,
        7: torch.ones(6),
        "note": "text",
    }
    source = save(tmp_path / "a.pt", content)
    assert names(source) == ["model.a", "model.deep.b", "grads.0", "grads.1.0", "7"]
    assert source.read("grads.1.0").numel() == 5


def test_a_bare_tensor_has_a_name(tmp_path: Path) -> None:
    assert names(save(tmp_path / "a.pt", torch.ones(2))) == ["tensor"]


def test_optimizer_states_are_left_out(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    source = save(
        tmp_path / "a.pt", {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    )
    left_out = [tensor for tensor in source.tensors if tensor.obstacle is not None]
    assert {tensor.obstacle for tensor in left_out} == {"optimizer states"}
    assert len(left_out) == 6  # step, exp_avg and exp_avg_sq of weight and bias
    assert names(source)[:2] == ["model.weight", "model.bias"]


def test_tied_weights_are_counted_once(tmp_path: Path) -> None:
    tied = torch.randn(4, 4)
    source = save(tmp_path / "a.pt", {"embed": tied, "head": tied, "part": tied[:2]})
    assert [tensor.obstacle for tensor in source.tensors] == [
        None,
        "the same numbers as embed",
        None,
    ]


def test_what_cannot_be_encoded_says_why(tmp_path: Path) -> None:
    content = {
        "ids": torch.arange(4),
        "mask": torch.ones(2, dtype=torch.bool),
        "empty": torch.ones(0, 3),
        "sparse": torch.eye(3).to_sparse(),
        "complex": torch.ones(2, dtype=torch.complex64),
        "fp8": torch.ones(2).to(torch.float8_e4m3fn),
    }
    obstacles = {t.name: t.obstacle for t in save(tmp_path / "a.pt", content).tensors}
    assert set(obstacles) == set(content)
    assert obstacles["empty"] == "holds no elements"
    for name, word in [("ids", "int64"), ("mask", "bool"), ("fp8", "float8_e4m3fn")]:
        assert str(obstacles[name]).startswith(word)
    assert "dense" in str(obstacles["sparse"])
    assert "complex64" in str(obstacles["complex"])


def test_a_view_that_repeats_is_not_spread_out(tmp_path: Path) -> None:
    """A thousand bytes may stand for more than there is memory."""
    source = save(tmp_path / "a.pt", {"x": torch.randn(8, 8).expand(10**9, 8, 8)})
    (tensor,) = source.tensors
    assert tensor.left_out is not None
    assert "repeats what is stored" in tensor.left_out


def test_parameters_and_views_are_read_as_they_are(tmp_path: Path) -> None:
    matrix = torch.randn(6, 4)
    source = save(tmp_path / "a.pt", {"p": nn.Parameter(matrix), "view": matrix.T})
    assert torch.equal(source.read("view"), matrix.T)
    assert torch.equal(source.read("p"), matrix)


def test_the_old_format_is_read(tmp_path: Path) -> None:
    content = {"a": torch.randn(5), "b": torch.randn(2, 3)}
    source = save(tmp_path / "a.pt", content, _use_new_zipfile_serialization=False)
    for name, tensor in content.items():
        assert torch.equal(source.read(name), tensor)


class Weapon:
    """Calls a function when it is unpickled, as a hostile checkpoint would."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call, self.arguments


# one of each kind that torch refuses with words of its own, the modules that it blocks among them
WEAPONS: dict[str, tuple[Callable[..., object], str]] = {
    "a method": (Path.touch, r"holds getattr|holds pathlib"),
    "a builtin": (open, "holds (io|_io)?.?open"),
    "the system's": (os.mkdir, r"holds code that calls \w+\.mkdir"),
    "a shell": (os.system, r"holds code that calls \w+\.system.*ask where it comes from"),
    "the interpreter's": (sys.exit, r"holds code that calls sys\.exit"),
    "a process": (subprocess.Popen, "Popen"),
}


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
@pytest.mark.parametrize("kind", WEAPONS)
def test_code_in_a_file_is_named_and_not_run(
    tmp_path: Path, kind: str, options: dict[str, bool]
) -> None:
    call, said = WEAPONS[kind]
    target = tmp_path / "target"
    argument = f"touch {target}" if call is os.system else str(target)
    content = {"a": torch.ones(1), "b": Weapon(call, argument)}
    with pytest.raises(InputError, match=said) as raised:
        save(tmp_path / "a.pt", content, **options)
    assert "code from a file is not run" in str(raised.value)
    assert "download it again" not in str(raised.value)
    assert not target.exists()


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_later_protocol_may_hold_code_and_is_refused(tmp_path: Path, protocol: int) -> None:
    for content in ({"a": torch.ones(1)}, Weapon(os.system, f"touch {tmp_path}/target")):
        torch.save(content, tmp_path / "a.pt", pickle_protocol=protocol)
        with pytest.raises(InputError, match=r"protocol 4 or later.*code from a file is not run"):
            open_source(tmp_path / "a.pt")
    assert not (tmp_path / "target").exists()


def test_a_pickle_that_torch_did_not_write_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"a": [1.0]}, protocol=2))
    with pytest.raises(InputError, match=r"torch\.save did not write.*torch\.save\("):
        open_source(tmp_path / "a.pt")


@pytest.mark.parametrize("old", [True, False])
def test_a_file_that_was_cut_anywhere_is_called_cut_and_not_suspected(
    tmp_path: Path, old: bool
) -> None:
    path = tmp_path / "a.pt"
    content = OrderedDict(weight=torch.ones(3), bias=nn.Parameter(torch.ones(2)))
    torch.save(content, path, _use_new_zipfile_serialization=not old)
    whole = path.read_bytes()
    # below ten bytes nothing says of what kind a file is
    for size in range(10, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="download it again") as raised:
            open_source(path)
        told = str(raised.value)
        assert "is cut short" in told or (old and "not a whole file" in told), (size, told)
        assert "code" not in told, (size, told)


def test_the_refusal_names_what_only_code_could_rebuild(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"datetime\.date.*model\.state_dict\(\)"):
        save(tmp_path / "a.pt", {"when": datetime.date(2020, 1, 1)})


def test_a_whole_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"torch\.nn\.modules\.linear\.Linear"):
        save(tmp_path / "a.pt", nn.Linear(2, 2))


class Marked(torch.Tensor):
    """Some library's own tensor, whose numbers may mean anything."""


def test_tensors_of_other_classes_are_left_out_or_refused(tmp_path: Path) -> None:
    with torch.serialization.safe_globals([Marked]):
        source = save(tmp_path / "a.pt", {"a": torch.ones(2).as_subclass(Marked)})
    assert [tensor.obstacle for tensor in source.tensors] == ["Marked (plain tensors are encoded)"]


def save_part(path: Path) -> None:
    """What a rank gets from the parameters of a sharded model."""
    store = f"file://{path}.store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        torch.save({"a": distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])}, path)
    finally:
        dist.destroy_process_group()


def test_a_rank_s_part_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    save_part(path)
    # torch reads such a file where its classes are imported, as they are here
    assert [t.obstacle for t in open_source(path).tensors] == [
        "DTensor (plain tensors are encoded)"
    ]
    code = "import sys; from thinwire.cli import main; sys.exit(main(['inspect', sys.argv[1]]))"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "full_tensor()" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_cannot_send_the_walk_round_in_circles(tmp_path: Path) -> None:
    circle: dict[str, object] = {"a": torch.ones(1)}
    circle["self"] = circle
    doubled: list[object] = [torch.ones(1)]
    for _ in range(60):  # written out this would be 2 ** 60 tensors
        doubled = [doubled, doubled]
    deep: list[object] = [torch.ones(1)]
    for _ in range(300):
        deep = [deep]
    for content in (circle, doubled, deep):
        assert len(save(tmp_path / "a.pt", content).tensors) == 1


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"two tensors are called 'a\.b'"):
        save(tmp_path / "a.pt", {"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)})
