"""Claim: the layers that ``thinwire inspect`` calls hurt are those to spare from a format.

python benchmarks/inspect/run.py FOLDER    a pretrained encoder in Hugging Face's layout

Beside what inspect says, this sends the weights themselves and measures what inspect cannot know:
how far the model's output moves, for all layers together, for one at a time, with the hurt layers
spared, and with as many layers spared that lose least.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from record import table, write  # noqa: E402 - the folder above is not a package

from thinwire.formats import WireFormat  # noqa: E402
from thinwire.inspection import InspectRequest, inspect, open_source  # noqa: E402
from thinwire.inspection.distortion import carry  # noqa: E402
from thinwire.inspection.report import FileReport  # noqa: E402
from thinwire.inspection.request import parse_formats  # noqa: E402

FORMATS = "int8/128,int4/128,int4/128+hadamard,int4/2048,int4/2048+hadamard,log4/128"
TEXT = HERE.parent.parent / "LICENSE"
LINES = 32


class Probe:
    """A model and a text, to see how far the output moves when weights do."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        lines = [line.strip() for line in TEXT.read_text().splitlines() if line.strip()]
        tokenizer = AutoTokenizer.from_pretrained(folder)
        self._tokens = tokenizer(lines[:LINES], padding=True, return_tensors="pt")
        self._model: nn.Module = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self._weights = dict(self._model.named_parameters())
        self._before = self._output()

    def movement(self, fmt: WireFormat, layers: Collection[str]) -> float:
        """The relative change of the output, in the 2-norm, when these layers travel."""
        kept = {name: self._weights[name].detach().clone() for name in layers}
        for name in layers:
            self._weights[name].data.copy_(carry(kept[name], fmt, name))
        moved = float((self._output() - self._before).norm() / self._before.norm())
        for name in layers:
            self._weights[name].data.copy_(kept[name])
        return moved

    def _output(self) -> Tensor:
        with torch.no_grad():
            states: Tensor = self._model(**self._tokens).last_hidden_state
        return states[self._tokens.attention_mask.bool()]


def rank_correlation(first: list[float], second: list[float]) -> float:
    """Spearman's, for lists without ties."""
    ranks = torch.tensor([first, second]).argsort().argsort().double()
    return float(torch.corrcoef(ranks)[0, 1])


def judge(file: FileReport, fmt: WireFormat, probe: Probe) -> dict[str, Any]:
    """What inspect says of one format, and what the output says."""
    total = file.total(fmt)
    ranked = [layer.name for layer in file.ranked(fmt)]
    numel = {layer.name: layer.tensor.numel for layer in file.measured}
    errors = {layer.name: layer.under(fmt).relative_error for layer in file.measured}
    alone = {name: probe.movement(fmt, [name]) for name in numel}
    count = len(total.hurt)
    parts = {"hurt": ranked[:count], "others": ranked[len(ranked) - count :]}
    return {
        "format": str(fmt),
        "median_error": total.median_error,
        "hurt": list(total.hurt),
        "moved": probe.movement(fmt, ranked),
        "spared": {
            part: {
                "moved": probe.movement(fmt, [name for name in ranked if name not in names]),
                "share": sum(numel[name] for name in names) / sum(numel.values()),
            }
            for part, names in parts.items()
        },
        "rank_correlation": rank_correlation(list(errors.values()), list(alone.values())),
        "layers": {name: {"error": errors[name], "moved": alone[name]} for name in numel},
    }


def row(figure: dict[str, Any]) -> list[str]:
    """One format as a row of the table."""
    count, layers = len(figure["hurt"]), len(figure["layers"])
    spared = [f"{part['moved']:.1%} ({part['share']:.0%})" for part in figure["spared"].values()]
    return [
        f"`{figure['format']}`",
        f"{figure['median_error']:.1%}",
        f"{count} of {layers}",
        f"{figure['moved']:.1%}",
        *(spared if 0 < count < layers else "--"),
        f"{figure['rank_correlation']:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--formats", default=FORMATS)
    options = parser.parse_args()
    formats = parse_formats(options.formats)
    (file,) = inspect([open_source(options.folder)], InspectRequest(formats=formats, top=0)).files
    probe = Probe(options.folder)
    figures = [judge(file, fmt, probe) for fmt in formats]
    header = ["format", "median layer's error", "hurt", "output moves"]
    header += ["hurt ones spared", "as many others spared", "rank correlation"]
    write(HERE, figures, table(header, [row(figure) for figure in figures]))


if __name__ == "__main__":
    main()
