# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters of decoding; the class selects the algorithm."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

from praxis import pax_fiddle
from praxis.decoding import (
  logit_filters,
  termination_constraints,
  token_samplers,
)
from praxis.nested_map import NestedMap
from praxis.pytypes import NpTensor

# fn(model, result) -> result
ProcessResultFn = Callable[[Any, NestedMap], NestedMap]


@dataclasses.dataclass
class ControlledDecodingHParams:
  """Blockwise best-of-K selection of samples; see `controlled_decoding`.

  References: Controlled Decoding from Language Models,
  https://arxiv.org/abs/2310.17022
  """

  # Number of decode steps of a block; 0: one block for each bucket of
  # max_decode_steps.
  interval: int = 0
  # Number of adjacent samples to select the best from.
  block_num_samples: int = 0


@dataclasses.dataclass
class DecoderHParams:
  """Hyperparameters of all algorithms."""

  # Number of columns of the result, prompt included, without fprop_for_prefix.
  seqlen: int = 0
  # Smallest number of prompt tokens, for inputs that choose prefixes.
  min_prefix_len: int = 5
  # One or several end-of-sequence ids.
  eos_id: int | Sequence[int] = 2
  # Number of decode steps before an end-of-sequence id counts.
  min_decode_steps: int = 0
  # The largest number of decode steps; required with fprop_for_prefix. Several
  # numbers are buckets: caches have room for the smallest, and grow.
  max_decode_steps: int | Sequence[int] | None = None
  # Whether prompts are prefilled in one forward pass, or token by token.
  fprop_for_prefix: bool = False
  # Whether samples share the KV cache of their prompt; needs attention layers
  # "WithLPB", fprop_for_prefix, and a mutable PREFIX_DECODE_CACHE.
  lazy_prefix_broadcast: bool = False
  # {'a': 'b'}: the decode loop shards over mesh axis b what is declared over a.
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None
  # fn(model, result) -> result, applied to the result.
  process_result_fn: ProcessResultFn | None = None
  # Only the default is supported: the model's embedding has its lookup_style.
  # The field exists for servers built on upstream.
  emb_lookup_style: str = 'matmul'
  # Whether the batch's extra_input_kwargs are passed to the network.
  use_extra_input_kwargs: bool = False
  # Number of requests with a cache, for continuous batching.
  num_cache_slots: int = 0
  # Only None is supported: ids and paddings of a prefix with a precomputed
  # cache. The field exists for servers built on upstream.
  precompute_kv_cache_prefix_ids: tuple[NpTensor, NpTensor] | None = None

  def clone(self) -> Self:
    """Returns a deep copy."""
    return copy.deepcopy(self)

  def decode_steps(self) -> list[int]:
    """Returns max_decode_steps in ascending order, empty if None.

    Raises:
      ValueError: a number is not positive.
    """
    steps = self.max_decode_steps
    if steps is None:
      return []
    steps = sorted(steps) if isinstance(steps, Sequence) else [steps]
    if not steps or steps[0] < 1:
      raise ValueError(
        'max_decode_steps must be > 0, a number or several, got '
        f'{self.max_decode_steps}'
      )
    return steps


@dataclasses.dataclass
class GreedyDecoderHParams(DecoderHParams):
  """Greedy decoding: the most probable token at each step."""


@dataclasses.dataclass
class BeamSearchHParams(DecoderHParams):
  """Beam search; see `praxis.decoding.beam_search`."""

  # Number of live hypotheses, and of results.
  beam_size: int = 1
  # Number of continuations of each hypothesis; None: beam_size.
  tokens_per_beam: int | None = None
  # Scores are log-probabilities over ((5 + length) / 5) ** alpha.
  length_norm_alpha: float = 0.8
  # Whether to stop when all live hypotheses have an end-of-sequence token. Such
  # tokens then compete with the others for a place in the beam.
  early_exit: bool = False
  # Whether caches are reordered by a one-hot matmul instead of a gather.
  use_matmul_beam_shuffle: bool = False
  # Added to generated ids, for a model of a part of a vocabulary.
  output_id_offset: int = 0


