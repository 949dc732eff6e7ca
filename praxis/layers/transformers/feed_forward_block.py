# SPDX-License-Identifier: Apache-2.0
"""The residual block around a feed-forward transformation.

Subclasses define the transformation; the block adds norms, dropout, padding and
the residual connection.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable

from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import activations, normalizations, stochastics
from praxis.layers.transformers import activation_summaries, norm_placement

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
NormPosition = norm_placement.NormPosition
template_field = pax_fiddle.template_field


class FeedForwardBlock(base_layer.BaseLayer):
  """A position-wise transformation with norms and a residual connection."""

  # Model dimension of the input, and hidden dimension.
  input_dims: int = 0
  hidden_dims: int = 0
  # Whether to zero padded inputs before the norm, rather than the output of the
  # transformation.
  apply_padding_first: bool = False
  ln_tpl: LayerTpl = template_field(normalizations.LayerNorm)
  activation_tpl: LayerTpl = template_field(activations.ReLU)
  # Whether the hidden layer is gated (a GLU variant, arXiv:2002.05202): the
  # product of a linear projection and the activation of a second one.
  use_gated_activation: bool = False
  # Dropout of the output, and of the hidden layer.
  residual_dropout_prob: float = 0.0
  relu_dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  relu_dropout_prob: float = 0.0
  residual_dropout_tpl: LayerTpl = template_field(stochastics.Dropout)
  # Whether to add the input to the output times residual_weight.
  add_skip_connection: bool = True
  residual_weight: float = 1.0
  # Stochastic depth: the probability that an example skips the block.
  residual_droppath_prob: float = 0.0
  # One of norm_placement.NORM_POLICIES.
  norm_policy: str = 'pre'
  # Whether weights are initialized uniformly with variance 1 / fan_in instead
  # of by params_init.
  internal_gshard_variance_scaling_fan_in_init: bool = False

  def _create_norms_and_residual(self, output_dims: int) -> None:
    """Creates the norms, dropouts and stochastic depth."""
    norm_placement.check_norm_policy(self.norm_policy)
    norm_placement.create_norms(
      self, self.norm_policy, self.ln_tpl, self.input_dims, output_dims
    )
    self.create_child(
      'relu_dropout',
      self.relu_dropout_tpl.clone().set(keep_prob=1.0 - self.relu_dropout_prob),
    )
    self.create_child(
      'residual_dropout',
      self.residual_dropout_tpl.clone().set(
        keep_prob=1.0 - self.residual_dropout_prob
      ),
    )
    if self.residual_droppath_prob > 0.0:
      self.create_child(
        'residual_droppath',
        pax_fiddle.Config(
          stochastics.StochasticResidual,
          residual_weight=self.residual_weight,
          survival_prob=1.0 - self.residual_droppath_prob,
        ),
      )

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Num[Array, '*B'] | None = None,
    segment_ids: Int[Array, '*B'] | None = None,
  ) -> Float[Array, '*B Do']:
    """Returns the output of the block.

    Args:
      inputs: of the block.
      paddings: 1 for padding, where the transformation contributes 0.
      segment_ids: segments of packed inputs, for routing by segment.
    """
    inputs, branch = self._residual_branch(inputs, paddings, segment_ids)
    return self._add_residual(inputs, branch, paddings)

  def extend_step(
    self,
    inputs: Float[Array, '*B D'],
    *,
    time_step: pytypes.JTensor | int | None = None,
  ) -> Float[Array, '*B Do']:
    """Returns the output of one decoding step, the same at any `time_step`."""
    return self(inputs)

  def _residual_branch(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Num[Array, '*B'] | None,
    segment_ids: Int[Array, '*B'] | None,
  ) -> tuple[Float[Array, '*B D'], Float[Array, '*B Do']]:
    """Returns the inputs, masked if configured, and the branch to add."""
    token_mask = None
    if paddings is not None:
      token_mask = (1 - paddings).astype(inputs.dtype)[..., None]
      if self.apply_padding_first:
        inputs = inputs * token_mask
    self._summarize('input_rms', lambda: activation_summaries.rms(inputs))
    normed = self._norm(NormPosition.INPUT, inputs, paddings)
    if normed is not inputs:
      self._summarize(
        'input_norm_rms', lambda: activation_summaries.rms(normed)
      )
    outputs = self._transform(normed, paddings, segment_ids)
    if token_mask is not None and self._masks_outputs():
      outputs = outputs * token_mask
    self._summarize('output_rms', lambda: activation_summaries.rms(outputs))
    branch = self._norm(NormPosition.OUTPUT, outputs, paddings)
    if branch is not outputs:
      self._summarize(
        'output_norm_rms', lambda: activation_summaries.rms(branch)
      )
    return inputs, self.residual_dropout(branch)

  def _add_residual(
    self,
    inputs: Float[Array, '*B D'],
    branch: Float[Array, '*B Do'],
    paddings: Num[Array, '*B'] | None,
  ) -> Float[Array, '*B Do']:
    """Returns the (normalized) sum of inputs and branch."""
    outputs = branch
    if self.residual_droppath_prob > 0.0 and self.add_skip_connection:
      outputs = self.residual_droppath(inputs, branch)
    elif self.add_skip_connection:
      if self.residual_weight != 1.0:
        branch = branch * self.residual_weight
      outputs = inputs + branch
    outputs = self._norm(NormPosition.SUM, outputs, paddings)
    if outputs.shape == inputs.shape:
      self._summarize(
        'output_rel_cos', lambda: activation_summaries.cosine(inputs, outputs)
      )
    return outputs

  @abc.abstractmethod
  def _transform(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Num[Array, '*B'] | None,
    segment_ids: Int[Array, '*B'] | None,
  ) -> Float[Array, '*B Do']:
    """Returns the transformation of normalized inputs."""

  def _masks_outputs(self) -> bool:
    """Returns whether to zero the padded outputs of `_transform`."""
    return not self.apply_padding_first

  def _norm(
    self,
    position: NormPosition,
    x: Float[Array, '*B D'],
    paddings: Num[Array, '*B'] | None,
  ) -> Float[Array, '*B D']:
    return norm_placement.apply_norm(
      self, self.norm_policy, position, x, paddings
    )

  def _summarize(self, name: str, value: Callable[[], Array]) -> None:
    activation_summaries.add_verbose_summary(self, name, value)

  def _fan_in_init(self, fan_in: int) -> base_layer.WeightInit | None:
    """Returns the initializer of variance 1 / fan_in, None if disabled."""
    if not self.internal_gshard_variance_scaling_fan_in_init:
      return None
    return base_layer.WeightInit.Uniform(math.sqrt(3.0 / fan_in))
