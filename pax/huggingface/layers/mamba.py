# SPDX-License-Identifier: Apache-2.0
"""Mamba-2 layers, and their weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp

from pax.huggingface import weight_layouts
from pax.huggingface.layers import merged_heads
from pax.huggingface.layers.mixers import LayerTpl, Mixer
from pax.huggingface.weight_layouts import WeightLayout
from praxis import pax_fiddle
from praxis.layers import attentions, mamba2, normalizations


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mamba(Mixer):
  """The settings of a layer."""

  tensors: ClassVar[str] = 'mamba'

  num_heads: int
  head_dim: int
  # Groups of heads with the same input and output matrices, whose outputs are
  # normalized together.
  num_groups: int
  state_dim: int
  kernel_size: int
  has_conv_bias: bool
  # Bounds of time steps.
  time_step_limits: tuple[float, float] = (0.0, math.inf)

  def __post_init__(self) -> None:
    if self.num_heads % self.num_groups:
      raise ValueError(
        f'the number of groups of Mamba in config.json must divide its'
        f' {self.num_heads} heads, got {self.num_groups}; use the file that'
        ' save_pretrained writes'
      )

  def layer(self, norm: LayerTpl) -> LayerTpl:
    """Returns the Config of the layer.

    Args:
      norm: That of the model; the norm of outputs has its epsilon.
    """
    return pax_fiddle.Config(
      mamba2.Mamba2,
      num_key_heads=self.num_groups,
      key_head_dim=self.state_dim,
      num_value_heads=self.num_heads,
      value_head_dim=self.head_dim,
      conv_kernel_size=self.kernel_size,
      conv_tpl=pax_fiddle.Config(
        attentions.BiasedCausalDepthwiseConv1D
        if self.has_conv_bias
        else attentions.CausalDepthwiseConv1D
      ),
      time_step_limits=self.time_step_limits,
      norm_tpl=pax_fiddle.Config(
        normalizations.GroupedRmsNorm,
        epsilon=norm.epsilon,
        intermediate_dtype=jnp.float32,
      ),
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
    values = (self.num_heads, self.head_dim)
    matrices = (self.num_groups, self.state_dim)
    # x, B and C of the paper.
    convolved = {'value': values, 'key': matrices, 'query': matrices}
    yield from merged_heads.projections(
      f'{source}.in_proj',
      target,
      model_dims,
      {'output_gate': values, **convolved, 'decay': values[:1]},
    )
    yield from merged_heads.convolutions(
      f'{source}.conv1d',
      target,
      convolved,
      self.kernel_size,
      has_bias=self.has_conv_bias,
    )
    for tensor, variable, size in (
      ('A_log', 'a_log', self.num_heads),
      ('dt_bias', 'dt_bias', self.num_heads),
      ('D', 'skip', self.num_heads),
      ('norm.weight', 'norm/scale', math.prod(values)),
    ):
      yield weight_layouts.same(
        f'{source}.{tensor}', f'{target}/{variable}', size
      )
    yield weight_layouts.from_heads(
      f'{source}.out_proj.weight', f'{target}/post/w', model_dims, values
    )


def read_time_step_limits(config: Mapping[str, Any]) -> tuple[float, float]:
  """Returns the bounds of time steps in config.json.

  Newer files have infinity as an object, which JSON has not.

  Args:
    config: Contents of config.json.

  Raises:
    ValueError: They are not two numbers, the smaller first.
  """
  limits = config.get('time_step_limit') or (0.0, math.inf)
  try:
    lower, upper = (
      float(x['__float__'] if isinstance(x, Mapping) else x) for x in limits
    )
    is_valid = 0 <= lower < upper
  except (KeyError, TypeError, ValueError):
    is_valid = False
  if not is_valid:
    raise ValueError(
      'time_step_limit in config.json must be two numbers, the smaller first,'
      f' got {limits!r}; use the file that save_pretrained writes'
    )
  return lower, upper
