# SPDX-License-Identifier: Apache-2.0
"""What feed-forward blocks share: everything around the products.

Padding, norm, the transformation, padding, norm, dropout, residual connection,
norm; which of the norms there are, the policy in residual.py says.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import activations, normalizations, stochastics
from praxis.layers.transformers import reports, residual

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
Place = residual.Place
template_field = pax_fiddle.template_field


class FeedForwardBlock(base_layer.BaseLayer):
  """A transformation of each position by itself, and a residual connection."""

  # Sizes of the last dimension: of the input, and within the block.
  input_dims: int = 0
  hidden_dims: int = 0
  # Whether padding is zeroed in the input.
  apply_padding_first: bool = False
  ln_tpl: LayerTpl = template_field(normalizations.LayerNorm)
  activation_tpl: LayerTpl = template_field(activations.ReLU)
  # Whether the activation is that of a second product, which multiplies the
  # first.
  use_gated_activation: bool = False
  # Dropout of the output and of what is between the two products.
  residual_dropout_prob: float = 0.0
  relu_dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  relu_dropout_prob: float = 0.0
  residual_dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  # Whether the input is added, and the factor of what it is added to.
  add_skip_connection: bool = True
  residual_weight: float = 1.0
  # Probability that an example skips the block.
  residual_droppath_prob: float = 0.0
  # Where to normalise; see residual.py.
  norm_policy: str = 'pre'
  # Whether weights start uniform with the variance 1 / fan_in, rather than as
  # params_init says.
  internal_gshard_variance_scaling_fan_in_init: bool = False

  def _create_surroundings(self, output_size: int) -> None:
    """Creates norms, dropouts and the residual connection."""
    residual.check_norm_policy(self.norm_policy)
    sizes = self.input_dims, output_size
    residual.create_norms(self, self.ln_tpl, *sizes, 'layer_norm')
    for name in ('relu_dropout', 'residual_dropout'):
      keep_prob = 1.0 - getattr(self, f'{name}_prob')
      template = getattr(self, f'{name}_tpl').clone()
      self.create_child(name, template.set(keep_prob=keep_prob))
    if self.residual_droppath_prob > 0.0:
      self.create_child(
        'residual_droppath',
        residual.droppath(self.residual_droppath_prob, self.residual_weight),
      )

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Num[Array, '*B'] | None = None,
    segment_ids: Int[Array, '*B'] | None = None,
  ) -> Float[Array, '*B Do']:
    """Returns the block's output, where `paddings` is 1 zero plus residual.

    Args:
      inputs: of the block.
      paddings: 1 where the inputs are padding.
      segment_ids: segment of each input, for routing by sentences.
    """
    inputs, branch = self._branch(inputs, paddings, segment_ids)
    return self._join(inputs, branch, paddings)

  def extend_step(
    self,
    inputs: Float[Array, '*B D'],
    *,
    time_step: pytypes.JTensor | int | None = None,
  ) -> Float[Array, '*B Do']:
    """Returns the output of one decoding step, which `__call__` gives too."""
    del time_step
    return self(inputs)

  def _branch(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Num[Array, '*B'] | None,
    segment_ids: Int[Array, '*B'] | None,
  ) -> tuple[Float[Array, '*B D'], Float[Array, '*B Do']]:
    """Returns the inputs, perhaps without padding, and what to add to them."""
    visible = None
    if paddings is not None:
      visible = (1 - paddings).astype(inputs.dtype)[..., None]
      if self.apply_padding_first:
        inputs = inputs * visible
    self._report('input_rms', lambda: reports.rms(inputs))
    normed = residual.norm(self, Place.BEFORE, inputs, paddings)
    self._report_norm('input_norm_rms', normed, inputs)
    outputs = self._transform(normed, paddings, segment_ids)
    if visible is not None and self._hides_outputs():
      outputs = outputs * visible
    self._report('output_rms', lambda: reports.rms(outputs))
    branch = residual.norm(self, Place.AFTER, outputs, paddings)
    self._report_norm('output_norm_rms', branch, outputs)
    return inputs, self.residual_dropout(branch)

  def _join(
    self,
    inputs: Float[Array, '*B D'],
    branch: Float[Array, '*B Do'],
    paddings: Num[Array, '*B'] | None,
  ) -> Float[Array, '*B Do']:
    """Returns the residual connection of inputs and branch."""
    results = self._add(inputs, branch) if self.add_skip_connection else branch
    results = residual.norm(self, Place.SKIP, results, paddings)
    if results.shape == inputs.shape:
      cosine = lambda: reports.cosine(inputs, results)
      self._report('output_rel_cos', cosine)
    return results

  @abc.abstractmethod
  def _transform(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Num[Array, '*B'] | None,
    segment_ids: Int[Array, '*B'] | None,
  ) -> Float[Array, '*B Do']:
    """Returns what is made of normalised inputs."""

  def _hides_outputs(self) -> bool:
    """Returns whether padding is zeroed in what `_transform` returns."""
    return not self.apply_padding_first

  def _add(
    self, inputs: Float[Array, '*B D'], outputs: Float[Array, '*B D']
  ) -> Float[Array, '*B D']:
    if self.residual_droppath_prob > 0.0:
      return self.residual_droppath(inputs, outputs)
    if self.residual_weight != 1.0:
      outputs = outputs * self.residual_weight
    return inputs + outputs

  def _report_norm(self, name: str, normed: Array, before: Array) -> None:
    """Adds a summary of what a norm made of `before`, if there is one."""
    if normed is not before:
      self._report(name, lambda: reports.rms(normed))

  def _report(self, name: str, value: Callable[[], Array]) -> None:
    """Adds a summary for the curious."""
    reports.report(self, name, value)

  def _fan_in_init(self, fan_in: int) -> base_layer.WeightInit | None:
    """Returns the distribution with variance 1 / fan_in, None if not asked."""
    if not self.internal_gshard_variance_scaling_fan_in_init:
      return None
    return base_layer.WeightInit.Uniform(math.sqrt(3.0 / fan_in))


def visible_rms(
  x: Float[Array, '*B D'], paddings: Num[Array, '*B'] | None
) -> Float[Array, '']:
  """Returns the root mean square, padding counted as zeros."""
  if paddings is not None:
    x = x * (1 - paddings).astype(x.dtype)[..., jnp.newaxis]
  return reports.rms(x)
