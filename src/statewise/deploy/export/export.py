"""Exports a model for other libraries: the formats by name."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, get_args

from statewise.deploy.export import folder_files as files
from statewise.deploy.export.folder_files import Exported
from statewise.deploy.export.gguf_file import export_gguf, export_gguf_of
from statewise.deploy.export.hf_folder import export_folder
from statewise.model.model import Model
from statewise.objectives.predictors import CausalPredictor
from statewise.runtime import overwriting
from statewise.runtime.json_files import ANYTHING, read_json

Format = Literal["hf", "gguf"]
FORMATS: tuple[Format, ...] = get_args(Format)


def export(
    model: Model | Path, out: str | Path, to: Format = "hf", *, overwrite: bool = False, command: str | None = None
) -> Exported:
    """Writes a trained model for other libraries: `hf`, a folder; `gguf`, a file. A path is that of a folder of
    transformers, which can be written as GGUF. `command`: how the model card says it was made.

    Raises `FileExistsError` if something is at `out`, unless `overwrite` says to replace an export; `ValueError` if the
    format cannot hold the model, or if the extra `hf` is needed and missing.
    """
    if to not in FORMATS:
        raise ValueError(f"the format must be {' or '.join(FORMATS)}, not {to!r}")
    path = Path(out)
    if isinstance(model, Path) and to == "hf":
        raise ValueError(f"{model} is a folder of Hugging Face already: it can be exported with `to` gguf")
    with claimed(path, to, overwrite) as scratch:
        if isinstance(model, Path):
            return export_gguf_of(model, path, scratch)
        _check_decoder(model)
        if to == "gguf":
            return export_gguf(model, path, scratch)
        return export_folder(model, path, scratch, command)


def of_transformers(folder: Path) -> bool:
    """Whether `folder` holds a model of transformers, not a run. Raises `ValueError` for a malformed config.json."""
    path = folder / files.CONFIG
    content = read_json(path, ANYTHING) if path.is_file() else None
    return isinstance(content, dict) and "model_type" in content and "objective" not in content


def claimed(out: Path, to: Format, overwrite: bool) -> AbstractContextManager[Path]:
    """A claim on `out` (`statewise.runtime.overwriting`), and the place where it is written."""
    if to == "gguf":
        return overwriting.claimed_file(out, overwrite)
    return overwriting.claimed_folder(out, files.FILES, files.SIGNS, "Hugging Face folder", overwrite, files.TEMPORARY)


def _check_decoder(model: Model) -> None:
    """Raises `ValueError` unless the model predicts token by token, as the decoders of other libraries require."""
    predictor, name = model.predictor(), model.recipe.objective.name
    if not predictor.reads_answers:
        raise ValueError(
            f"{name} predicts whole answers from the prompt, which decoders of other libraries cannot ask for: "
            "complete prompts with statewise generate, or train next_token or next_latent for export"
        )
    if not isinstance(predictor, CausalPredictor):
        raise ValueError(
            f"{name} predicts by an interface of its own, {type(predictor).__name__}; only predictors that subclass "
            "CausalPredictor can be exported: ask this model through statewise.load"
        )
