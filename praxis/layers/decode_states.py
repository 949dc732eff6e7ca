# SPDX-License-Identifier: Apache-2.0
"""Layers that forward operations on the decode state to their children."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from praxis import base_layer


def check_decoding(
  layer: base_layer.BaseLayer, *, prefill: bool, sequential: bool
) -> None:
  """Checks that a layer and its children support a mode of decoding.

  Layers with restrictions define a method `check_decoding`, which raises
  ValueError.

  Args:
    layer: the layer to decode with.
    prefill: whether a forward pass over the prompt fills the decode state, and
      decoding starts from its last token.
    sequential: whether consecutive entries of the cache are consecutive steps
      of one sequence, so that their index differences are distances. False for
      flat beam search, where only positions and masks are valid.
  """
  if hasattr(layer, 'check_decoding'):
    layer.check_decoding(prefill=prefill, sequential=sequential)


class DecodeStateContainer(base_layer.BaseLayer):
  """A layer whose decode state is held by its children."""

  def _visit_decode_states(self, visit: Callable[[Any], None]) -> None:
    """Calls `visit` with each child that holds self-attention state."""
    raise NotImplementedError(
      f'{type(self).__name__} must define _visit_decode_states'
    )

  def check_decoding(self, *, prefill: bool, sequential: bool) -> None:
    """Checks that the children can decode; see `decode_states.check_decoding`.

    Raises:
      ValueError: a child does not support this mode of decoding.
    """
    self._visit_decode_states(
      lambda layer: check_decoding(
        layer, prefill=prefill, sequential=sequential
      )
    )

  def transform_decode_state(
    self, transform_fn: base_layer.DecodeStateTransformFn
  ) -> None:
    """Replaces every cached tensor by fn(tensor, batch_dim, time_dim)."""
    self._visit_decode_states(
      lambda layer: layer.transform_decode_state(transform_fn)
    )

  def lazy_broadcast_prefix(
    self, num_suffix_samples: int, suffix_length: int
  ) -> None:
    """Moves the caches to shared prefix caches, and starts suffix caches.

    Args:
      num_suffix_samples: number of samples that share a prefix.
      suffix_length: number of steps that the suffix caches can hold.
    """
    self._visit_decode_states(
      lambda layer: layer.lazy_broadcast_prefix(
        num_suffix_samples, suffix_length
      )
    )

  def right_align_decode_state_with_prefix(
    self,
    max_prefix_size: int,
    right_align_fn: base_layer.DecodeStateTransformFn,
  ) -> None:
    """Concatenates prefix and suffix caches, right-aligned.

    Args:
      max_prefix_size: number of trailing steps to keep of the prefixes.
      right_align_fn: right-aligns a tensor [rows, time, ...].
    """
    self._visit_decode_states(
      lambda layer: layer.right_align_decode_state_with_prefix(
        max_prefix_size, right_align_fn
      )
    )

  def init_states(self, *args: Any, **kwargs: Any) -> None:
    """Raises NotImplementedError: a forward pass creates the states."""
    raise NotImplementedError(
      f'{type(self).__name__}.init_states: call the layer on the prompt with '
      'DECODE_CACHE mutable, which creates the states'
    )
