# SPDX-License-Identifier: Apache-2.0
"""What attention asks of its settings and inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxtyping import Array

from praxis import base_layer

INPUTS = ('query', 'key', 'value')


def check_sizes(layer: base_layer.BaseLayer) -> None:
  """Raises ValueError if an attention layer's sizes do not fit together."""
  sizes = layer.input_dim
  sizes = dict(sizes) if isinstance(sizes, Mapping) else sizes
  by_input = sizes if isinstance(sizes, dict) else dict.fromkeys(INPUTS, sizes)
  if set(by_input) != set(INPUTS) or min(by_input.values()) <= 0:
    raise ValueError(
      'input_dim must be positive, or a positive number for each of '
      f'{list(INPUTS)}, got {sizes}; set the size of the inputs'
    )
  heads, size, hidden = layer.num_heads, layer.dim_per_head, layer.hidden_dim
  if heads <= 0 or (hidden if size is None else size) <= 0:
    raise ValueError(
      'num_heads and the size of a head must be positive, got num_heads='
      f'{heads}, dim_per_head={size}, hidden_dim={hidden}; set hidden_dim or '
      'dim_per_head'
    )
  if size is None and hidden % heads:
    raise ValueError(
      f'hidden_dim must be a multiple of num_heads={heads}, got {hidden}; set '
      'dim_per_head for heads of another size'
    )


def check_options(layer: base_layer.BaseLayer) -> None:
  """Raises ValueError if options of attention exclude each other."""
  if layer.combine_qkv and isinstance(layer.input_dim, Mapping):
    raise ValueError(
      'input_dim must be one number with combine_qkv=True, got '
      f'{layer.input_dim}; set combine_qkv=False'
    )
  if layer.consolidate_rope_key_state and (
    layer.dconv_qkv or not layer.use_rotary_position_emb
  ):
    raise ValueError(
      'consolidate_rope_key_state=True needs use_rotary_position_emb=True and '
      f'dconv_qkv=False, got {layer.use_rotary_position_emb} and '
      f'{layer.dconv_qkv}; set it to False'
    )


def check_ignores_order(layer: base_layer.BaseLayer) -> None:
  """Raises ValueError unless cached steps may stand in any order.

  That is so where positions and masks alone say what a step sees.
  """
  wrong = {
    'relative_bias_tpl': layer.relative_bias_tpl is not None,
    'dconv_qkv': layer.dconv_qkv,
    'ngrammer_tpl': layer.ngrammer_tpl is not None,
    'its window': layer._window() is not None,
    'its distance of query and key': layer._logits_use_offset,
  }
  found = [name for name, is_set in wrong.items() if is_set]
  if found:
    raise ValueError(
      f'{type(layer).__name__} {layer.name!r} must not depend on the order of '
      f'steps in a flat beam search, got {", ".join(found)}; use '
      'BeamSearchHParams'
    )


def check_inputs(inputs: Sequence[Array], sizes: Sequence[int]) -> None:
  """Raises ValueError if queries, keys and values are not [B, time, size]."""
  for name, x, size in zip(INPUTS, inputs, sizes, strict=True):
    if x.ndim != 3 or x.shape[-1] != size:
      raise ValueError(
        f'{name}_vec must have shape [batch, time, {size}], got '
        f'{list(x.shape)}; set input_dim to the size of the inputs'
      )
  _, key, value = inputs
  if key.shape[:2] != value.shape[:2]:
    raise ValueError(
      'value_vec must have the batch and time of key_vec '
      f'{list(key.shape[:2])}, got {list(value.shape[:2])}; pass one value for '
      'each key'
    )


def check_mask(
  mask: Array, batch: int, heads: int, num_queries: int, num_keys: int
) -> None:
  """Raises ValueError if the mask is not one for the logits."""
  fits = (
    mask.ndim == 4
    and mask.shape[0] in (1, batch)
    and mask.shape[1] in (1, heads)
    and mask.shape[2] in (1, num_queries)
    and mask.shape[3] == num_keys
  )
  if not fits:
    raise ValueError(
      f'atten_mask must have shape [{batch} or 1, 1, {num_queries} or 1, '
      f'{num_keys}], got {list(mask.shape)}; build it with segment_mask, '
      'causal_mask or convert_paddings_to_mask'
    )
