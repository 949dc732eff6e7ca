# SPDX-License-Identifier: Apache-2.0
"""Options of sampling, from decoder hparams and the fields of a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import pax_fiddle
from praxis.decoding import hparams as decoder_hparams
from praxis.decoding import (
  stop_sequences,
  streaming,
  termination_constraints,
  token_samplers,
)
from praxis.decoding.hparams import SampleDecoderHParams
from praxis.nested_map import NestedMap

# Options whose value in the batch overrides that of hparams.
_BATCH_OVERRIDES = ('temperature', 'eos_id', 'cf_guidance_scale')
# Options that only a batch has.
_BATCH_ONLY = (
  'gumbel_prng_key',
  'per_example_max_decode_steps',
  'per_example_top_k',
  'per_example_top_p',
  'num_per_token_logprobs',
  'enforce_sample_constraints',
)
# Options that only hparams have.
_HPARAMS_ONLY = (
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingOptions:
  """Options of sampling from a batch of B prompts, N samples of each."""

  # The scale of classifier-free guidance: one, one per sample, or by prompt [B]
  # or [B, N]. Prompts then are [a with condition, a without, b with, ...].
  cf_guidance_scale: Sequence[float] | float | Array | None = None
  # Whether prompts are prefilled in one forward pass.
  fprop_for_prefix: bool = False
  # Divisor of the logits: one, [B] or [B, N].
  temperature: float | Array = 1.0
  # Raw PRNG keys, [B] or [B, 2], that replace the model's random stream.
  gumbel_prng_key: Array | None = None
  # Top-p and top-k of each prompt; None: those of the sampler.
  per_example_top_p: Float[Array, ' B'] | None = None
  per_example_top_k: Int[Array, ' B'] | None = None
  # The largest number of decode steps; several: cache sizes to grow through.
  max_decode_steps: int | Sequence[int] | None = None
  # That of each prompt, which gets at least one token, with 0 too.
  per_example_max_decode_steps: Int[Array, ' B'] | None = None
  # Number of decode steps before an end-of-sequence id counts.
  min_decode_steps: int = 0
  # None: nothing but max_decode_steps ends a sample.
  eos_id: stop_sequences.EosId | None = None
  # Streams tokens to the host.
  result_callback: streaming.StreamingResultCallback | None = None
  # Mesh axes inside the decode loop, and PartitionSpecs of the weights for it.
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None
  model_var_pspecs: Any = None
  # Whether the result is the final state of the loop, unprocessed.
  return_result_for_suffix_score: bool = False
  # Whether samples are sorted by log-probability, and the recall of that sort.
  sort_samples: bool | None = True
  top_k_recall_target: float = 1.0
  # Whether the loop ends when all samples have ended.
  early_exit: bool = True
  # Whether log-probabilities are normalized over the top k tokens.
  use_top_k_for_logprobs: bool = False
  # Blockwise controlled decoding; None: off.
  controlled_decoding: decoder_hparams.ControlledDecodingHParams | None = None
  # Whether the result has the entropy of each step.
  return_entropy_score: bool = False
  # fn(model, result) -> result
  process_result_fn: decoder_hparams.ProcessResultFn | None = None
  # Whether each sample is cut where ending it is most probable.
  optimize_eos: bool = False
  # Ends samples early; both or neither.
  sample_constraint: (
    termination_constraints.BaseSampleTerminationConstraint | None
  ) = None
  enforce_sample_constraints: Array | None = None
  # Number of top candidates to return of each step.
  num_per_token_logprobs: Int[Array, ' B'] | None = None

  def __post_init__(self) -> None:
    temperature = self.temperature
    if isinstance(temperature, int | float) and not temperature >= 0:
      raise ValueError(
        f'temperature must be >= 0, got {temperature}; 0 takes the most'
        ' probable token'
      )
    if self.optimize_eos and (
      self.eos_id is None
      or getattr(self.eos_id, 'ndim', 0) > 1
      or self.use_top_k_for_logprobs
    ):
      raise ValueError(
        'optimize_eos needs an eos_id, no stop sequences, and '
        f'use_top_k_for_logprobs=False, got eos_id={self.eos_id}, '
        f'use_top_k_for_logprobs={self.use_top_k_for_logprobs}'
      )
    if (self.sample_constraint is None) != (
      self.enforce_sample_constraints is None
    ):
      raise ValueError(
        'sample_constraint and enforce_sample_constraints must be given '
        f'together, got {self.sample_constraint} and '
        f'{self.enforce_sample_constraints}; add the latter to the batch'
      )


def from_batch(
  hparams: SampleDecoderHParams,
  batch: NestedMap,
  *,
  result_callback: streaming.StreamingResultCallback | None = None,
  return_result_for_suffix_score: bool = False,
  model_var_pspecs: Any = None,
) -> SamplingOptions:
  """Returns the options of `hparams`, overridden by fields of the batch.

  Args:
    hparams: the settings of the decoder.
    batch: its optional fields are named in `LanguageModel.decode`.
    result_callback: streams tokens to the host.
    return_result_for_suffix_score: whether the result is the loop's state.
    model_var_pspecs: PartitionSpecs of the model's variables.
  """
  fields = {name: getattr(hparams, name) for name in _BATCH_OVERRIDES}
  fields |= {name: batch[name] for name in _BATCH_OVERRIDES if name in batch}
  fields |= {name: batch.get(name) for name in _BATCH_ONLY}
  fields = {
    k: jnp.asarray(v) if hasattr(v, 'shape') else v for k, v in fields.items()
  }
  constraint = hparams.sample_constraint
  if isinstance(constraint, pax_fiddle.Config):
    constraint = pax_fiddle.build(constraint)
  return SamplingOptions(
    **fields,
    **{name: getattr(hparams, name) for name in _HPARAMS_ONLY},
    sample_constraint=constraint,
    return_entropy_score='return_entropy_score' in batch,
    result_callback=result_callback,
    return_result_for_suffix_score=return_result_for_suffix_score,
    model_var_pspecs=model_var_pspecs,
  )


def build_next_token_sampler(
  hparams: SampleDecoderHParams, batch: NestedMap
) -> token_samplers.BaseNextTokenSampler:
  """Returns the sampler with the settings of `hparams` and the batch."""
  template = hparams.next_token_sampler_tpl.clone()
  if hparams.override_next_token_sampler_params:
    template.set(
      top_k=hparams.k,
      top_p=hparams.p,
      global_normalize=hparams.global_normalize,
      top_k_recall_target=hparams.top_k_recall_target,
      use_top_k_for_logprobs=hparams.use_top_k_for_logprobs,
    )
  sampler_cls = template.cls
  template.set(**sampler_cls.get_extra_kwargs(batch, hparams.num_samples))
  return pax_fiddle.build(template)
