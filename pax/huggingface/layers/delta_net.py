# SPDX-License-Identifier: Apache-2.0
"""Gated DeltaNet layers, and their weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from pax.huggingface import weight_layouts
from pax.huggingface.layers import merged_heads
from pax.huggingface.layers.mixers import LayerTpl, Mixer
from pax.huggingface.weight_layouts import WeightLayout
from praxis import pax_fiddle
from praxis.layers import gated_delta_net


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaNet(Mixer):
  """The settings of a layer."""

  tensors: ClassVar[str] = 'linear_attn'

  num_key_heads: int
  num_value_heads: int
  key_dim: int
  value_dim: int
  kernel_size: int
  # Whether queries, keys and values are one tensor, and output gates, strengths
  # and decays one each; otherwise two tensors have all of a head of keys.
  has_tensor_per_output: bool = False

  def __post_init__(self) -> None:
    if self.num_value_heads % self.num_key_heads:
      raise ValueError(
        'linear_num_value_heads in config.json must be a multiple of'
        f' linear_num_key_heads={self.num_key_heads}, got'
        f' {self.num_value_heads}; use the file that save_pretrained writes'
      )

  def layer(self, norm: LayerTpl) -> LayerTpl:
    """Returns the Config of the layer.

    Args:
      norm: That of the model; the norm of outputs stores its whole scale.
    """
    return pax_fiddle.Config(
      gated_delta_net.GatedDeltaNet,
      num_key_heads=self.num_key_heads,
      num_value_heads=self.num_value_heads,
      key_head_dim=self.key_dim,
      value_head_dim=self.value_dim,
      conv_kernel_size=self.kernel_size,
      norm_tpl=norm.clone().set(direct_scale=True),
    )

  def weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of the weights of a layer.

    Args:
      source: Name of the layer in the files.
      target: Path of the layer.
      model_dims: Dimension of the model.
    """
    values = (self.num_value_heads, self.value_dim)
    yield from self._projections(source, target, model_dims)
    yield from merged_heads.convolutions(
      f'{source}.conv1d', target, self._convolved_heads(), self.kernel_size
    )
    for tensor, variable, size in (
      ('A_log', 'a_log', self.num_value_heads),
      ('dt_bias', 'dt_bias', self.num_value_heads),
      ('norm.weight', 'norm/scale', self.value_dim),
    ):
      yield weight_layouts.same(
        f'{source}.{tensor}', f'{target}/{variable}', size
      )
    yield weight_layouts.from_heads(
      f'{source}.out_proj.weight', f'{target}/post/w', model_dims, values
    )

  def _projections(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of the weights of inputs."""
    if self.has_tensor_per_output:
      yield from self._separate_projections(source, target, model_dims)
    else:
      yield from self._grouped_projections(source, target, model_dims)

  def _separate_projections(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of tensors whose heads follow each other."""
    values = (self.num_value_heads, self.value_dim)
    for tensor, parts in (
      ('in_proj_qkv', self._convolved_heads()),
      ('in_proj_z', {'output_gate': values}),
      ('in_proj_b', {'strength': values[:1]}),
      ('in_proj_a', {'decay': values[:1]}),
    ):
      yield from merged_heads.projections(
        f'{source}.{tensor}', target, model_dims, parts
      )

  def _grouped_projections(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of two tensors, which have all of a head of keys."""
    groups = self.num_key_heads
    shared = self.num_value_heads // groups
    keys, values = (groups, self.key_dim), (groups * shared, self.value_dim)
    for tensor, parts in (
      (
        'in_proj_qkvz',
        (
          ('query', self.key_dim, keys),
          ('key', self.key_dim, keys),
          ('value', shared * self.value_dim, values),
          ('output_gate', shared * self.value_dim, values),
        ),
      ),
      (
        'in_proj_ba',
        (('strength', shared, values[:1]), ('decay', shared, values[:1])),
      ),
    ):
      total, first = sum(size for _, size, _ in parts), 0
      for name, size, heads in parts:
        yield weight_layouts.split(
          f'{source}.{tensor}.weight',
          f'{target}/{name}/w',
          (groups * total, model_dims),
          (groups, total, model_dims),
          (2, 0, 1),
        ).take(
          slice(None),
          slice(first, first + size),
          merged_shape=(model_dims, *heads),
        )
        first += size

  def _convolved_heads(self) -> dict[str, tuple[int, int]]:
    """Returns the numbers of heads and their dimensions, by projection."""
    keys = (self.num_key_heads, self.key_dim)
    values = (self.num_value_heads, self.value_dim)
    return {'query': keys, 'key': keys, 'value': values}
