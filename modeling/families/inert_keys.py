"""Keys of published configs that do not change what a model computes, and their sources.

They apply to keys that the family did not read. Any other key may matter, and is an error
(`ortolan.modeling.families.reader`).
"""

_BASE = """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _auto_class
    _commit_hash _experts_implementation _experts_implementation_internal _name_or_path _num_labels
    _output_attentions architectures attn_implementation attribute_map auto_map
    chunk_size_feed_forward cross_attention_hidden_size custom_pipelines dtype
    experts_implementation finetuning_task gradient_checkpointing id2label is_composition
    is_decoder is_encoder_decoder keys_to_ignore_at_inference label2id model_type name_or_path
    num_labels output_attentions output_hidden_states output_past problem_type pruned_heads
    return_dict task_specific_params tf_legacy_loss tie_encoder_decoder torch_dtype torchscript
    transformers_version transformers_weights use_bfloat16 xla_device
"""

_GENERATION = """
    _from_model_config assistant_confidence_threshold assistant_early_exit
    assistant_ensemble_weight assistant_lookbehind bad_words_ids begin_suppress_tokens cache_config
    cache_implementation compile_config constraints continuous_batching_config
    decoder_start_token_id disable_compile diversity_penalty do_sample dola_layers early_stopping
    encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff
    exponential_decay_length_penalty force_bos_token_to_be_generated force_words_ids
    forced_bos_token_id forced_decoder_ids forced_eos_token_id generation_config
    generation_kwargs guidance_scale is_assistant length_penalty low_memory max_cache_len
    max_length max_matching_ngram_size max_new_tokens max_time min_length min_new_tokens min_p
    no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups
    num_beams num_return_sequences output_logits output_scores penalty_alpha prefill_chunk_size
    prefix prompt_lookup_num_tokens remove_invalid_values renormalize_logits repetition_penalty
    return_dict_in_generate sequence_bias speculation_type stop_strings suppress_tokens
    target_lookbehind temperature token_healing top_h top_k top_p typical_p use_cache use_mtp
    watermarking_config
"""

_TOKENS = """
    add_bos_token add_eos_token audio_token_id boi_token_index bos_token cls_token_id
    eoi_token_index eos_token eos_token_ids image_token_id image_token_index mask_token_id
    pad_token sep_token_id tokenizer_class unk_token unk_token_id video_token_id
    vision_end_token_id vision_start_token_id vision_token_id
"""

_TRAINING = """
    activation_dropout attention_dropout attention_probs_dropout_prob attn_dropout attn_pdrop
    aux_loss_coef classif_dropout classifier_dropout classifier_dropout_prob decoder_layerdrop
    drop_path_rate dropout dropout_rate embd_pdrop embed_dropout embedding_dropout
    encoder_layerdrop ffn_dropout gp_dropout_value hidden_dropout hidden_dropout_prob init_std
    initializer_cutoff_factor initializer_factor initializer_range layerdrop
    neftune_noise_alpha output_router_logits resid_dropout resid_pdrop residual_dropout
    router_aux_loss_coef router_jitter_noise router_z_loss_coef summary_first_dropout
"""

_KERNELS = """
    _flash_attn_2_enabled attention_softmax_in_fp32 bias_dropout_fusion flash_attn
    masked_softmax_fusion pretraining_tp reorder_and_upcast_attn
    scale_attention_softmax_in_fp32 slow_but_exact use_flash_attention use_flash_attention_2
    use_flash_attn use_memory_efficient_attention unpad_inputs
"""

_LENGTHS = """
    max_seq_len max_seq_length max_sequence_length model_max_length seq_length
"""

_TOOLS = """
    _model_name_or_path matryoshka_dimensions sbert_ce_default_activation_function
    sentence_transformers transformers.js_config unsloth_fixed unsloth_version
"""

_BY_WEIGHTS = """
    attention_bias attention_out_bias mlp_bias num_nextn_predict_layers qkv_bias
"""

SOURCES: dict[str, frozenset[str]] = {
    source: frozenset(keys.split())
    for source, keys in {
        "transformers: configuration_utils.py, versions 2 to 5": _BASE,
        "transformers: generation/configuration_utils.py; once in config.json": _GENERATION,
        "tokenizers and processors: their ids and strings": _TOKENS,
        "transformers: dropout, initial values and losses, for training only": _TRAINING,
        "transformers: choice between kernels that compute the same": _KERNELS,
        "training scripts: lengths that no computation reads": _LENGTHS,
        "transformers.js, transformers' reader of GGUF, sentence-transformers, unsloth": _TOOLS,
        "transformers: implied by the names of the weights, which are all read": _BY_WEIGHTS,
    }.items()
}
"""Inert keys by their source."""

INERT: frozenset[str] = frozenset().union(*SOURCES.values())
"""Keys that never change inference, whatever their value."""

NEUTRAL: dict[str, object] = {
    "add_cross_attention": False,
    "alibi": False,
    "embedding_multiplier": 1,
    "logit_scale": 1,
    "logits_scaling": 1,
    "parallel_attn": False,
    "qk_layer_norms": False,
    "qk_layernorm": False,
    "qk_norm": False,
    "residual_multiplier": 1,
    "rope_interleaved": False,
    "scale_emb": 1,
    "use_alibi": False,
    "use_mrope": False,
    "use_parallel_residual": False,
    "use_qk_norm": False,
    "use_resampler": False,
    "use_sliding_window": False,
}
"""Switches and factors, with the value at which they do nothing.

`attention_multiplier` is not among them: at 1 it leaves scores unscaled, unlike its absence.
"""


def is_inert(key: str, value: object) -> bool:
    """Whether an unread key changes nothing at this value; null counts as absent."""
    return value is None or key in INERT or (key in NEUTRAL and value == NEUTRAL[key])
