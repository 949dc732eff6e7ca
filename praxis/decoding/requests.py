# SPDX-License-Identifier: Apache-2.0
"""From a batch and DecoderHParams to what the algorithms take."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from praxis import pax_fiddle
from praxis.decoding import samplers, sampling, streaming
from praxis.decoding.hparams import (
  DecoderHParams,
  GreedyDecoderHParams,
  SampleDecoderHParams,
)
from praxis.nested_map import NestedMap

# Fields of a batch that decide for each example, and what they override.
_BY_EXAMPLE = (
  'gumbel_prng_key',
  'per_example_max_decode_steps',
  'per_example_top_k',
  'per_example_top_p',
  'num_per_token_logprobs',
  'enforce_sample_constraints',
)
_OVERRIDES = ('temperature', 'eos_id', 'cf_guidance_scale')


def checked(hparams: Any) -> DecoderHParams:
  """Returns them.

  Raises:
    ValueError: they are no DecoderHParams, or ask for what a server does.
  """
  if not isinstance(hparams, DecoderHParams):
    raise ValueError(
      f'decoder_tpl must be a DecoderHParams, got {type(hparams).__name__}; '
      'use one of praxis.decoder_hparams'
    )
  if hparams.emb_lookup_style != 'matmul':
    raise ValueError(
      "emb_lookup_style must be 'matmul', which servers read and decoding does "
      f'not, got {hparams.emb_lookup_style!r}; set lookup_style of the '
      "model's embedding"
    )
  if hparams.precompute_kv_cache_prefix_ids is not None:
    raise ValueError(
      'precompute_kv_cache_prefix_ids must be None, as no cache is computed '
      f'beforehand, got {hparams.precompute_kv_cache_prefix_ids}; begin the '
      'prompts of the batch with that prefix'
    )
  return hparams


def as_sampling(hparams: DecoderHParams) -> SampleDecoderHParams:
  """Returns those of sampling; greedy ones draw from the top 1.

  Raises:
    NotImplementedError: they are of another algorithm.
  """
  if isinstance(hparams, SampleDecoderHParams):
    return hparams
  if not isinstance(hparams, GreedyDecoderHParams):
    raise NotImplementedError(
      f'Decoding algorithm {type(hparams).__name__} is not implemented; use '
      'GreedyDecoderHParams, SampleDecoderHParams, BeamSearchHParams or '
      'FlatBeamSearchHParams'
    )
  fields = {k: v for k, v in vars(hparams).items()}
  return SampleDecoderHParams(**fields, k=1, temperature=0.0)


def next_token_sampler(
  hparams: SampleDecoderHParams, batch: NestedMap
) -> samplers.BaseNextTokenSampler:
  """Returns the sampler, built with what hparams and batch decide of it."""
  template = hparams.next_token_sampler_tpl.clone()
  if hparams.override_next_token_sampler_params:
    template.set(
      top_k=hparams.k,
      top_p=hparams.p,
      global_normalize=hparams.global_normalize,
      top_k_recall_target=hparams.top_k_recall_target,
      use_top_k_for_logprobs=hparams.use_top_k_for_logprobs,
    )
  cls = template.cls
  template.set(**cls.get_extra_kwargs(batch, hparams.num_samples))
  return pax_fiddle.build(template)


def sampling_options(
  hparams: SampleDecoderHParams,
  batch: NestedMap,
  *,
  result_callback: streaming.StreamingResultCallback | None = None,
  return_result_for_suffix_score: bool = False,
  model_var_pspecs: Any = None,
) -> sampling.Options:
  """Returns the options of sampling, those of the batch before hparams'."""
  fields = {name: getattr(hparams, name) for name in _OVERRIDES}
  fields |= {name: batch[name] for name in _OVERRIDES if name in batch}
  fields |= {name: batch.get(name) for name in _BY_EXAMPLE}
  fields = {
    k: jnp.asarray(v) if hasattr(v, 'shape') else v for k, v in fields.items()
  }
  constraint = hparams.sample_constraint
  if isinstance(constraint, pax_fiddle.Config):
    constraint = pax_fiddle.build(constraint)
  same = (
    'controlled_decoding',
    'decode_loop_mesh_axes_transpose',
    'early_exit',
    'fprop_for_prefix',
    'max_decode_steps',
    'min_decode_steps',
    'optimize_eos',
    'process_result_fn',
    'sort_samples',
    'top_k_recall_target',
    'use_top_k_for_logprobs',
  )
  return sampling.Options(
    **fields,
    **{name: getattr(hparams, name) for name in same},
    sample_constraint=constraint,
    return_entropy_score='return_entropy_score' in batch,
    result_callback=result_callback,
    return_result_for_suffix_score=return_result_for_suffix_score,
    model_var_pspecs=model_var_pspecs,
  )


def num_decoded(batch: NestedMap, batch_size: int) -> NestedMap:
  """Returns the metrics of decoding: how many examples count."""
  weights = batch.get('eval_sample_weights')
  if weights is None:
    count = jnp.asarray(batch_size, jnp.float32)
  else:
    count = jnp.sum(weights)
  return NestedMap(num_decoded=(count, jnp.asarray(1.0, jnp.float32)))
