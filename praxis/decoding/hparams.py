# SPDX-License-Identifier: Apache-2.0
"""What can be asked of generation; the class says which algorithm."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from praxis import pax_fiddle
from praxis.decoding import constraints, filters, samplers
from praxis.nested_map import NestedMap
from praxis.pytypes import NpTensor

# fn(model, result) -> result
ProcessResultFn = Callable[[Any, NestedMap], NestedMap]


@dataclasses.dataclass
class ControlledDecodingHParams:
  """Every `interval` steps the best sample of a block replaces the others.

  References: Controlled Decoding from Language Models (blockwise best-of-K),
  https://arxiv.org/abs/2310.17022
  """

  # How many steps a block has; 0: it ends with each bucket of
  # max_decode_steps.
  interval: int = 0
  # How many samples, next to each other, are compared.
  block_num_samples: int = 0


@dataclasses.dataclass
class DecoderHParams:
  """What all algorithms share."""

  # Length of the result, prompt and all, where the prompt is read token by
  # token (fprop_for_prefix=False).
  seqlen: int = 0
  # For inputs that pick prefixes: how many tokens these have at least.
  min_prefix_len: int = 5
  # The tokens, one or several, each of which ends a sequence.
  eos_id: int | Sequence[int] = 2
  # How many tokens are generated before an end counts.
  min_decode_steps: int = 0
  # How many tokens are generated at most; required by fprop_for_prefix. With
  # several numbers caches start with room for the least, and grow.
  max_decode_steps: int | Sequence[int] | None = None
  # Whether the prompt is read at once, or token by token.
  fprop_for_prefix: bool = False
  # Whether samples share the cache of their prompt; needs attention layers
  # "WithLPB", fprop_for_prefix, and a mutable PREFIX_DECODE_CACHE.
  lazy_prefix_broadcast: bool = False
  # {'a': 'b'}: in the loop, what is split over mesh axis a is split over b.
  decode_loop_mesh_axes_transpose: dict[str, str] | None = None
  # Gets the model and the result, and returns another result.
  process_result_fn: ProcessResultFn | None = None
  # For servers built on upstream, which read it. Other values are refused: the
  # model's embedding says how it is looked up.
  emb_lookup_style: str = 'matmul'
  # Whether the batch's extra_input_kwargs are passed to the network.
  use_extra_input_kwargs: bool = False
  # For continuous batching: of how many requests there are caches.
  num_cache_slots: int = 0
  # For servers built on upstream, which read it: ids and paddings of a prefix
  # whose cache is computed once. Refused unless None.
  precompute_kv_cache_prefix_ids: tuple[NpTensor, NpTensor] | None = None

  def clone(self) -> DecoderHParams:
    """Returns a deep copy."""
    return copy.deepcopy(self)

  def decode_steps(self) -> list[int]:
    """Returns max_decode_steps in ascending order, empty if there are none.

    Raises:
      ValueError: one of them is not positive.
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
  """The most probable token, always."""


@dataclasses.dataclass
class BeamSearchHParams(DecoderHParams):
  """The most probable texts, as far as a beam of hypotheses finds them."""

  # How many hypotheses are kept.
  beam_size: int = 1
  # Of how many tokens each hypothesis is continued by; beam_size when None.
  tokens_per_beam: int | None = None
  # Scores are log-probabilities over ((5 + length) / 5) ** alpha.
  length_norm_alpha: float = 0.8
  # Whether to stop as soon as no hypothesis can become better than the results.
  early_exit: bool = False
  # Whether caches are reordered by a product with a one-hot matrix.
  use_matmul_beam_shuffle: bool = False
  # Added to the tokens of the result, where the model knows a part of a
  # vocabulary.
  output_id_offset: int = 0


@dataclasses.dataclass
class FlatBeamSearchHParams(BeamSearchHParams):
  """Beam search that reorders masks and not caches; for decoders only."""


@dataclasses.dataclass
class SampleDecoderHParams(DecoderHParams):
  """A token drawn by its probability."""

  # How many continuations of each prompt.
  num_samples: int = 1
  # What logits are divided by before drawing; 0 takes the most probable.
  temperature: float = 1.0
  # Of how many of the most probable tokens one is drawn; 0 for all.
  k: int = 40
  # Below 1, the share of the top k that a faster search has to find.
  top_k_recall_target: float = 1.0
  # Whether log-probabilities are normalised over the top k.
  use_top_k_for_logprobs: bool = False
  # Of which total probability the most probable tokens are drawn from.
  p: filters.TopP | None = None
  # Draws the token.
  next_token_sampler_tpl: pax_fiddle.Config[samplers.BaseNextTokenSampler] = (
    pax_fiddle.template_field(samplers.DefaultNextTokenSampler)
  )
  # Ends samples that break a rule, in batches with enforce_sample_constraints.
  sample_constraint: (
    pax_fiddle.Config[constraints.BaseSampleTerminationConstraint] | None
  ) = None
  # Whether p is of all tokens' probability and not of the top k's.
  global_normalize: bool = False
  # Classifier-free guidance: logits become u + scale * (c - u), c of the
  # prompt and u of one without condition; one number, or one a sample.
  cf_guidance_scale: list[float] | float | None = None
  # Replaces samples by better ones block by block.
  controlled_decoding: ControlledDecodingHParams | None = None
  # Whether the samples of a prompt are ordered by their log-probability.
  sort_samples: bool | None = True
  # Whether the above replace those of next_token_sampler_tpl.
  override_next_token_sampler_params: bool = True
  # Whether no end is drawn, and each text is cut where an end is most
  # probable.
  optimize_eos: bool = False
  # Whether the result has no dimension of samples, as the minimal decoder's.
  vanilla_sample_decode: bool = False
  # Whether to stop as soon as every sequence has ended.
  early_exit: bool = True


def template_has_type(template: Any, cls: type) -> bool:
  """Returns whether it is an instance of a class, or a Config of just that."""
  if isinstance(template, pax_fiddle.Config):
    return template.cls == cls
  return isinstance(template, cls)
