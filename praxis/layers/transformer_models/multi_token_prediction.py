# SPDX-License-Identifier: Apache-2.0
"""Multi-token prediction: modules that predict the tokens after the next one.

Module k predicts the token k + 1 positions ahead from the output of module
k - 1, or of the model for k = 1, and the embedding of the token k positions
ahead.

References: DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 2.2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.layers import linears, normalizations, transformers
from praxis.layers.attentions import segments
from praxis.layers.transformer_models import model_losses
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens:
  """The tokens that a model reads at each position, and those to predict."""

  ids: Int[Array, 'B T']
  # class_ids and class_weights, [B, T].
  labels: NestedMap
  # 1 for padding.
  paddings: Num[Array, 'B T']
  # Segment of each position in its row, and position in the segment.
  segment_ids: Int[Array, 'B T']
  segment_pos: Int[Array, 'B T']
  segment_mask: Float[Array, '#B 1 #T T'] | segments.SegmentMask

  def ahead(self, num_tokens: int) -> Tokens:
    """Returns the tokens `num_tokens` ahead at each position.

    Positions where they are not in the same segment are padding of weight 0.
    """
    later = lambda x, fill=0: _shift(x, num_tokens, fill)
    is_inside = self.segment_ids == later(self.segment_ids, -1)
    weights = later(self.labels.class_weights)
    return dataclasses.replace(
      self,
      ids=later(self.ids),
      labels=NestedMap(
        class_ids=later(self.labels.class_ids),
        class_weights=jnp.where(is_inside, weights, 0),
      ),
      paddings=jnp.where(is_inside, self.paddings, 1),
    )


class MtpModule(base_layer.BaseLayer):
  """A projection of two normalized inputs, a transformer layer, and a norm."""

  model_dims: int = 0
  # Norms of the inputs and of the output.
  ln_tpl: LayerTpl = template_field(normalizations.RmsNorm)
  # Projects the embedding and the hidden state, in this order.
  proj_tpl: LayerTpl = template_field(linears.Linear)
  # A stack of one layer.
  stacked_transformer_tpl: LayerTpl = template_field(
    transformers.StackedTransformer
  )

  def setup(self) -> None:
    self._check_positive('model_dims')
    for name in ('embedding_ln', 'hidden_ln', 'final_ln'):
      self.create_child(name, self.ln_tpl.clone().set(dim=self.model_dims))
    proj = self.proj_tpl.clone()
    proj.set(input_dims=2 * self.model_dims, output_dims=self.model_dims)
    self.create_child('proj', proj)
    self.create_child('transformer', self.stacked_transformer_tpl)

  def __call__(
    self,
    hidden: Float[Array, 'B T D'],
    embedded: Float[Array, 'B T D'],
    tokens: Tokens,
  ) -> Float[Array, 'B T D']:
    """Returns the inputs of the softmax.

    Args:
      hidden: inputs of the softmax in the model or the module before.
      embedded: embeddings of `tokens`.
      tokens: those ahead.
    """
    inputs = [self.embedding_ln(embedded), self.hidden_ln(hidden)]
    outputs = self.transformer(
      self.proj(jnp.concatenate(inputs, axis=-1)),
      tokens.paddings,
      segment_mask=tokens.segment_mask,
      segment_pos=tokens.segment_pos,
    )
    return self.final_ln(outputs)


class MultiTokenPrediction(base_layer.BaseLayer):
  """The modules of a causal model, with its embedding and its softmax."""

  num_modules: int = 1
  # Weight in the loss of the mean cross entropy of the modules.
  loss_weight: float = 0.3
  # The model sets its model_dims, and its last layer as the transformer.
  module_tpl: LayerTpl = template_field(MtpModule)

  def setup(self) -> None:
    self._check_positive('num_modules', 'loss_weight')
    self.create_children('modules', [self.module_tpl] * self.num_modules)

  def __call__(
    self,
    hidden: Float[Array, 'B T D'],
    tokens: Tokens,
    lookup: Callable[[Int[Array, 'B T']], Float[Array, 'B T D']],
    softmax: base_layer.BaseLayer,
  ) -> NestedMap:
    """Returns mtp_loss, the mean cross entropy, and mtp_weight, its weight.

    Args:
      hidden: inputs of the softmax in the model.
      tokens: those of the model.
      lookup: returns the embeddings of ids.
      softmax: computes the cross entropy.

    Raises:
      ValueError: labels are distributions.
    """
    if 'class_ids' not in tokens.labels:
      raise ValueError(
        f'labels of mtp_tpl must have class_ids, got {sorted(tokens.labels)}; '
        'set mtp_tpl=None'
      )
    loss = weight = jnp.float32(0)
    for k, module in enumerate(self.modules, 1):
      ahead = tokens.ahead(k)
      hidden = module(hidden, lookup(ahead.ids), ahead)
      output = model_losses.label_losses(
        softmax, hidden, ahead.labels, ahead.ids
      )
      self.add_summary(f'loss_of_module_{k}', output.avg_xent)
      loss += output.avg_xent / self.num_modules
      weight += output.total_weight / self.num_modules
    return NestedMap(mtp_loss=loss, mtp_weight=weight)


def _shift(x: Num[Array, 'B T'], count: int, fill: int) -> Num[Array, 'B T']:
  """Returns x[:, t + count] at each t, and `fill` beyond the end."""
  padded = jnp.pad(x, ((0, 0), (0, count)), constant_values=fill)
  return padded[:, count:]
