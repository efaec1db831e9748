"""The same training under several recipes, each in fresh processes, over one network.

1. Everything that can be wrong is looked for before the first process starts.
2. The network is built, and its link measured; a link that is not as requested ends the comparison.
3. Recipe by recipe: one process per rank, the same weights, text and data order.
4. With ``also_unshaped``, the same once more over the same hosts without a shaped link.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from thinwire.atomic_file import write_text_atomically
from thinwire.errors import ConfigError
from thinwire.lab import Network, check_link, launch, measure_link, open_network
from thinwire.planner.models.gpt import GPTShape
from thinwire.recipe import Recipe
from thinwire.recipes import format_recipe
from thinwire.train.comparison import Comparison, Link, Run, Setting
from thinwire.train.corpus import Corpus, default_corpus, open_corpus
from thinwire.train.host_memory import MemoryNeed, available_bytes, check_fits
from thinwire.train.job import RankResult, TrainingJob
from thinwire.train.model_spec import ModelSpec, parse_model
from thinwire.train.progress import Progress, parse_event

__all__ = ["CompareRequest", "Predictor", "compare", "no_prediction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """What to compare.

    Attributes:
        recipes: at least one; the first is what the others are held against.
        hosts: number of hosts.
        ranks_per_host: ranks on each.
        link_bit_per_s: rate of every host's link; ``None`` leaves it unshaped.
        also_unshaped: run all recipes once more without a shaped link.
        model: as ``--model`` takes it.
        data: a text file or a folder; ``None`` is the standard library's own source.
        seq_len: tokens per sequence.
        micro_batch: sequences per rank and step.
        steps: of every run.
        seed: of the weights and of the data order.
        learning_rate: of AdamW, at its highest.
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        ConfigError: there is no recipe, or two options contradict.
    """

    recipes: tuple[Recipe, ...]
    hosts: int
    ranks_per_host: int
    link_bit_per_s: float | None
    also_unshaped: bool
    model: str
    data: Path | None
    seq_len: int
    micro_batch: int
    steps: int
    seed: int
    learning_rate: float
    device: str

    def __post_init__(self) -> None:
        if not self.recipes:
            raise ConfigError("no recipe to compare: give one or more with --recipes")
        if self.also_unshaped and self.link_bit_per_s is None:
            raise ConfigError(
                "--also-unshaped without --link would run the same twice: give --link"
            )
        if self.link_bit_per_s is not None and self.device == "cuda":
            raise ConfigError(
                "--device cuda takes no --link: between the devices of one machine NCCL goes round "
                "any shaped link"
            )

    @property
    def world(self) -> int:
        """Ranks on all hosts together."""
        return self.hosts * self.ranks_per_host


class Predictor(Protocol):
    """Foretells the step time of a recipe: where a planner is plugged in."""

    def __call__(
        self, recipe: Recipe, model: ModelSpec, request: CompareRequest, link: Link | None
    ) -> float | None:
        """Seconds per step, or ``None`` where nothing can be foretold."""


def no_prediction(
    recipe: Recipe, model: ModelSpec, request: CompareRequest, link: Link | None
) -> float | None:
    """The null predictor."""
    del recipe, model, request, link
    return None


def compare(
    request: CompareRequest, *, progress: Progress, predict: Predictor = no_prediction
) -> Comparison:
    """Run the comparison; takes as long as all its trainings.

    Args:
        request: what to compare.
        progress: told what happens.
        predict: called once per run, before it.

    Raises:
        ConfigError: an option asks for what cannot be, the model does not fit in memory, or a
            recipe cannot be trained with.
        InputError: the text cannot be read or is too short.
        LabError: the link's measured rate is not the requested one.
        RankError: a rank failed; the others were ended.
    """
    with tempfile.TemporaryDirectory(prefix="thinwire-") as name:
        scratch = Path(name)
        trainer = _Trainer(request, scratch, progress, predict)
        main = trainer.run_setting(request.link_bit_per_s)
        unshaped = trainer.run_setting(None) if request.also_unshaped else None
    return Comparison(
        hosts=request.hosts,
        world=request.world,
        model=request.model,
        parameters=main.runs[0].parameters,
        text=trainer.corpus.source,
        seq_len=request.seq_len,
        micro_batch=request.micro_batch,
        steps=request.steps,
        seed=request.seed,
        main=main,
        unshaped=unshaped,
    )


class _Trainer:
    """Checks a request when made, then trains its recipes over one network after another."""

    def __init__(
        self, request: CompareRequest, scratch: Path, progress: Progress, predict: Predictor
    ) -> None:
        self._request = request
        self._scratch = scratch
        self._progress = progress
        self._predict = predict
        self._spec = parse_model(request.model, seq_len=request.seq_len)
        _check_trainable(request)
        _check_devices(request)
        self.corpus = _open_text(request, scratch)
        self._jobs = [self._write_job(index) for index in range(len(request.recipes))]
        _check_memory(request, self._spec)

    def run_setting(self, link_bit_per_s: float | None) -> Setting:
        """All recipes over one network."""
        request = self._request
        with open_network(request.hosts, request.ranks_per_host, link_bit_per_s) as network:
            link = _measure(network)
            self._progress.begin_setting(link, network.notice)
            runs = tuple(
                self._run(network, link, recipe, job)
                for recipe, job in zip(request.recipes, self._jobs, strict=True)
            )
        return Setting(
            link=link,
            ranks_per_host=request.ranks_per_host,
            notice=network.notice,
            runs=runs,
        )

    def _run(self, network: Network, link: Link | None, recipe: Recipe, job: TrainingJob) -> Run:
        """One recipe in fresh processes."""
        request, progress = self._request, self._progress
        progress.begin_run(recipe.name, job.steps)

        def tell(rank: int, line: str) -> None:
            event = parse_event(line) if rank == 0 else None
            if event is not None:
                progress.step(event)

        job_file = job.results / "job.json"
        launch(
            network,
            [sys.executable, "-m", "thinwire.train.worker", str(job_file)],
            # a namespace has no names for its addresses, and c10d warns of each
            environment={"TORCH_CPP_LOG_LEVEL": "ERROR"},
            on_line=tell,
        )
        run = Run.from_ranks(
            recipe.name,
            [RankResult.read(job.result_file(rank)) for rank in range(request.world)],
            ranks_per_host=request.ranks_per_host,
            predicted_step_s=self._predict(recipe, self._spec, request, link),
            period=recipe.local_steps,
        )
        progress.end_run(run)
        return run

    def _write_job(self, index: int) -> TrainingJob:
        """The job of the recipe with this index, in a folder of its own."""
        request = self._request
        folder = self._scratch / f"recipe-{index}"
        folder.mkdir()
        recipe_file = folder / "recipe.toml"
        write_text_atomically(recipe_file, format_recipe(request.recipes[index]))
        job = TrainingJob(
            recipe_file=recipe_file,
            model=request.model,
            corpus=self.corpus,
            seq_len=request.seq_len,
            micro_batch=request.micro_batch,
            steps=request.steps,
            seed=request.seed,
            learning_rate=request.learning_rate,
            device=request.device,
            results=folder,
        )
        job.write(folder / "job.json")
        return job


def _check_trainable(request: CompareRequest) -> None:
    from thinwire.sharding.support import check_supported  # both load torch
    from thinwire.train.loop import SETTLING_STEPS

    for recipe in request.recipes:
        check_supported(recipe)
        if recipe.local_steps > request.steps:
            raise ConfigError(
                f"recipe {recipe.name}: its ranks would not meet once in {request.steps} steps; "
                f"give --steps {recipe.local_steps + SETTLING_STEPS} or more, or fewer local_steps"
            )


def _check_devices(request: CompareRequest) -> None:
    """Every rank needs a device of its own, for all hosts are this machine."""
    if request.device != "cuda":
        return
    import torch

    found = torch.cuda.device_count()
    if found < request.world:
        raise ConfigError(
            f"--device cuda needs a device for each of {request.world} ranks, and this machine has "
            f"{found}; use --device cpu, or fewer --hosts and --ranks"
        )


def _open_text(request: CompareRequest, scratch: Path) -> Corpus:
    corpus = (
        default_corpus() if request.data is None else open_corpus(request.data, scratch=scratch)
    )
    corpus.check_length(request.seq_len)
    return corpus


def _check_memory(request: CompareRequest, spec: ModelSpec) -> None:
    """Every rank runs on this machine, so all must fit at once."""
    available = available_bytes()
    if available is None or request.device != "cpu":
        return
    needs = [
        MemoryNeed(
            parameters=_count_parameters(spec, request.seq_len),
            stage=recipe.stage,
            world=request.world,
        )
        for recipe in request.recipes
    ]
    check_fits(max(needs, key=lambda need: need.total_bytes), available=available)


def _count_parameters(spec: ModelSpec, seq_len: int) -> int:
    if isinstance(spec, GPTShape):
        return spec.num_parameters(seq_len)
    from thinwire.train.models import count_parameters  # loads torch

    return count_parameters(spec, seq_len=seq_len)


def _measure(network: Network) -> Link | None:
    """The link as it is; ``None`` where nothing shapes it, or a single host has none."""
    rates = measure_link(network)
    check_link(network.link_bit_per_s, rates)
    if rates is None or network.link_bit_per_s is None:
        return None
    return Link(requested_bit_per_s=network.link_bit_per_s, measured_bit_per_s=rates.bit_per_s)
