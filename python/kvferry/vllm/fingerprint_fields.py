# SPDX-License-Identifier: Apache-2.0
"""The fields of vLLM's configuration on which a block's bytes, or its hash, can depend.

A field that is not listed here counts: engines that differ in it share no blocks. A test fails for such a field
(``test_every_field_of_vllms_configuration_is_classified``), so that it gets classified.
"""

from typing import NamedTuple


class Fields(NamedTuple):
    """The fields of one of vLLM's classes.

    Attributes
    ----------
    counted
        Names of the fields in the fingerprint.
    free
        Names of the other fields, with reasons: none of them changes a block's bytes or its hash.

    """

    counted: frozenset[str]
    free: dict[str, str]

    def classified(self) -> frozenset[str]:
        """All names."""
        return self.counted | self.free.keys()


def _names(text: str) -> frozenset[str]:
    """Split a list of names."""
    return frozenset(text.split())


def _free(**names_by_reason: tuple[str, str]) -> dict[str, str]:
    return {name: reason for names, reason in names_by_reason.values() for name in names.split()}


MODEL = Fields(
    _names(
        """
        model model_weights runner convert dtype seed hf_config hf_config_path revision code_revision
        max_model_len quantization quantization_config hf_overrides model_class_overrides model_impl
        config_format trust_remote_code multimodal_config disable_sliding_window enable_prompt_embeds
        is_submodel_config word_embeddings_untied_by_checkpoint
        """
    ),
    _free(
        text=(
            "tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init hf_token generation_config "
            "override_generation_config io_processor_plugin renderer_num_workers served_model_name",
            "keys are hashes of token ids, whatever produced them",
        ),
        media=(
            "allowed_local_media_path allowed_media_domains",
            "where an item may come from; its content is hashed",
        ),
        output=(
            "max_logprobs logprobs_mode use_fp64_gumbel logits_processors pooler_config return_sampling_mask "
            "enable_return_routed_experts enable_trace_replay",
            "applied after the last hidden state",
        ),
        run=(
            "enforce_eager disable_cascade_attn allow_deprecated_quantization",
            "how the same values are computed; only rounding can differ",
        ),
        sleep=(
            "enable_sleep_mode sleep_mode_backend enable_nccl_comm_suspend enable_cumem_allocator "
            "sleep_preserve_parameter_names sleep_mode_offload_cudagraph",
            "sleep restores the same weights, or resets the cache",
        ),
        derived=("hf_text_config", "a part of hf_config"),
        draft=("spec_target_max_model_len", "limits drafts, which are rejected or correct"),
    ),
)

MULTIMODAL = Fields(
    _names(
        """
        language_model_only enable_mm_embeds media_io_kwargs mm_processor_kwargs mm_device_do_normalize
        mm_hasher_algorithm mm_encoder_only mm_encoder_attn_dtype mm_encoder_fp8_scale_path interleave_mm_strings
        video_pruning_rate video_pruning_method allow_missing_mm_embeddings mm_encoder_attn_backend
        """
    ),
    _free(
        how_many=("limit_per_prompt", "how many items a request may have, not their bytes"),
        caches=(
            "mm_processor_cache_gb mm_processor_cache_type mm_shm_cache_max_object_size_mb mm_tensor_ipc "
            "mm_ipc_gpu_memory_gb",
            "how processed items travel",
        ),
        split=("mm_encoder_tp_mode", "how the same values are computed; only rounding can differ"),
        saving=(
            "mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin",
            "what is written for a later start",
        ),
        start=("skip_mm_profiling", "affects only the start"),
    ),
)

CACHE = Fields(
    _names(
        """
        block_size kv_cache_layout prefix_match_unit cache_dtype sliding_window prefix_caching_hash_algo
        kv_cache_dtype_skip_layers mamba_page_size_padded skip_page_size_padded mamba_block_size
        mamba_cache_dtype mamba_ssm_cache_dtype mamba_cache_mode enable_mamba_fine_grained_prefix_cache
        replayssm_buffer_len use_replayssm use_kda_recoverssm kv_sharing_fast_prefill
        enable_mamba_shared_prefix_checkpoint effective_attention_block_size swa_bounded_replay hash_block_size
        is_attention_free
        """
    ),
    _free(
        size=(
            "gpu_memory_utilization num_gpu_blocks_override num_gpu_blocks num_cpu_blocks kv_cache_size_tokens "
            "kv_cache_max_concurrency kv_cache_memory_bytes",
            "how many blocks there are",
        ),
        offload=(
            "kv_offloading_size kv_offloading_backend simple_cpu_offload_num_blocks",
            "belongs to vLLM's own tier, which loads what it stored",
        ),
        kept=(
            "enable_prefix_caching prefix_cache_retention_interval cache_hit_alignment_tokens",
            "which blocks are kept and found, not what is in them",
        ),
        told=(
            "user_specified_block_size user_specified_mamba_block_size _block_size_resolved",
            "where block_size came from",
        ),
    ),
)

