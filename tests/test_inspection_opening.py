"""From a path to tensors: what is known, what is refused, and what a broken file does."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from made_checkpoints import make_tensors, write_index, write_safetensors
from thinwire.errors import InputError
from thinwire.inspection.opening import open_source
from thinwire.inspection.stored import Source


def write_torch(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def read_all(source: Source) -> dict[str, torch.Tensor]:
    return {tensor.name: source.read(tensor.name) for tensor in source.tensors}


WRITERS: dict[str, Callable[[Path], Path]] = {
    "safetensors": lambda folder: write_safetensors(folder / "a.safetensors", make_tensors()),
    "safetensors, misnamed": lambda folder: write_safetensors(folder / "a.pt", make_tensors()),
    "torch": lambda folder: write_torch(folder / "a.pt", make_tensors()),
    "torch, misnamed": lambda folder: write_torch(folder / "a.dump", make_tensors()),
    "index": lambda folder: write_index(folder, make_tensors()),
    "folder with index": lambda folder: write_index(folder, make_tensors()).parent,
    "folder": lambda folder: write_torch(folder / "pytorch_model.bin", make_tensors()).parent,
}


@pytest.mark.parametrize("form", WRITERS)
def test_every_form_gives_the_tensors_that_were_written(form: str, tmp_path: Path) -> None:
    path = WRITERS[form](tmp_path)
    source = open_source(path)
    assert source.label == str(path)
    written = make_tensors()
    assert {tensor.name: tensor.shape for tensor in source.tensors} == {
        name: tuple(tensor.shape) for name, tensor in written.items()
    }
    for name, tensor in read_all(source).items():
        assert torch.equal(tensor, written[name])


def test_a_folder_prefers_the_index_and_passes_over_what_is_no_model(tmp_path: Path) -> None:
    write_index(tmp_path, make_tensors())  # beside it lie two shards that are not meant alone
    write_torch(tmp_path / "training_args.bin", {"a": 1})
    assert len(open_source(tmp_path).tensors) == len(make_tensors())


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_a_name_that_is_no_text_is_to_blame_and_not_the_file(form: str, tmp_path: Path) -> None:
    path = WRITERS[form](tmp_path)
    odd = path.rename(tmp_path / os.fsdecode(b"\xff\xfe.pt"))
    with pytest.raises(InputError, match=r"its name is no text in UTF-8.*rename it") as refused:
        open_source(odd)
    str(refused.value).encode()


def test_a_dtype_of_a_later_library_is_named(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", {"x": torch.zeros(2)})
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"Z32"'))
    with pytest.raises(InputError, match="dtype Z32, which the installed safetensors"):
        open_source(path)


def test_two_candidates_in_a_folder_are_a_question(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        write_safetensors(tmp_path / name, make_tensors())
    with pytest.raises(InputError, match=r"a\.safetensors, b\.safetensors.*name one"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"hello, this is a text", "of a kind that is not known"),
        (b'{"weight_map": {}}', "of a kind that is not known"),
        (b"PK\x03\x04" + bytes(100), "is cut short"),
        (b"\x80\x02", "is cut short"),
        (bytes(7), "of a kind that is not known"),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_a_sentence(
    content: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as raised:
        open_source(path)
    assert str(path) in str(raised.value)


def test_a_torch_file_under_the_name_of_another_kind_is_to_be_renamed(tmp_path: Path) -> None:
    """torch.load goes by the name, and would not read it."""
    path = write_torch(tmp_path / "a.pt", make_tensors()).rename(tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="rename it"):
        open_source(path)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        open_source(tmp_path / "missing.safetensors")
    with pytest.raises(InputError, match="holds no checkpoint"):
        open_source(tmp_path)
    (tmp_path / ".metadata").write_bytes(b"x")
    with pytest.raises(InputError, match="dcp_to_torch"):
        open_source(tmp_path)


@pytest.mark.parametrize("name", ["pipe", "pipe.safetensors", "pipe.pt", "pipe.index.json"])
def test_a_pipe_is_refused_at_once_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=r"is a pipe, not a file.*copy it into a file first"):
        open_source(tmp_path / name)


def test_what_a_shell_passes_as_a_file_of_its_own_is_refused() -> None:
    """``thinwire inspect <(command)`` gives /dev/fd/63, which is a pipe."""
    reader, writer = os.pipe()
    try:
        with pytest.raises(InputError, match="is a pipe, not a file"):
            open_source(Path(f"/dev/fd/{reader}"))
    finally:
        os.close(reader)
        os.close(writer)
    with pytest.raises(InputError, match="is a device, not a file"):
        open_source(Path("/dev/zero"))


def test_paths_that_no_system_call_takes(tmp_path: Path) -> None:
    for path in (Path("n" * 300), Path("n/" * 3000)):
        with pytest.raises(InputError, match=r"too long.*shorter one") as raised:
            open_source(path)
        assert len(str(raised.value)) < 200  # the path itself is not repeated
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "file").touch()
    for path, said in [
        (tmp_path / "circle", "symbolic links"),
        (tmp_path / "file" / "model.pt", "Not a directory"),
        (Path("a\0b"), "null"),
    ]:
        with pytest.raises(InputError, match=f"{said}.*give a safetensors file"):
            open_source(path)


def opens_or_refuses(path: Path) -> bool:
    """Whether the file is whole; anything but an InputError is a failure of the test."""
    try:
        read_all(open_source(path))
    except InputError:
        return False
    return True


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_a_file_that_ends_early_is_refused_wherever_it_ends(form: str, tmp_path: Path) -> None:
    path = WRITERS[form](tmp_path)
    content = path.read_bytes()
    # every length would take a minute: all around the header, then at a stride prime to any layout
    for length in (*range(300), *range(300, len(content), 97)):
        path.write_bytes(content[:length])
        assert not opens_or_refuses(path), f"{length} of {len(content)} bytes were taken for whole"
    path.write_bytes(content)
    assert opens_or_refuses(path)


@pytest.mark.parametrize("form", ["safetensors", "torch", "index"])
def test_a_file_with_wrong_bytes_never_gets_past_the_error_tree(form: str, tmp_path: Path) -> None:
    path = WRITERS[form](tmp_path)
    content = path.read_bytes()
    generator, num_refused = random.Random(0), 0
    for _ in range(200):
        broken = bytearray(content)
        for _ in range(generator.randint(1, 8)):
            # two thirds of the hits go where structure is, at the two ends
            place = generator.choice([generator.randrange(len(content)), generator.randrange(400)])
            broken[min(place, len(content) - 1)] = generator.randrange(256)
        path.write_bytes(bytes(broken))
        num_refused += not opens_or_refuses(path)
    assert num_refused  # or the bytes that matter were never hit
