"""A complete Llama model of a few kilobytes as a GGUF file, and wheels around any files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType
from numpy.typing import NDArray

HIDDEN, HEADS, HEAD_SIZE, INNER, LAYERS = 16, 2, 8, 24, 2
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True)
class TinyGguf:
    """What to write; each field is one way to be wrong.

    Attributes:
        architecture: Name in the header.
        embedding_rows: Rows of the embedding; one per token when None.
        tokenizer: Whether to write one.
    """

    architecture: str = "llama"
    embedding_rows: int | None = None
    tokenizer: bool = True
    tensors: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        tokens = [*SPECIAL, *_byte_tokens(), "he", "Ġt"]
        rows = self.embedding_rows or len(tokens)
        writer = GGUFWriter(path, self.architecture)
        writer.add_name("tiny")
        writer.add_context_length(64)
        writer.add_embedding_length(HIDDEN)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(INNER)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(HEADS)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10000.0)
        writer.add_rope_dimension_count(HEAD_SIZE)
        writer.add_vocab_size(rows)
        if self.tokenizer:
            _add_tokenizer(writer, tokens)
        for name, values in self._make_tensors(rows).items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _make_tensors(self, rows: int) -> dict[str, NDArray[np.float32]]:
        random = np.random.default_rng(0)
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (rows, HIDDEN)}
        for layer in range(LAYERS):
            block = f"blk.{layer}"
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                shapes[f"{block}.{name}.weight"] = (HIDDEN, HIDDEN)
            shapes[f"{block}.ffn_gate.weight"] = (INNER, HIDDEN)
            shapes[f"{block}.ffn_up.weight"] = (INNER, HIDDEN)
            shapes[f"{block}.ffn_down.weight"] = (HIDDEN, INNER)
            shapes[f"{block}.attn_norm.weight"] = (HIDDEN,)
            shapes[f"{block}.ffn_norm.weight"] = (HIDDEN,)
        shapes["output_norm.weight"] = (HIDDEN,)
        for name, shape in shapes.items():
            self.tensors[name] = random.normal(size=shape).astype(np.float32)
        return self.tensors


def write_wheel(folder: Path, requirement: str, files: Mapping[str, bytes]) -> Path:
    """A zip with a wheel's name."""
    name, version = requirement.split("==")
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)
    return path


def _add_tokenizer(writer: GGUFWriter, tokens: list[str]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    control = [TokenType.CONTROL] * len(SPECIAL)
    writer.add_token_types([*control, *[TokenType.NORMAL] * (len(tokens) - len(SPECIAL))])
    writer.add_token_merges(["h e", "Ġ t"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")


def _byte_tokens() -> list[str]:
    """The 256 printable stand-ins for bytes of byte-level BPE (GPT-2's table)."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in kept]
    return [chr(byte) for byte in kept] + [chr(256 + index) for index in range(len(moved))]