PARALLEL = Fields(
    _names(
        """
        pipeline_parallel_size tensor_parallel_size prefill_context_parallel_size enable_expert_parallel
        expert_placement_strategy world_size decode_context_parallel_size dcp_kv_cache_interleave_size
        cp_kv_cache_interleave_size worker_cls sd_worker_cls worker_extension_cls enable_hc_sp
        enable_ep_weight_filter
        """
    ),
    _free(
        data=(
            "data_parallel_size data_parallel_size_local data_parallel_rank data_parallel_rank_local "
            "data_parallel_master_ip data_parallel_rpc_port dp_sync_interval data_parallel_master_port "
            "data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb data_parallel_index "
            "_data_parallel_master_port_list",
            "all engines of data parallel have the same model, and should share",
        ),
        experts=(
            "is_moe_model enable_eplb eplb_config all2all_backend enable_elastic_ep elastic_ep_max_dp_size",
            "where experts are, and how tokens get there",
        ),
        run=(
            "disable_custom_all_reduce enable_dbo ubatch_size dbo_decode_token_threshold dbo_prefill_token_threshold "
            "disable_nccl_for_dp_synchronization dcp_comm_backend dcp_q_replicate enable_batch_sharded_sampling "
            "enable_shm_tensor_arena",
            "how the same values are computed; only rounding can differ",
        ),
        place=(
            "max_parallel_loading_workers ray_workers_use_nsight ray_runtime_env placement_group "
            "distributed_executor_backend master_addr master_port node_rank nnodes numa_bind numa_bind_nodes "
            "numa_bind_cpus assigned_physical_gpu_ids distributed_timeout_seconds cpu_distributed_timeout_seconds "
            "rank _coord_store_port _api_process_count _api_process_rank enable_fault_tolerance "
            "fault_tolerance_config _allow_auto_resolve_cp_interleave_size",
            "where its processes run, and how they find each other",
        ),
    ),
)

LOAD = Fields(
    _names(
        """
        load_format model_loader_extra_config ignore_patterns
        """
    ),
    _free(
        how=(
            "download_dir safetensors_load_strategy safetensors_prefetch_num_threads "
            "safetensors_prefetch_block_size device use_tqdm_on_load pt_load_map_location",
            "how the same weights are loaded",
        ),
    ),
)

SPECULATIVE = Fields(
    _names(
        """
        num_speculative_tokens model method draft_tensor_parallel_size tensor_parallel_size quantization
        attention_backend kv_cache_dtype max_model_len revision code_revision index_share_for_mtp_iteration
        disable_padded_drafter_batch disable_eagle_block_drop use_heterogeneous_vocab parallel_drafting
        draft_model_config draft_load_config num_speculative_tokens_per_batch_size disable_lookahead_block_hashes
        rejection_sample_method
        """
    ),
    _free(
        run=(
            "enforce_eager moe_backend use_local_argmax_reduction",
            "how the same values are computed; only rounding can differ",
        ),
        drafts=(
            "prompt_lookup_max prompt_lookup_min suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests "
            "suffix_decoding_max_spec_factor suffix_decoding_min_token_prob synthetic_acceptance_rates "
            "synthetic_acceptance_length enable_adaptive_verification draft_sample_method dspark_draft_topk "
            "draft_lm_head_quantization xpress_topc fly_window_size fly_entropy_threshold fly_entropy_top_k",
            "which tokens are proposed and accepted; keys are hashes of the accepted ones",
        ),
        counted_elsewhere=(
            "target_model_config target_parallel_config draft_parallel_config",
            "counted as the engine's own configuration",
        ),
    ),
)

VLLM = Fields(
    _names(
        """
        model_config cache_config parallel_config load_config attention_config engram_config mamba_config
        kernel_config speculative_config diffusion_config additional_config device_config watermark_config
        weight_transfer_config ec_transfer_config lora_config
        """
    ),
    _free(
        scheduling=(
            "scheduler_config ec_manager_config reasoning_config structured_outputs_config shutdown_timeout "
            "performance_mode optimization_level",
            "which tokens are computed when",
        ),
        run=(
            "compilation_config offload_config quant_config",
            "how the same values are computed (only rounding can differ), where weights are, or part of model_config",
        ),
        beside=(
            "observability_config profiler_config kv_events_config aux_output_config logging_config watchdog_config "
            "instance_id",
            "what is reported about the engine",
        ),
        ours=("kv_transfer_config", "connectors move blocks, and change none"),
    ),
)