@dataclasses.dataclass
class FlatBeamSearchHParams(BeamSearchHParams):
  """Flat beam search; see `praxis.decoding.flat_beam_search`."""


@dataclasses.dataclass
class SampleDecoderHParams(DecoderHParams):
  """Sampling; see `praxis.decoding.sampling`."""

  # Number of samples of each prompt.
  num_samples: int = 1
  # Divisor of the logits; 0: greedy.
  temperature: float = 1.0
  # Number of top tokens to sample from (top-k); 0: all.
  k: int = 40
  # Below 1, the expected recall of an approximate top k.
  top_k_recall_target: float = 1.0
  # Whether log-probabilities are normalized over the top k tokens.
  use_top_k_for_logprobs: bool = False
  # Total probability of the tokens to sample from (top-p); None: 1.
  p: logit_filters.TopP | None = None
  # Samples the next token.
  next_token_sampler_tpl: pax_fiddle.Config[
    token_samplers.BaseNextTokenSampler
  ] = pax_fiddle.template_field(token_samplers.DefaultNextTokenSampler)
  # Ends samples early, in batches with enforce_sample_constraints.
  sample_constraint: (
    pax_fiddle.Config[termination_constraints.BaseSampleTerminationConstraint]
    | None
  ) = None
  # Whether p is a share of the sum of all logits, not of the top k's
  # probability; see `logit_filters.sum_of_logits`.
  global_normalize: bool = False
  # Scale of classifier-free guidance, one or one per sample: logits become
  # u + scale * (c - u), conditional c and unconditional u.
  cf_guidance_scale: list[float] | float | None = None
  # Blockwise controlled decoding; None: off.
  controlled_decoding: ControlledDecodingHParams | None = None
  # Whether the samples of a prompt are sorted by log-probability.
  sort_samples: bool | None = True
  # Whether k, p and the fields on them override those of
  # next_token_sampler_tpl.
  override_next_token_sampler_params: bool = True
  # Whether end-of-sequence ids are masked, and each sample is cut where ending
  # it is most probable.
  optimize_eos: bool = False
  # Whether the result has no sample dimension; num_samples must be 1.
  vanilla_sample_decode: bool = False
  # Whether to stop when all samples have ended.
  early_exit: bool = True


def check_supported(hparams: Any) -> DecoderHParams:
  """Returns `hparams`.

  Raises:
    ValueError: they are not DecoderHParams, or set an unsupported field.
  """
  if not isinstance(hparams, DecoderHParams):
    raise ValueError(
      f'decoder_tpl must be a DecoderHParams, got {type(hparams).__name__}; '
      'use one of praxis.decoder_hparams'
    )
  if hparams.emb_lookup_style != 'matmul':
    raise ValueError(
      "emb_lookup_style must be 'matmul', as decoding ignores it, got "
      f'{hparams.emb_lookup_style!r}; set lookup_style of the '
      "model's embedding"
    )
  if hparams.precompute_kv_cache_prefix_ids is not None:
    raise ValueError(
      'precompute_kv_cache_prefix_ids must be None, as caches are not '
      f'precomputed, got {hparams.precompute_kv_cache_prefix_ids}; begin the '
      'prompts of the batch with that prefix'
    )
  return hparams


def to_sampling(hparams: DecoderHParams) -> SampleDecoderHParams:
  """Returns sampling hparams; greedy decoding samples from the top 1.

  Raises:
    NotImplementedError: the hparams are of another algorithm.
  """
  if isinstance(hparams, SampleDecoderHParams):
    return hparams
  if not isinstance(hparams, GreedyDecoderHParams):
    raise NotImplementedError(
      f'Decoding algorithm {type(hparams).__name__} is not implemented; use '
      'GreedyDecoderHParams, SampleDecoderHParams, BeamSearchHParams or '
      'FlatBeamSearchHParams'
    )
  return SampleDecoderHParams(**vars(hparams), k=1, temperature=0.0)


def template_has_type(template: Any, cls: type) -> bool:
  """Returns whether `template` is an instance or a Config of exactly `cls`."""
  if isinstance(template, pax_fiddle.Config):
    return template.cls == cls
  return isinstance(template, cls)
