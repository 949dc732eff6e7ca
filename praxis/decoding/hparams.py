# SPDX-License-Identifier: Apache-2.0
"""What can be asked of generation; the class says which algorithm."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

from praxis import pax_fiddle
from praxis.decoding import samplers


@dataclasses.dataclass(kw_only=True)
class DecoderHParams:
  """What all algorithms share."""

  # Length of the result, prompt and all, where the prompt is read token by
  # token (fprop_for_prefix=False).
  seqlen: int = 0
  # The tokens, one or several, each of which ends a sequence.
  eos_id: int | Sequence[int] = 2
  # How many tokens are generated before an end counts.
  min_decode_steps: int = 0
  # How many tokens are generated at most; required by fprop_for_prefix.
  max_decode_steps: int | None = None
  # Whether the prompt is read at once, or token by token.
  fprop_for_prefix: bool = False

  def clone(self) -> DecoderHParams:
    """Returns a deep copy."""
    return copy.deepcopy(self)


@dataclasses.dataclass(kw_only=True)
class GreedyDecoderHParams(DecoderHParams):
  """The most probable token, always."""


@dataclasses.dataclass(kw_only=True)
class SampleDecoderHParams(DecoderHParams):
  """A token drawn by its probability."""

  # How many continuations of each prompt.
  num_samples: int = 1
  # What logits are divided by before drawing; 0 takes the most probable.
  temperature: float = 1.0
  # Of how many of the most probable tokens one is drawn; 0 for all.
  k: int = 40
  # Of which total probability the most probable tokens are drawn from.
  p: float | None = None
  # Draws the token.
  next_token_sampler_tpl: pax_fiddle.Config[samplers.BaseNextTokenSampler] = (
    pax_fiddle.template_field(samplers.DefaultNextTokenSampler)
  )
  # Whether k and p above replace those of next_token_sampler_tpl.
  override_next_token_sampler_params: bool = True
  # Whether the samples of a prompt are ordered by their log-probability.
  sort_samples: bool = True
  # Whether to stop as soon as every sequence has ended.
  early_exit: bool = True
