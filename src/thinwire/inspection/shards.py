"""A checkpoint in several files, joined by the index that Hugging Face libraries write.

{"weight_map": {"model.embed.weight": "model-00001-of-00002.safetensors", ...}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from thinwire.errors import InputError
from thinwire.file_kind import read_file_text
from thinwire.inspection.stored import Source, natural_order

__all__ = ["Shards", "open_index"]


class Shards:
    """A `Source` of the tensors of several files.

    Args:
        index: the file that joins them.
        label: what messages and tables call them together.
        places: the file of every tensor.

    Raises:
        InputError: a file does not hold a tensor that it should.
    """

    def __init__(self, index: Path, label: str, places: dict[str, Source]) -> None:
        self.label = label
        self.files = (index, *(file for source in set(places.values()) for file in source.files))
        self._places = places
        found = {
            (source.label, tensor.name): tensor
            for source in set(places.values())
            for tensor in source.tensors
        }
        for name, source in places.items():
            if (source.label, name) not in found:
                raise InputError(
                    f"{source.label} does not hold {name}, which the index says lies there; "
                    "download both again"
                )
        self.tensors = tuple(
            found[places[name].label, name] for name in sorted(places, key=natural_order)
        )

    def read(self, name: str) -> Tensor:
        """See `Source.read`."""
        return self._places[name].read(name)


def open_index(path: Path, label: str, open_file: Callable[[Path, str], Source]) -> Shards:
    """The checkpoint that an index describes.

    Args:
        path: the index; its files lie in the same folder.
        label: what messages and tables call it.
        open_file: opens one of them.

    Raises:
        InputError: the index is broken, or names a file elsewhere or one that is not there.
    """
    try:
        content = json.loads(read_file_text(path))
    except OSError as error:
        raise InputError(f"{label}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{label}: not a JSON file ({error}); download it again") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(
            f"{label}: has no weight_map, so it is not the index of a checkpoint; give the "
            "checkpoint's own files instead"
        )
    files: dict[str, Source] = {}
    for name, file in weight_map.items():
        # an index from elsewhere must not make this program read other folders
        if not isinstance(file, str) or Path(file).name != file:
            raise InputError(
                f"{label}: says that {name} lies in {file!r}, which is not a file beside it; "
                "correct the index"
            )
        if file not in files:
            shard = path.parent / file
            if not os.path.lexists(shard):
                raise InputError(
                    f"{path}: names the shard {file}, which is not there; put it into the same "
                    "folder"
                )
            files[file] = open_file(shard, f"{shard}, a shard of {path.name}")
    return Shards(path, label, {name: files[file] for name, file in weight_map.items()})
