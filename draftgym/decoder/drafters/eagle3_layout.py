"""What a published EAGLE-3 checkpoint's `config.json` means, as an `Eagle3Config`.

Defaults are those of EAGLE's `eagle/model/configs.py` and `cnets.py`. Fields that would change
the computation in a way the head cannot follow are refused. It reads no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftgym.decoder.drafters.eagle3_config import Eagle3Config

# Field: (values that change nothing, why others are refused).
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "norm_before_residual": ((None, False), "the residual is taken before the norm"),
    "logit_scale": ((None, 1, 1.0), "logits are not scaled"),
    "quantization_config": ((None,), "quantised weights are not supported"),
    "partial_rotary_factor": ((None, 1, 1.0), "the whole head is rotated"),
    "transformer_layer_config": ((None,), "this is the layout of vLLM's speculators library"),
}


def default_feature_layers(layer_count: int) -> tuple[int, ...]:
    """Layers whose entering hidden states published heads read: 2, L // 2 and L - 3.

    EAGLE (`modeling_llama_kv.py`), SGLang (`layers_to_capture`) and vLLM
    (`aux_hidden_state_layers`) test the index before the layer runs, so each number is the state
    that enters that layer, which is what `feature_layers` means here: no offset.

    Args:
        layer_count: Layers `L` of the target.

    Raises:
        ValueError: The target has too few layers for three different ones.
    """
    layers = (2, layer_count // 2, layer_count - 3)
    if not 2 < layers[1] < layers[2]:
        raise ValueError(
            f"feature layers 2, L // 2 and L - 3 must increase; the target has L = {layer_count}"
        )
    return layers


def published_config(values: Mapping[str, Any], where: str, layer_count: int) -> Eagle3Config:
    """Read a published `config.json`.

    Args:
        values: Its content.
        where: Its path, for messages.
        layer_count: Layers of the target.

    Raises:
        ValueError: A field is missing, has a wrong type or cannot be honoured; names the file and
            the field.
    """
    try:
        return _published_config(values, layer_count)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _published_config(values: Mapping[str, Any], layer_count: int) -> Eagle3Config:
    for field, (harmless, reason) in _REFUSED.items():
        if values.get(field) not in harmless:
            raise ValueError(f"{field}: {values[field]!r} is not supported: {reason}")
    hidden = _whole(values, "hidden_size")
    if _whole(values, "target_hidden_size", hidden) != hidden:
        raise ValueError(
            f"target_hidden_size: {values['target_hidden_size']} is not hidden_size {hidden}; the "
            "head must be as wide as its target"
        )
    if values.get("sliding_window") is not None and values.get("use_sliding_window", True):
        raise ValueError("sliding_window: the head attends to the whole context")
    heads = _whole(values, "num_attention_heads")
    vocabulary = _whole(values, "vocab_size")
    theta, scaling = _rope(values)
    return Eagle3Config(
        hidden_size=hidden,
        intermediate_size=_whole(values, "intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=_whole(values, "num_key_value_heads", heads),
        head_dim=_whole(values, "head_dim", hidden // heads),
        rope_theta=theta,
        rms_norm_eps=_number(values.get("rms_norm_eps", 1e-6), "rms_norm_eps"),
        target_vocab_size=vocabulary,
        draft_vocab_size=_whole(values, "draft_vocab_size", vocabulary),
        feature_layers=_feature_layers(values, layer_count),
        hidden_act=str(values.get("hidden_act", "silu")),
        max_position_embeddings=_whole(values, "max_position_embeddings", 2048),
        rope_scaling=scaling,
    )


def _feature_layers(values: Mapping[str, Any], layer_count: int) -> tuple[int, ...]:
    """Named layers, or the default.

    Two conventions are in use for named ones. A first id of 1 counts outputs (the state after
    layer 1 enters layer 2), any other counts inputs; SGLang tells them apart in the same way
    (sgl-project/sglang pull request 25454).
    """
    nested = values.get("eagle_config") or {}
    field = "eagle_aux_hidden_state_layer_ids"
    if nested.get("use_aux_hidden_state", True) is False:
        raise ValueError("eagle_config.use_aux_hidden_state: false is not EAGLE-3")
    named = values.get(field) or nested.get(field)
    if not named:
        return default_feature_layers(layer_count)
    if not isinstance(named, list) or not all(type(layer) is int for layer in named):
        raise ValueError(f"{field}: need a list of integers, got {named!r}")
    layers = tuple(layer + 1 for layer in named) if named[0] == 1 else tuple(named)
    if not 0 <= min(layers) <= max(layers) < layer_count:
        raise ValueError(
            f"{field}: {named} reads states that enter layers {list(layers)}; the target has "
            f"{layer_count}"
        )
    return layers


def _rope(values: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling, from `rope_theta` + `rope_scaling` or from `rope_parameters`."""
    parameters = dict(values.get("rope_parameters") or {})
    # EAGLE's own code falls back to 10000, whatever the target's base is.
    theta = parameters.pop("rope_theta", values.get("rope_theta", 10_000.0))
    scaling = dict(values.get("rope_scaling") or parameters)
    kind = scaling.pop("type", None)
    kind = scaling.pop("rope_type", kind) or "default"
    if "mrope_section" in scaling:
        raise ValueError("rope_scaling: mrope_section (images) is not supported")
    if scaling.pop("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("partial_rotary_factor: the whole head is rotated")
    base = _number(theta, "rope_theta")
    return base, None if kind == "default" else {"rope_type": kind, **scaling}


def _whole(values: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = values.get(field)
    if value is None:
        value = default
    if type(value) is not int:
        raise ValueError(f"{field}: need an integer, got {value!r}")
    return value


def _number(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{field}: need a number, got {value!r}")
    return float(value)
