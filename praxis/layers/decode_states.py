# SPDX-License-Identifier: Apache-2.0
"""Layers whose children hold decode states: what is done to all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from praxis import base_layer

# fn(tensor, batch_dim, time_dim), -1 for a dimension the tensor lacks.
TransformFn = Callable[[jax.Array, int, int], jax.Array]


def check(
  layer: base_layer.BaseLayer, *, at_once: bool, in_order: bool
) -> None:
  """Raises ValueError if a layer, or one in it, cannot decode so.

  Layers say it by their `check_decoding`, if they have one.

  Args:
    layer: that a model decodes with.
    at_once: whether a forward pass on the prompt leaves the states that steps
      start from, its last token being read again.
    in_order: whether a text's steps follow each other in the caches, so that
      their indices say how far they are apart; of flat beam search only
      positions and masks do.
  """
  if hasattr(layer, 'check_decoding'):
    layer.check_decoding(at_once=at_once, in_order=in_order)


class HoldsDecodeStates(base_layer.BaseLayer):
  """Passes on to children what decoding does to states."""

  def _each_decode_state(self, visit: Callable[[Any], None]) -> None:
    """Calls `visit` with each child that holds states of self attention."""
    raise NotImplementedError(f'{type(self).__name__} names no children')

  def check_decoding(self, *, at_once: bool, in_order: bool) -> None:
    """Raises ValueError if a layer cannot decode so; see `check`."""
    self._each_decode_state(
      lambda layer: check(layer, at_once=at_once, in_order=in_order)
    )

  def transform_decode_state(self, transform_fn: TransformFn) -> None:
    """Replaces every cached tensor by fn(tensor, batch_dim, time_dim)."""
    self._each_decode_state(
      lambda layer: layer.transform_decode_state(transform_fn)
    )

  def lazy_broadcast_prefix(
    self, num_suffix_samples: int, suffix_length: int
  ) -> None:
    """Freezes caches as prefixes of so many samples; see attentions.

    Args:
      num_suffix_samples: how many samples share what is cached.
      suffix_length: for how many steps the new caches have room.
    """
    self._each_decode_state(
      lambda layer: layer.lazy_broadcast_prefix(
        num_suffix_samples, suffix_length
      )
    )

  def right_align_decode_state_with_prefix(
    self, max_prefix_size: int, right_align_fn: TransformFn
  ) -> None:
    """Joins caches with their prefixes, aligned to the right; see attentions.

    Args:
      max_prefix_size: how many steps, the last ones, are taken of prefixes.
      right_align_fn: aligns a tensor [rows, time, ...].
    """
    self._each_decode_state(
      lambda layer: layer.right_align_decode_state_with_prefix(
        max_prefix_size, right_align_fn
      )
    )

  def init_states(self, *args: Any, **kwargs: Any) -> None:
    """Raises NotImplementedError: a forward pass makes the states."""
    raise NotImplementedError(
      f'{type(self).__name__}.init_states: call the layer on the prompt with '
      'DECODE_CACHE mutable, which makes the states'
    )