BY_CLASS = {
    "ModelConfig": MODEL,
    "MultiModalConfig": MULTIMODAL,
    "CacheConfig": CACHE,
    "ParallelConfig": PARALLEL,
    "LoadConfig": LOAD,
    "SpeculativeConfig": SPECULATIVE,
    "VllmConfig": VLLM,
}
"""All fields of other classes (attention, kernels, Mamba, …) count."""

# vLLM's settings with the prefix VLLM_ that do not count: those about how it runs, and those that differ between
# processes of one engine, or between engines that should share. All other settings with that prefix count.
FREE_VARIABLES = (
    # A process's identity, and how other processes find it.
    r".*_(PORT|HOST|IP|ADDR|URL|URI)",
    r"VLLM_DP_.*|VLLM_RAY_.*|VLLM_RPC_.*|VLLM_NIXL_.*|VLLM_MOONCAKE_.*|VLLM_P2P_.*|VLLM_EC_.*|VLLM_GPU_NIC_.*",
    r"VLLM_ELASTIC_EP_.*|VLLM_NIC_SELECTION_VARS|VLLM_INSTANCE_ID|VLLM_LOOPBACK_IP|VLLM_PROCESS_NAME_PREFIX",
    r"VLLM_OBJECT_STORAGE_.*|VLLM_ENABLE_V1_MULTIPROCESSING|VLLM_WORKER_MULTIPROC_METHOD",
    # Paths of things that are the same in every place. The content at a model's path counts elsewhere.
    r"VLLM_(CACHE_ROOT|CONFIG_ROOT|XLA_CACHE_PATH|ASSETS_CACHE.*|MEDIA_CACHE.*|DEBUG_DUMP_PATH|NCCL_SO_PATH)",
    r"VLLM_(NCCL_INCLUDE_PATH|CUDART_SO_PATH|CUDA_COMPATIBILITY_PATH|RUST_FRONTEND_PATH|LORA_RESOLVER_.*)",
    r"VLLM_FLASHINFER_AUTOTUNE_.*|VLLM_(FORCE|USE)_(MEGA_)?AOT.*|VLLM_.*COMPILE_CACHE.*|VLLM_USE_STANDALONE_COMPILE",
    # Logs, metrics, servers, builds.
    r"VLLM_LOG.*|VLLM_CONFIGURE_LOGGING|VLLM_(DO_NOT_TRACK|NO_USAGE_STATS|USAGE_.*|TRACE_FUNCTION|DEBUG_.*)",
    r"VLLM_(API_KEY|SERVER_DEV_MODE|HTTP_.*|KEEP_ALIVE_.*|BUILD_.*|IMAGE_TAG|DOCKER_.*|TARGET_DEVICE|MAIN_CUDA_.*)",
    r"VLLM_(NVTX_.*|CUSTOM_SCOPES_.*|GC_DEBUG|PATTERN_MATCH_DEBUG|GPU_SYNC_CHECK|CPU_CI_ENV|RINGBUFFER_.*)",
    r"VLLM_KV_EVENTS_.*|VLLM_V1_OUTPUT_PROC_CHUNK_SIZE|VLLM_ALLOW_INSECURE_SERIALIZATION|VLLM_PLUGINS_.*",
    r".*TIMEOUT.*|.*_FETCH_MAX_RETRIES|VLLM_SKIP_.*|VLLM_MSGPACK_.*|VLLM_MQ_.*|VLLM_USE_RAY_.*|VLLM_USE_RUST_.*",
    # How much memory and how many processors it uses.
    r"VLLM_CPU_(KVCACHE_SPACE|OMP_THREADS_BIND|NUM_OF_RESERVED_CPU)|VLLM_.*BUFFER_SIZE(_MB)?|VLLM_ENABLE_STARTUP_PLAN",
    r"VLLM_MEMORY_PROFILER_.*|VLLM_.*_THREADS|VLLM_MEDIA_LOADING_THREAD_COUNT|VLLM_MAX_(N_SEQ|COMPLETION|STOP|BAD).*",
    r"VLLM_SYSTEM_START_DATE|VLLM_(TOOL|XGRAMMAR|V1_USE_OUTLINES|REGEX|ENFORCE_STRICT|GPT_OSS|CHAT_TEMPLATE).*",
)
"""Patterns of whole names."""

COUNTED_VARIABLES = ("S3_ENDPOINT_URL", "HF_ENDPOINT", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
"""Variables of other programs that count."""
