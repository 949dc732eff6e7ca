# SPDX-License-Identifier: Apache-2.0
"""Norms of queries, keys and values.

Shapes as in dot_product.py.

References: https://arxiv.org/abs/2302.05442; over all heads together, OLMo 2,
https://arxiv.org/abs/2501.00656
"""

from __future__ import annotations

from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle
from praxis.layers.attentions import head_projections

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class HeadNorms(head_projections.HeadProjections):
  """The norms of projected queries, keys and values."""

  # Normalizes queries and keys of each head, after or before their rotation.
  ln_tpl: LayerTpl | None = pax_fiddle.template_field(None)
  ln_before_rotary: bool = False
  # Whether these norms are over all heads together, with a scale [N·H].
  ln_all_heads: bool = False
  # Normalizes values of each head (Gemma 4).
  value_ln_tpl: LayerTpl | None = pax_fiddle.template_field(None)

  def _create_head_norms(self) -> None:
    if self.value_ln_tpl is not None:
      norm = self.value_ln_tpl.clone().set(dim=self._head_dim())
      self.create_child('layer_norm_v', norm)
    if self.ln_tpl is None:
      return
    for name, num_heads in self._normed_heads().items():
      dim = self._head_dim() * (num_heads if self.ln_all_heads else 1)
      self.create_child(name, self.ln_tpl.clone().set(dim=dim))

  def _normed_heads(self) -> dict[str, int]:
    """Returns the numbers of heads by the norms of `ln_tpl`."""
    return {
      'layer_norm_q': self.num_heads,
      'layer_norm_k': self._num_key_heads(),
    }

  def _num_key_heads(self) -> int:
    """Returns the number of heads of keys and values."""
    return self.num_heads

  def _norm_heads(
    self, name: str, heads: Float[Array, 'B T ...'], *, before_rotary: bool
  ) -> Float[Array, 'B T ...']:
    """Returns queries or keys, normalized if their norm is at this place.

    Args:
      name: of the norm.
      heads: the queries or keys.
      before_rotary: whether they are not yet rotated.
    """
    if self.ln_tpl is None or self.ln_before_rotary != before_rotary:
      return heads
    norm = getattr(self, name)
    if not self.ln_all_heads:
      return norm(heads)
    return norm(heads.reshape(*heads.shape[:2], -1)).reshape(heads.shape)

  def _norm_value(
    self, value: Float[Array, 'B T ...']
  ) -> Float[Array, 'B T ...']:
    """Returns values, normalized if they have a norm."""
    return value if self.value_ln_tpl is None else self.layer_norm_v(value)
