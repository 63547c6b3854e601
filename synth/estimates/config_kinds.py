"""The sizes of a model by the kinds of `config.json` that Hugging Face's library writes."""

from collections.abc import Callable
from typing import Any

from synth.estimates.config_values import ConfigValues
from synth.estimates.model_shape import Experts, LatentAttention


def _decoder(given: ConfigValues, head_dim: int | None = None) -> dict[str, Any]:
    """The sizes that all decoders with rotary embeddings and gated MLPs name alike.

    Args:
        head_dim: of a kind of model, if the config has none; None: a share of the hidden size.
    """
    hidden, heads = given.number("hidden_size"), given.number("num_attention_heads")
    if given.has("head_dim") or head_dim is not None:
        width = given.number("head_dim", default=head_dim)
    else:
        width = given.share(hidden, "hidden_size", heads, "num_attention_heads")
    kv_heads = given.number("num_key_value_heads", default=heads)
    given.share(heads, "num_attention_heads", kv_heads, "num_key_value_heads")
    return {
        "layers": given.number("num_hidden_layers"),
        "hidden": hidden,
        "ffn": given.number("intermediate_size"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": width,
        "vocab": given.number("vocab_size"),
        "tied": given.flag("tie_word_embeddings"),
        "attention_biases": given.flag("attention_bias"),
    }


def _llama(given: ConfigValues) -> dict[str, Any]:
    return _with_output_bias(_decoder(given)) | {"mlp_biases": given.flag("mlp_bias")}


def _with_output_bias(sizes: dict[str, Any]) -> dict[str, Any]:
    """Add the bias of attention's output, which some models have with those of its inputs."""
    return sizes | {"further": sizes["hidden"] if sizes["attention_biases"] else 0}


def _local(given: ConfigValues, otherwise: float) -> float:
    """The share of local layers, from a list of the kinds of all layers if there is one."""
    kinds, layers = given.values("layer_types"), given.number("num_hidden_layers")
    if kinds and len(kinds) != layers:
        raise given.refuse(f"{len(kinds)} layer_types for {layers} layers")
    return kinds.count("sliding_attention") / layers if kinds else otherwise


def _windows(given: ConfigValues, local: float = 1.0) -> dict[str, Any]:
    """The windows of a share of the layers, by default of all, if there are windows."""
    window = given.number("sliding_window", default=0)
    return {"window": window, "window_layers": local if window else 0.0}


def _qwen(given: ConfigValues, head_dim: int | None = None) -> dict[str, Any]:
    """If windows are used, the layers from `max_window_layers` on are local."""
    sizes = _decoder(given, head_dim)
    if not given.flag("use_sliding_window"):
        return sizes
    layers, first = sizes["layers"], given.number("max_window_layers", default=28)
    return sizes | _windows(given, _local(given, max(0, layers - first) / max(1, layers)))


def _qwen2(given: ConfigValues) -> dict[str, Any]:
    return _qwen(given) | {"attention_biases": True}


def _qwen3(given: ConfigValues, head_dim: int | None = 128) -> dict[str, Any]:
    return _with_output_bias(_qwen(given, head_dim)) | {"head_norms": True}


def _gemma(given: ConfigValues) -> dict[str, Any]:
    return _decoder(given, 256) | {"tied": given.flag("tie_word_embeddings", True)}


def _gemma3(given: ConfigValues) -> dict[str, Any]:
    """Four norms a layer, and local layers: every `sliding_window_pattern`-th is global."""
    third = given.kind != "gemma2"
    pattern = given.number("sliding_window_pattern", default=6 if third else 2)
    local = _local(given, 1 - 1 / max(1, pattern))
    window = given.number("sliding_window", default=0)
    more = {"norms": 4, "head_norms": third, "window": window, "window_layers": local}
    return _gemma(given) | more


def _mistral(given: ConfigValues) -> dict[str, Any]:
    """All layers are local if there is a window."""
    return _decoder(given) | _windows(given)


def _mixtral(given: ConfigValues) -> dict[str, Any]:
    ffn = given.number("intermediate_size")
    count, per_token = given.number("num_local_experts"), given.number("num_experts_per_tok")
    return _mistral(given) | {"experts": Experts(count=count, per_token=per_token, ffn=ffn)}


def _qwen3_moe(given: ConfigValues) -> dict[str, Any]:
    return _qwen3(given, None) | {"experts": _experts_of_qwen(given)}


def _qwen2_moe(given: ConfigValues) -> dict[str, Any]:
    """With a shared expert, and a gate of it."""
    sizes = _qwen2(given)
    experts = _experts_of_qwen(given, given.number("shared_expert_intermediate_size"))
    return sizes | {"experts": experts.replace(further=sizes["hidden"])}


def _experts_of_qwen(given: ConfigValues, shared: int = 0) -> Experts:
    dense, numbers = given.values("mlp_only_layers"), range(given.number("num_hidden_layers"))
    every = given.number("decoder_sparse_step", default=1)
    return Experts(
        count=given.number("num_experts", "num_local_experts"),
        per_token=given.number("num_experts_per_tok"),
        ffn=given.number("moe_intermediate_size"),
        shared_ffn=shared,
        dense=tuple(at for at in numbers if at in dense or (at + 1) % max(1, every)),
    )


def _gpt_oss(given: ConfigValues) -> dict[str, Any]:
    """Experts in all layers, biases, sinks of attention's heads, and every other layer local."""
    sizes = _with_output_bias(_decoder(given, 64))
    count = given.number("num_local_experts")
    per_token = given.number("num_experts_per_tok", "experts_per_token")
    return sizes | {
        "experts": Experts(count=count, per_token=per_token, ffn=sizes["ffn"]),
        "mlp_biases": True,
        "further": sizes["further"] + sizes["heads"] + count,
        **_windows(given, _local(given, 0.5)),
    }


def _olmo2(given: ConfigValues) -> dict[str, Any]:
    """Norms of all queries and all keys together."""
    sizes = _decoder(given)
    return sizes | {"further": (sizes["heads"] + sizes["kv_heads"]) * sizes["head_dim"]}


def _olmoe(given: ConfigValues) -> dict[str, Any]:
    sizes = _olmo2(given)
    count, per_token = given.number("num_experts"), given.number("num_experts_per_tok")
    return sizes | {"experts": Experts(count=count, per_token=per_token, ffn=sizes["ffn"])}


def _smollm3(given: ConfigValues) -> dict[str, Any]:
    return _llama(given) | {"tied": given.flag("tie_word_embeddings", True)}


def _nemotron(given: ConfigValues) -> dict[str, Any]:
    """MLPs without a gate; norms with biases."""
    return _llama(given) | {"gated": False, "norm_vectors": 2}


def _stablelm(given: ConfigValues) -> dict[str, Any]:
    norms = 1 if given.flag("use_parallel_residual") else 2
    if given.flag("qk_layernorm"):
        raise given.refuse("a qk_layernorm")
    biases = given.flag("use_qkv_bias")
    return _decoder(given) | {"norms": norms, "norm_vectors": 2, "attention_biases": biases}


def _plain(given: ConfigValues) -> dict[str, Any]:
    """MLPs without a gate, and biases of all matrices and norms."""
    dropouts = ("attention_dropout", "hidden_dropout", "residual_dropout", "resid_pdrop")
    return _decoder(given) | {
        "gated": False,
        "biases": True,
        "attention_biases": False,
        "dropout": given.is_above_zero(*dropouts),
    }


def _gpt_neox(given: ConfigValues) -> dict[str, Any]:
    if not given.flag("attention_bias", True):
        raise given.refuse("no attention_bias")
    return _plain(given)


def _phi(given: ConfigValues) -> dict[str, Any]:
    """Attention and MLP beside each other behind one norm; the head has a bias."""
    if given.flag("qk_layernorm"):
        raise given.refuse("a qk_layernorm")
    sizes = _plain(given)
    return sizes | {"norms": 1, "further_ends": sizes["vocab"]}


def _starcoder2(given: ConfigValues) -> dict[str, Any]:
    sizes = _plain(given) | {"tied": given.flag("tie_word_embeddings", True)}
    if not given.flag("use_bias", True):
        raise given.refuse("no use_bias")
    return sizes | _windows(given)


def _falcon(given: ConfigValues) -> dict[str, Any]:
    """One head of keys, or several with the new architecture; norms with biases."""
    hidden = given.number("hidden_size")
    heads = given.number("num_attention_heads", "n_head")
    is_new = given.flag("new_decoder_architecture")
    norms = 1 if given.flag("parallel_attn", True) else 2
    if is_new:
        kv_heads = given.number("num_kv_heads", "n_head_kv", default=heads)
        norms = given.number("num_ln_in_parallel_attn", default=2)
    else:
        kv_heads = 1 if given.flag("multi_query", True) else heads
    given.share(heads, "num_attention_heads", kv_heads, "num_kv_heads")
    return {
        "layers": given.number("num_hidden_layers", "n_layer"),
        "hidden": hidden,
        "ffn": given.number("ffn_hidden_size", default=4 * hidden),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": given.share(hidden, "hidden_size", heads, "num_attention_heads"),
        "vocab": given.number("vocab_size"),
        "tied": given.flag("tie_word_embeddings", True),
        "gated": False,
        "biases": given.flag("bias"),
        "norms": norms,
        "norm_vectors": 2,
    }


def _deepseek(given: ConfigValues) -> dict[str, Any]:
    """Latent attention, dense layers first, then experts with shared ones (V2 and V3)."""
    latent = LatentAttention(
        query_rank=given.number("q_lora_rank", default=0),
        key_value_rank=given.number("kv_lora_rank"),
        nope=given.number("qk_nope_head_dim"),
        rope=given.number("qk_rope_head_dim"),
        value=given.number("v_head_dim"),
    )
    mtp = given.number("num_nextn_predict_layers", default=0)
    experts = _experts_of_deepseek(given)
    return _decoder(given) | {"latent": latent, "experts": experts, "mtp_layers": mtp}


def _experts_of_deepseek(given: ConfigValues, shared: int = 0) -> Experts:
    """Dense layers first; `shared` experts of each token if a config has no number of them."""
    width = given.number("moe_intermediate_size")
    first = given.number("first_k_dense_replace", default=0)
    return Experts(
        count=given.number("n_routed_experts"),
        per_token=given.number("num_experts_per_tok"),
        ffn=width,
        shared_ffn=width * given.number("n_shared_experts", default=shared),
        dense=tuple(range(min(first, given.number("num_hidden_layers")))),
    )


def _glm4_moe(given: ConfigValues) -> dict[str, Any]:
    """As DeepSeek-V3's layers, with attention of grouped heads."""
    return _decoder(given) | {
        "experts": _experts_of_deepseek(given, shared=1),
        "head_norms": given.flag("use_qk_norm"),
        "mtp_layers": given.number("num_nextn_predict_layers", default=0),
    }


def _cohere(given: ConfigValues) -> dict[str, Any]:
    """Attention and MLP beside each other behind one norm."""
    sizes = _llama(given)
    sizes["further"] += _olmo2(given)["further"] if given.flag("use_qk_norm") else 0
    return sizes | {"norms": 1, "tied": given.flag("tie_word_embeddings", True)}


def _olmo(given: ConfigValues) -> dict[str, Any]:
    """Norms without parameters."""
    return _llama(given) | {"norm_vectors": 0}


def _gptj(given: ConfigValues) -> dict[str, Any]:
    """One norm; the MLP, norms and the head have biases, and attention has rotary embeddings."""
    sizes = _gpt2(given) | {"positions": 0, "norms": 1, "norm_vectors": 2}
    return sizes | {
        "biases": False,
        "mlp_biases": True,
        "further_ends": sizes["vocab"],
        "tied": given.flag("tie_word_embeddings"),
        "dropout": given.is_above_zero("resid_pdrop", "attn_pdrop"),
    }


def _mpt(given: ConfigValues) -> dict[str, Any]:
    """No biases, and no embeddings of positions; transformers has no other width than 4h."""
    hidden, heads = given.number("d_model"), given.number("n_heads")
    return {
        "layers": given.number("n_layers"),
        "hidden": hidden,
        "ffn": 4 * hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": given.share(hidden, "d_model", heads, "n_heads"),
        "vocab": given.number("vocab_size"),
        "gated": False,
        "tied": given.flag("tie_word_embeddings", True),
    }


def _gpt2(given: ConfigValues) -> dict[str, Any]:
    """GPT-2's names of sizes, and those of BLOOM's configs."""
    hidden = given.number("n_embd", "hidden_size", "n_embed")
    heads = given.number("n_head", "num_attention_heads")
    return {
        "layers": given.number("n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "ffn": given.number("n_inner", default=4 * hidden),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": given.share(hidden, "n_embd", heads, "n_head"),
        "vocab": given.number("vocab_size"),
        "positions": given.number("n_positions", "max_position_embeddings", default=0),
        "gated": False,
        "tied": given.flag("tie_word_embeddings", True),
        "biases": True,
        "dropout": True,
    }


def _bert(given: ConfigValues) -> dict[str, Any]:
    """An encoder with the head of masked tokens, without that head's own layer and norm."""
    return _decoder(given) | {
        "positions": given.number("max_position_embeddings", default=0),
        "gated": False,
        "tied": given.flag("tie_word_embeddings", True),
        "biases": True,
        "dropout": True,
        "causal": False,
    }


def _bloom(given: ConfigValues) -> dict[str, Any]:
    """A norm behind the embedding."""
    sizes = _gpt2(given)
    return sizes | {"positions": 0, "dropout": False, "further_ends": 2 * sizes["hidden"]}


KINDS: dict[str, Callable[[ConfigValues], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen2_vl": _qwen2,
    "qwen2_vl_text": _qwen2,
    "qwen2_5_vl": _qwen2,
    "qwen2_5_vl_text": _qwen2,
    "qwen3": _qwen3,
    "qwen3_vl": _qwen3,
    "qwen3_vl_text": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma3,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "qwen3_vl_moe": _qwen3_moe,
    "qwen3_vl_moe_text": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "cohere": _cohere,
    "glm4_moe": _glm4_moe,
    "gptj": _gptj,
    "mpt": _mpt,
    "olmo": _olmo,
    "bert": _bert,
    "gpt2": _gpt2,
    "bloom": _bloom,
    "falcon": _falcon,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "granite": _llama,
    "granitemoe": _mixtral,
    "nemotron": _nemotron,
    "olmo2": _olmo2,
    "olmoe": _olmoe,
    "phi": _phi,
    "phi3": _mistral,
    "qwen2_moe": _qwen2_moe,
    "smollm3": _smollm3,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}
