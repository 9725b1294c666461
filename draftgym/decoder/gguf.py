"""GGUF files into plain Transformers folders: float32 safetensors, config, tokenizer.

Three questions are answered from the file's header before any weight is read: is the
architecture one that the decoder runs, does the tokenizer fit the embedding, and
does the dequantised model fit into memory. It does not know where the file came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftgym.console import say
from draftgym.errors import SourceError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FLOAT32_BYTES = 4
# Measured on the default target: dequantising peaks at about half as much again as the model
# itself, on top of the mapped file and the libraries.
PEAK_OVER_MODEL = 1.5
LIBRARIES_BYTES = 450_000_000
# Vocabularies are padded to round sizes; a wider gap means another model's tokenizer.
MAX_PADDING_ROWS = 1024


@dataclass(frozen=True, slots=True)
class GgufSummary:
    """What a GGUF header promises.

    Attributes:
        architecture: Name such as `llama`.
        parameters: Number of weights.
        embedding_rows: Rows of the token embedding.
        tokenizer_tokens: Tokens of the tokenizer in the same file.
        file_bytes: Size of the file.
    """

    architecture: str
    parameters: int
    embedding_rows: int
    tokenizer_tokens: int
    file_bytes: int

    @property
    def float32_bytes(self) -> int:
        """Size of the dequantised weights, in memory and on disk."""
        return self.parameters * FLOAT32_BYTES

    @property
    def peak_bytes(self) -> int:
        """Memory that a conversion takes at its peak."""
        return int(PEAK_OVER_MODEL * self.float32_bytes) + self.file_bytes + LIBRARIES_BYTES


def inspect_gguf(path: Path) -> GgufSummary:
    """Read the header and the tensor table of a GGUF file.

    Raises:
        SourceError: If the file is damaged or lacks what a conversion needs.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError, OverflowError) as error:
        raise SourceError(f"{path.name} is not a readable GGUF file: {error}") from error
    shapes = {tensor.name: tensor.shape for tensor in reader.tensors}
    embedding = shapes.get("token_embd.weight")
    if embedding is None:
        raise SourceError(f"{path.name} has no token embedding (token_embd.weight)")
    tokens = reader.get_field("tokenizer.ggml.tokens")
    if tokens is None:
        raise SourceError(f"{path.name} has no tokenizer (tokenizer.ggml.tokens)")
    architecture = reader.get_field("general.architecture")
    if architecture is None:
        raise SourceError(f"{path.name} names no architecture (general.architecture)")
    return GgufSummary(
        architecture=str(architecture.contents()),
        parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
        embedding_rows=int(embedding[-1]),  # GGUF writes the fastest dimension first
        tokenizer_tokens=len(tokens.data),
        file_bytes=path.stat().st_size,
    )


def check_gguf(summary: GgufSummary, name: str, available_bytes: int | None) -> None:
    """Refuse, before reading any weight, a file that cannot become a working model.

    Args:
        summary: From `inspect_gguf`.
        name: File name, for messages.
        available_bytes: Memory free for the conversion; None when the system does not tell.

    Raises:
        SourceError: For an unknown architecture, a tokenizer of another size than the
            embedding, or too little memory.
    """
    # Imported here, so that looking up a converted model does not load torch.
    from draftgym.decoder.llama import SUPPORTED_ARCHITECTURES

    if summary.architecture not in SUPPORTED_ARCHITECTURES:
        raise SourceError(
            f"{name} holds architecture {summary.architecture!r}, which the decoder does not "
            f"know; supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    padding = summary.embedding_rows - summary.tokenizer_tokens
    if not 0 <= padding <= MAX_PADDING_ROWS:
        raise SourceError(
            f"{name} pairs a tokenizer of {summary.tokenizer_tokens} tokens with an embedding "
            f"of {summary.embedding_rows} rows: they belong to different models"
        )
    if available_bytes is not None and summary.peak_bytes > available_bytes:
        raise SourceError(
            f"{name} needs about {_gb(summary.peak_bytes)} of memory to convert "
            f"({_gb(summary.float32_bytes)} of float32 weights), and "
            f"{_gb(available_bytes)} is available; convert it on a larger machine and pass "
            "the folder, or choose a smaller model"
        )


def convert_gguf(path: Path, destination: Path, available_bytes: int | None) -> GgufSummary:
    """Write `path` as a plain float32 Transformers folder.

    Args:
        path: The GGUF file.
        destination: An empty folder; the caller moves it into place when this returns.
        available_bytes: Memory free for the conversion; None when unknown.

    Returns:
        The file's summary.

    Raises:
        SourceError: If the file is damaged or refused by `check_gguf`.
    """
    say(f"reading the header of {path.name}")
    summary = inspect_gguf(path)
    say(
        f"{path.name}: {summary.architecture}, {summary.parameters / 1e6:.0f} M parameters, "
        f"{_gb(summary.float32_bytes)} as float32; converting takes about "
        f"{_gb(summary.peak_bytes)} of memory"
    )
    check_gguf(summary, path.name, available_bytes)
    say("dequantising to float32 (once; the result is kept)")
    try:
        _write_model(path, destination)
        _write_tokenizer(path, destination, summary)
    except SourceError:
        raise
    except (ValueError, KeyError, IndexError, RuntimeError, NotImplementedError) as error:
        raise SourceError(f"Transformers cannot convert {path.name}: {error}") from error
    return summary


def _write_model(path: Path, destination: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    _rebuild(loaded).save_pretrained(destination)


def _rebuild(loaded: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that does not remember having been quantised.

    Transformers refuses to save the dequantised object itself. The new one is laid out on
    the meta device and takes over the tensors, so the weights are never held twice.
    """
    import torch

    fields: dict[str, Any] = loaded.config.to_dict()
    fields.pop("quantization_config", None)
    config = type(loaded.config).from_dict(fields)
    with torch.device("meta"):
        model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    return model


def _write_tokenizer(path: Path, destination: Path, summary: GgufSummary) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    if len(tokenizer) > summary.embedding_rows:
        raise SourceError(
            f"{path.name}: its tokenizer has {len(tokenizer)} ids for "
            f"{summary.embedding_rows} embedding rows"
        )
    tokenizer.save_pretrained(destination)


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
