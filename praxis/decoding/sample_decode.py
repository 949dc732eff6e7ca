# SPDX-License-Identifier: Apache-2.0
"""Sampling and greedy decoding of a bound model, as functions.

With fprop_for_prefix the prompts `prefix_ids` are right-aligned in their first
`max_prefix_len` columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxtyping import Array, Float, Int

from praxis import py_utils
from praxis.decoding import (
  model_fns,
  sampling,
  stop_sequences,
  streaming,
  termination_constraints,
  token_samplers,
)
from praxis.decoding.hparams import ControlledDecodingHParams
from praxis.decoding.sampling_options import SamplingOptions
from praxis.nested_map import NestedMap

_ExtendStepFn = model_fns.ExtendStepFn | model_fns.ExpandedExtendStepFn
_ProcessResultFn = Callable[[Any, NestedMap], NestedMap]
_Constraint = termination_constraints.BaseSampleTerminationConstraint


def sample_decode(
  model: Any,
  extend_step_fn: _ExtendStepFn,
  transform_state_fn: model_fns.TransformStateFn | None,
  lazy_broadcast_prefix_fn: model_fns.LazyBroadcastPrefixFn | None,
  next_token_sampler: token_samplers.BaseNextTokenSampler,
  prefix_ids: Int[Array, 'B P'],
  prefix_paddings: Float[Array, 'B P'],
  seq_len: int,
  num_samples: int,
  fprop_fn: model_fns.FPropFn | None = None,
  cf_guidance_scale: Sequence[float] | float | Array | None = None,
  fprop_for_prefix: bool = False,
  temperature: float | Array = 1.0,
  gumbel_prng_key: Array | None = None,
  per_example_top_p: Float[Array, ' B'] | None = None,
  per_example_top_k: Int[Array, ' B'] | None = None,
  max_prefix_len: int | None = None,
  max_decode_steps: int | Sequence[int] | None = None,
  per_example_max_decode_steps: Int[Array, ' B'] | None = None,
  prefix_lengths: Int[Array, ' B'] | None = None,
  eos_id: stop_sequences.EosId | None = None,
  result_callback: streaming.StreamingResultCallback | None = None,
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None,
  model_var_pspecs: Any = None,
  return_result_for_suffix_score: bool = False,
  sort_samples: bool | None = True,
  top_k_recall_target: float = 1.0,
  early_exit: bool = True,
  use_top_k_for_logprobs: bool = False,
  controlled_decoding: ControlledDecodingHParams | None = None,
  return_entropy_score: bool = False,
  process_result_fn: _ProcessResultFn | None = None,
  optimize_eos: bool = False,
  sample_constraint: _Constraint | None = None,
  enforce_sample_constraints: Array | None = None,
  num_per_token_logprobs: Int[Array, ' B'] | None = None,
  min_decode_steps: int = 0,
) -> NestedMap:
  """Returns sampled continuations of the prompts; see `sampling.decode`.

  Arguments not listed are the fields of `SamplingOptions`.

  Args:
    model: bound, with a mutable DECODE_CACHE.
    extend_step_fn: runs one decode step of the model.
    transform_state_fn: transforms its decode states; None if it has none.
    lazy_broadcast_prefix_fn: shares the prompts' states among samples; None:
      each sample has a copy.
    next_token_sampler: samples the next token.
    prefix_ids: the prompts.
    prefix_paddings: 1 at padding.
    seq_len: number of columns of the result.
    num_samples: number of samples of each prompt.
    fprop_fn: prefills the prompts; None: they are prefilled already.
    max_prefix_len: number of columns of the prompts, 0 if all are empty; None:
      all.
    prefix_lengths: None: from the paddings, or 0 without fprop_for_prefix.
  """
  original_lengths = py_utils.sequence_lengths(prefix_paddings)
  if prefix_lengths is None:
    prefix_lengths = original_lengths * int(fprop_for_prefix)
  options = SamplingOptions(
    cf_guidance_scale=cf_guidance_scale,
    fprop_for_prefix=fprop_for_prefix,
    temperature=temperature,
    gumbel_prng_key=gumbel_prng_key,
    per_example_top_p=per_example_top_p,
    per_example_top_k=per_example_top_k,
    max_decode_steps=max_decode_steps,
    per_example_max_decode_steps=per_example_max_decode_steps,
    min_decode_steps=min_decode_steps,
    eos_id=eos_id,
    result_callback=result_callback,
    decode_loop_mesh_axes_transpose=decode_loop_mesh_axes_transpose,
    model_var_pspecs=model_var_pspecs,
    return_result_for_suffix_score=return_result_for_suffix_score,
    sort_samples=sort_samples,
    top_k_recall_target=top_k_recall_target,
    early_exit=early_exit,
    use_top_k_for_logprobs=use_top_k_for_logprobs,
    controlled_decoding=controlled_decoding,
    return_entropy_score=return_entropy_score,
    process_result_fn=process_result_fn,
    optimize_eos=optimize_eos,
    sample_constraint=sample_constraint,
    enforce_sample_constraints=enforce_sample_constraints,
    num_per_token_logprobs=num_per_token_logprobs,
  )
  fns = model_fns.ModelFns(
    extend_step=model_fns.coerce_to_expanded_extend_step_fn(extend_step_fn),
    transform_state=transform_state_fn,
    lazy_broadcast_prefix=lazy_broadcast_prefix_fn,
    fprop=fprop_fn
    and (lambda model, *_: fprop_fn(model, prefix_ids, prefix_paddings)),
  )
  prefix = sampling.Prefix(
    ids=prefix_ids,
    lengths=prefix_lengths,
    original_lengths=original_lengths,
    num_columns=(
      prefix_ids.shape[1] if max_prefix_len is None else max_prefix_len
    ),
  )
  shape = (num_samples, seq_len)
  return sampling.decode(model, fns, next_token_sampler, prefix, shape, options)


def sample_decode_after_fprop(
  model: Any,
  extend_step_fn: _ExtendStepFn,
  transform_state_fn: model_fns.TransformStateFn | None,
  lazy_broadcast_prefix_fn: model_fns.LazyBroadcastPrefixFn | None,
  next_token_sampler: token_samplers.BaseNextTokenSampler,
  prefix_ids: Int[Array, 'B P'],
  prefix_paddings: Float[Array, 'B P'],
  seq_len: int,
  num_samples: int,
  cf_guidance_scale: Sequence[float] | float | Array | None = None,
  fprop_for_prefix: bool = False,
  temperature: float | Array = 1.0,
  gumbel_prng_key: Array | None = None,
  per_example_top_p: Float[Array, ' B'] | None = None,
  per_example_top_k: Int[Array, ' B'] | None = None,
  max_prefix_len: int | None = None,
  max_decode_steps: int | Sequence[int] | None = None,
  per_example_max_decode_steps: Int[Array, ' B'] | None = None,
  prefix_lengths: Int[Array, ' B'] | None = None,
  eos_id: stop_sequences.EosId | None = None,
  result_callback: streaming.StreamingResultCallback | None = None,
  return_result_for_suffix_score: bool = False,
  sort_samples: bool | None = True,
  top_k_recall_target: float = 1.0,
  early_exit: bool = True,
  use_top_k_for_logprobs: bool = False,
  controlled_decoding: ControlledDecodingHParams | None = None,
  return_entropy_score: bool = False,
  optimize_eos: bool = False,
  sample_constraint: _Constraint | None = None,
  enforce_sample_constraints: Array | None = None,
  num_per_token_logprobs: Int[Array, ' B'] | None = None,
) -> NestedMap:
  """Returns what `sample_decode` does, of a model that is prefilled already.

  The model's states have room for all decode steps, unless they are shared
  lazily.

  Args:
    model: see `sample_decode`, as all arguments.
    extend_step_fn: runs one decode step of the model.
    transform_state_fn: transforms its decode states.
    lazy_broadcast_prefix_fn: shares the prompts' states among samples.
    next_token_sampler: samples the next token.
    prefix_ids: the prompts.
    prefix_paddings: 1 at padding.
    seq_len: number of columns of the result.
    num_samples: number of samples of each prompt.
    max_prefix_len: number of columns of the prompts.
    prefix_lengths: number of tokens of the prompts.
  """
  return sample_decode(
    model,
    extend_step_fn,
    transform_state_fn,
    lazy_broadcast_prefix_fn,
    next_token_sampler,
    prefix_ids,
    prefix_paddings,
    seq_len,
    num_samples,
    cf_guidance_scale=cf_guidance_scale,
    fprop_for_prefix=fprop_for_prefix,
    temperature=temperature,
    gumbel_prng_key=gumbel_prng_key,
    per_example_top_p=per_example_top_p,
    per_example_top_k=per_example_top_k,
    max_prefix_len=max_prefix_len,
    max_decode_steps=max_decode_steps,
    per_example_max_decode_steps=per_example_max_decode_steps,
    prefix_lengths=prefix_lengths,
    eos_id=eos_id,
    result_callback=result_callback,
    return_result_for_suffix_score=return_result_for_suffix_score,
    sort_samples=sort_samples,
    top_k_recall_target=top_k_recall_target,
    early_exit=early_exit,
    use_top_k_for_logprobs=use_top_k_for_logprobs,
    controlled_decoding=controlled_decoding,
    return_entropy_score=return_entropy_score,
    optimize_eos=optimize_eos,
    sample_constraint=sample_constraint,
    enforce_sample_constraints=enforce_sample_constraints,
    num_per_token_logprobs=num_per_token_logprobs,
  )


def greedy_decode(
  model: Any,
  extend_step_fn: _ExtendStepFn,
  prefix_ids: Int[Array, 'B P'],
  prefix_paddings: Float[Array, 'B P'],
  seq_len: int,
  fprop_for_prefix: bool = False,
  fprop_fn: model_fns.FPropFn | None = None,
  transform_state_fn: model_fns.TransformStateFn | None = None,
  max_prefix_len: int | None = None,
  max_decode_steps: int | Sequence[int] | None = None,
  prefix_lengths: Int[Array, ' B'] | None = None,
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None,
  model_var_pspecs: Any = None,
  eos_id: stop_sequences.EosId | None = None,
  process_result_fn: _ProcessResultFn | None = None,
) -> NestedMap:
  """Returns what `sample_decode` does with the most probable token each step.

  Args:
    model: see `sample_decode`, as all arguments.
    extend_step_fn: runs one decode step of the model.
    prefix_ids: the prompts.
    prefix_paddings: 1 at padding.
    seq_len: number of columns of the result.
    fprop_for_prefix: whether prompts are prefilled in one forward pass.
    fprop_fn: prefills the prompts.
    transform_state_fn: transforms decode states.
    max_prefix_len: number of columns of the prompts.
    max_decode_steps: the largest number of decode steps.
    prefix_lengths: number of tokens of the prompts.
    decode_loop_mesh_axes_transpose: mesh axes inside the loop.
    model_var_pspecs: PartitionSpecs of the model's variables.
    eos_id: end-of-sequence ids.
    process_result_fn: fn(model, result) -> result.
  """
  return sample_decode(
    model,
    extend_step_fn,
    transform_state_fn,
    None,
    token_samplers.DefaultNextTokenSampler(top_k=1),
    prefix_ids,
    prefix_paddings,
    seq_len,
    num_samples=1,
    fprop_fn=fprop_fn,
    fprop_for_prefix=fprop_for_prefix,
    max_prefix_len=max_prefix_len,
    max_decode_steps=max_decode_steps,
    prefix_lengths=prefix_lengths,
    eos_id=eos_id,
    decode_loop_mesh_axes_transpose=decode_loop_mesh_axes_transpose,
    model_var_pspecs=model_var_pspecs,
    process_result_fn=process_result_fn,
  )


def vanilla_sample_decode(
  model: Any,
  fprop_fn: model_fns.FPropFn,
  extend_step_fn: _ExtendStepFn,
  transform_state_fn: model_fns.TransformStateFn,
  next_token_sampler: token_samplers.BaseNextTokenSampler,
  prefix_ids: Int[Array, 'B P'],
  prefix_paddings: Float[Array, 'B P'],
  temperature: float | Array = 1.0,
  gumbel_prng_key: Array | None = None,
  max_decode_steps: int | None = None,
  eos_id: stop_sequences.EosId | None = None,
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None,
  model_var_pspecs: Any = None,
) -> NestedMap:
  """Returns one continuation of each prompt, without a sample dimension.

  Args:
    model: see `sample_decode`, as all arguments.
    fprop_fn: prefills the prompts.
    extend_step_fn: runs one decode step of the model.
    transform_state_fn: transforms decode states.
    next_token_sampler: samples the next token.
    prefix_ids: right-aligned prompts.
    prefix_paddings: 1 at padding.
    temperature: divisor of the logits.
    gumbel_prng_key: raw PRNG keys of each example.
    max_decode_steps: required; the number of columns after the prompts.
    eos_id: end-of-sequence ids.
    decode_loop_mesh_axes_transpose: mesh axes inside the loop.
    model_var_pspecs: PartitionSpecs of the model's variables.

  Raises:
    ValueError: max_decode_steps is not set.
  """
  if max_decode_steps is None:
    raise ValueError('max_decode_steps must be > 0, got None')
  result = sample_decode(
    model,
    extend_step_fn,
    transform_state_fn,
    None,
    next_token_sampler,
    prefix_ids,
    prefix_paddings,
    seq_len=prefix_ids.shape[1] + max_decode_steps,
    num_samples=1,
    fprop_fn=fprop_fn,
    fprop_for_prefix=True,
    temperature=temperature,
    gumbel_prng_key=gumbel_prng_key,
    max_decode_steps=max_decode_steps,
    eos_id=eos_id,
    decode_loop_mesh_axes_transpose=decode_loop_mesh_axes_transpose,
    model_var_pspecs=model_var_pspecs,
  )
  return jax.tree.map(lambda x: x[:, 0], result)
