"""Models and layers of Hugging Face's `transformers`, small and with random weights."""

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from tests.runtime.zoo.case import Case, Wrapped, normal, tokens

D, HEADS, KV, HIDDEN, WORDS = 16, 4, 2, 24, 8
SEQUENCE = normal(2, 6, D)

SIZES: dict[str, Any] = {
    "hidden_size": D,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "vocab_size": WORDS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 16,
}
GROUPED = {**SIZES, "num_key_value_heads": KV, "head_dim": 8}
SEEN: dict[str, Any] = {**SIZES, "image_size": 8, "patch_size": 4}
BART = {
    "d_model": D, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": HIDDEN, "decoder_ffn_dim": HIDDEN,
    "vocab_size": WORDS, "max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
EXPERTS = {**GROUPED, "num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2}


def config(kind: str, sizes: dict[str, Any], **more: Any) -> Any:
    return AutoConfig.for_model(kind, **{**sizes, **more})


def model(kind: str, sizes: dict[str, Any] = SIZES, **more: Any) -> nn.Module:
    """The layers of a language model, without its head."""
    attention = more.pop("attn_implementation", None)
    made: nn.Module = AutoModel.from_config(
        config(kind, sizes, use_cache=False, **more), attn_implementation=attention
    )
    return made


def embedded(module: nn.Module) -> nn.Module:
    """Called with embeddings, as where token ids were embedded by a stage before."""
    return Wrapped(module, lambda m, x: m(inputs_embeds=x).to_tuple())


def part(kind: str, sizes: Any = SIZES, **more: Any) -> nn.Module:
    """The inner layers alone, as a middle stage has them, with the rotary embedding they share."""
    whole = model(kind, sizes, **more)
    return Part(whole)


class Part(nn.Module):
    """Layers of a decoder that are given the positions' angles by one module."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.layers, self.rotary_emb = whole.layers, whole.rotary_emb

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])[None]
        angles = self.rotary_emb(x, positions)
        for layer in self.layers:
            x = layer(x, position_embeddings=angles, position_ids=positions)
        return x


def checkpointed(kind: str, sizes: Any, reentrant: bool) -> nn.Module:
    whole: Any = model(kind, sizes)
    enable = getattr(whole, "activation_checkpointing_enable", None)
    (enable or whole.gradient_checkpointing_enable)({"use_reentrant": reentrant})
    return embedded(whole)


def with_head(kind: str, sizes: Any = SIZES, **more: Any) -> nn.Module:
    """From token ids to the loss; the table is also the head's matrix, if the config says so."""
    whole = AutoModelForCausalLM.from_config(config(kind, sizes, use_cache=False, **more))
    return Wrapped(whole, lambda m, ids: m(ids, labels=ids).loss)


def layer(path: str, kind: str, sizes: Any, call: Any, *arguments: Any) -> nn.Module:
    """One layer by its class, called in its special way."""
    module_name, class_name = path.split(":")
    module = import_module(f"transformers.models.{module_name}")
    made = config(kind, sizes)
    made._attn_implementation = "sdpa"
    return Wrapped(getattr(module, class_name)(made, *arguments), call)


def autocast(module: nn.Module) -> nn.Module:
    def call(m: nn.Module, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return m(x)

    return Wrapped(module, call)


GPT2 = {
    "n_embd": D, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": WORDS,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
DEEPSEEK = {
    **SIZES, "moe_intermediate_size": 12, "q_lora_rank": 8, "kv_lora_rank": 8,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "n_routed_experts": 4,
    "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
}  # fmt: skip
MAMBA = {"hidden_size": D, "state_size": 4, "num_hidden_layers": 2, "vocab_size": WORDS}
T5 = {
    "d_model": D,
    "d_kv": 8,
    "d_ff": HIDDEN,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": WORDS,
    "pad_token_id": 0,
}


def decoder(name: str, kind: str, sizes: Any = SIZES, deferred: float = 0.9, **more: Any) -> Case:
    return Case(name, lambda: embedded(model(kind, sizes, **more)), SEQUENCE, deferred)


LANGUAGE = [
    decoder("gpt-2", "gpt2", GPT2),
    decoder("gpt-2, eager attention", "gpt2", GPT2, attn_implementation="eager"),
    decoder("gpt-j", "gptj", {**GPT2, "rotary_dim": 4}),
    decoder("gpt-neox", "gpt_neox"),
    decoder("opt", "opt", {**SIZES, "ffn_dim": HIDDEN, "word_embed_proj_dim": D}),
    decoder("bloom", "bloom", {"hidden_size": D, "n_layer": 2, "n_head": 2, "vocab_size": WORDS}),
    decoder("falcon", "falcon"),
    decoder("phi", "phi"),
    decoder("phi-3", "phi3", GROUPED),
    decoder("llama", "llama", GROUPED),
    decoder("llama, eager attention", "llama", GROUPED, attn_implementation="eager"),
    decoder("mistral", "mistral", GROUPED, sliding_window=3),
    decoder("qwen2", "qwen2", GROUPED),
    decoder("qwen3", "qwen3", GROUPED),
    decoder("gemma2", "gemma2", GROUPED),
    decoder("gemma3", "gemma3_text", GROUPED),
    decoder("olmo2", "olmo2", GROUPED),
    decoder("cohere", "cohere", GROUPED),
    decoder("stablelm", "stablelm", GROUPED),
    decoder("starcoder2", "starcoder2", GROUPED),
    decoder("mamba", "mamba", MAMBA, 0.85),
    decoder("mamba-2", "mamba2", {**MAMBA, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4}),
    decoder("rwkv", "rwkv", {"hidden_size": D, "attention_hidden_size": D, "num_hidden_layers": 2, "vocab_size": WORDS}),
]  # fmt: skip

MIXTURES = [
    *(decoder(f"mixtral, {way}", "mixtral", EXPERTS, experts_implementation=way) for way in ("eager", "grouped_mm")),
    # It copies a matrix for each token, and autograd adds the copies' gradients up.
    decoder("mixtral, batched_mm", "mixtral", EXPERTS, 0.3, experts_implementation="batched_mm"),
    *(decoder(f"qwen2-moe, {way}", "qwen2_moe", {**EXPERTS, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}, experts_implementation=way) for way in ("eager", "grouped_mm")),
    decoder("qwen3-moe", "qwen3_moe", {**EXPERTS, "moe_intermediate_size": 16}),
    decoder("deepseek-v3", "deepseek_v3", DEEPSEEK),
    decoder("gpt-oss", "gpt_oss", EXPERTS),
]  # fmt: skip

ENCODERS = [
    decoder("bert", "bert"),
    decoder("bert, eager attention", "bert", attn_implementation="eager"),
    decoder("roberta", "roberta"),
    decoder("xlm-roberta", "xlm-roberta"),
    decoder("electra", "electra", {**SIZES, "embedding_size": D}),
    decoder("distilbert", "distilbert", {"dim": D, "n_layers": 2, "n_heads": 2, "hidden_dim": HIDDEN, "vocab_size": WORDS}),
    decoder("deberta-v2", "deberta-v2", {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, 0.85),
    decoder("albert", "albert", {**SIZES, "embedding_size": D}),
    decoder("modernbert", "modernbert"),
    Case("t5, encoder", lambda: layer("t5.modeling_t5:T5Block", "t5", T5, lambda m, x: m(x)[0], True), SEQUENCE, 0.9),
    Case("t5, decoder", lambda: layer("t5.modeling_t5:T5Block", "t5", {**T5, "is_decoder": True}, lambda m, x: m(x, encoder_hidden_states=x.flip(1))[0], True), SEQUENCE, 0.9),
    Case("t5, whole", lambda: Wrapped(AutoModel.from_config(config("t5", T5, use_cache=False)), lambda m, x: m(inputs_embeds=x, decoder_inputs_embeds=x.flip(1))[0]), SEQUENCE, 0.9),
    Case("bart, encoder", lambda: layer("bart.modeling_bart:BartEncoderLayer", "bart", BART, lambda m, x: m(x, None)), SEQUENCE, 0.9),
    Case("bart, decoder", lambda: layer("bart.modeling_bart:BartDecoderLayer", "bart", BART, lambda m, x: m(x, encoder_hidden_states=x.flip(1), use_cache=False)), SEQUENCE, 0.9),
    Case("bart, whole", lambda: Wrapped(AutoModel.from_config(config("bart", BART, use_cache=False)), lambda m, x: m(inputs_embeds=x, decoder_inputs_embeds=x.flip(1))[0]), SEQUENCE, 0.9),
    Case("whisper, encoder", lambda: layer("whisper.modeling_whisper:WhisperEncoderLayer", "whisper", BART, lambda m, x: m(x, None)), SEQUENCE, 0.9),
    Case("vit", lambda: Wrapped(AutoModel.from_config(config("vit", SEEN)), lambda m, x: m(x)[0]), normal(2, 3, 8, 8), 0.85),
    Case("clip, vision", lambda: Wrapped(AutoModel.from_config(config("clip_vision_model", SEEN)), lambda m, x: m(x)[0]), normal(2, 3, 8, 8), 0.85),
]  # fmt: skip

WAYS = [
    Case("llama, layers with a shared rotary embedding", lambda: part("llama", GROUPED), SEQUENCE, 0.9),
    Case("qwen3, layers with a shared rotary embedding", lambda: part("qwen3", GROUPED), SEQUENCE, 0.9),
    Case("llama, bfloat16", lambda: part("llama", GROUPED).bfloat16(), normal(2, 6, D, dtype=torch.bfloat16), 0.9),
    Case("llama, autocast", lambda: autocast(part("llama", GROUPED)), SEQUENCE, 0.9),
    Case("gpt-2, autocast", lambda: autocast(embedded(model("gpt2", GPT2))), SEQUENCE, 0.9),
    *(Case(f"{kind}, checkpointed{', reentrant' * r}", partial(checkpointed, kind, sizes, r), SEQUENCE, 0.9) for kind, sizes in (("llama", GROUPED), ("gpt2", GPT2), ("mixtral", EXPERTS)) for r in (False, True)),
    Case("llama with its head and loss", lambda: with_head("llama", GROUPED), tokens(2, 6, most=WORDS), 0.9),
    Case("qwen2 with its tied head and loss", lambda: with_head("qwen2", GROUPED, tie_word_embeddings=True), tokens(2, 6, most=WORDS), 0.9),
    Case("gpt-2 with its tied head and loss", lambda: with_head("gpt2", GPT2), tokens(2, 6, most=WORDS), 0.9),
]  # fmt: skip

CASES = [*LANGUAGE, *MIXTURES, *ENCODERS, *WAYS]
