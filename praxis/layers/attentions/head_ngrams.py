# SPDX-License-Identifier: Apache-2.0
"""N-gram embeddings of attended values.

Shapes as in dot_product.py.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle
from praxis.layers.attentions import attention_core, kv_cache

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]

QueryHeads = attention_core.QueryHeads
Index = attention_core.Index

# The cached input of the n-grammer.
_NGRAM_STATE = 'encoded_pre_ngrammer'


class HeadNgrams(kv_cache.CachedAttention):
  """The n-grammer of attended values."""

  # Adds n-gram embeddings to the attended values, e.g. ngrammer.VQNgrammer.
  ngrammer_tpl: LayerTpl | None = pax_fiddle.template_field(None)

  def _create_ngrammer(self) -> None:
    if self.ngrammer_tpl is not None:
      self.create_child('ngrammer', self.ngrammer_tpl.clone())

  def _add_ngrams(
    self,
    encoded: QueryHeads,
    probs: Float[Array, 'B N ...'] | None,
    pos: Int[Array, '#B T'] | None,
  ) -> QueryHeads:
    return self.ngrammer(
      input_ids=None,
      input_embs=self._prefill_writer().write(_NGRAM_STATE, encoded),
      segment_pos=pos,
      merge_heads=False,
      attention_scores=probs if self._uses_ngram_scores() else None,
    )

  def _add_step_ngrams(
    self,
    encoded: Float[Array, 'B L N H'],
    probs: Float[Array, 'B N ...'] | None,
    time_step: Index,
    pos: Int[Array, 'B L'],
  ) -> Float[Array, 'B L N H']:
    self._step_writer(time_step).write(_NGRAM_STATE, encoded)
    scores = probs if self._uses_ngram_scores() else None
    cache = self._kv_cache()
    # Scores pair a step with any earlier one, not only with the previous.
    history = 1 if scores is None else cache.max_length()
    states, first = cache.read_with_history(_NGRAM_STATE, time_step, history)
    takes_first = getattr(self.ngrammer, 'takes_first_tokens', False)
    steps = [
      self.ngrammer.extend_step(
        states,
        step=first + i,
        merge_heads=False,
        attention_score=None if scores is None else scores[:, :, i],
        **({'is_first': pos[:, i] == 0} if takes_first else {}),
      )
      for i in range(encoded.shape[1])
    ]
    return jnp.stack(steps, axis=1)

  def _uses_ngram_scores(self) -> bool:
    return getattr(self.ngrammer_tpl, 'ngram_using_attention_scores', False)
