# SPDX-License-Identifier: Apache-2.0
"""A masked language model (BERT, arXiv:1810.04805)."""

from __future__ import annotations

import jax.numpy as jnp

from praxis import base_layer, base_model, pax_fiddle
from praxis.layers import augmentations, transformer_models
from praxis.layers.models import sequence_model, xent_metrics
from praxis.layers.transformer_models import LanguageModelType
from praxis.nested_map import NestedMap

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class BertModel(base_model.BaseModel):
  """Predicts masked tokens from the other tokens of their sequence.

  A batch has labels, paddings, segment_ids and segment_pos, all [B, T], and
  optionally masked_ids, the inputs of the network, and masked_pos, 1 at masked
  positions.

  References: BERT, https://arxiv.org/abs/1810.04805
  """

  # The network; its model_type is BIDIRECTIONAL, and packed_input is set.
  lm_tpl: LayerTpl = pax_fiddle.template_field(transformer_models.TransformerLm)
  # The label smoothing of training; None: the softmax's own.
  label_smoothing_prob: float | None = None
  # The id of the mask token.
  mask_token_id: int = 0
  # Whether to mask at random even if the batch has masked_ids.
  force_mask_generation: bool = False

  def setup(self) -> None:
    if self.lm_tpl.model_type != LanguageModelType.BIDIRECTIONAL:
      raise ValueError(
        'lm_tpl.model_type must be BIDIRECTIONAL, got '
        f'{self.lm_tpl.model_type!r}; masked tokens are predicted from both '
        'sides'
      )
    if not self.lm_tpl.packed_input:
      raise ValueError(
        'lm_tpl.packed_input must be True, got False; batches have segment_ids'
      )
    self.create_child(
      'lm',
      sequence_model.with_label_smoothing(
        self.lm_tpl, self.label_smoothing_prob
      ),
    )
    self.create_child(
      'mlm_augmenter',
      pax_fiddle.Config(
        augmentations.MaskedLmDataAugmenter,
        vocab_size=self.lm_tpl.vocab_size,
        mask_token_id=self.mask_token_id,
      ),
    )

  def compute_predictions(self, input_batch: NestedMap) -> NestedMap:
    """Returns outputs of the network, augmented_labels and augmented_pos."""
    labels, paddings = input_batch.labels, input_batch.paddings
    if 'masked_ids' in input_batch and not self.force_mask_generation:
      masked_ids = input_batch.masked_ids
      masked_pos = input_batch.masked_pos
    else:
      masked_ids, masked_pos = self.mlm_augmenter(labels, paddings)
    predictions = self.lm(
      masked_ids,
      paddings,
      labels=NestedMap(class_ids=labels, class_weights=masked_pos),
      segment_ids=input_batch.segment_ids,
      segment_pos=input_batch.segment_pos,
    )
    predictions.augmented_labels = masked_ids
    predictions.augmented_pos = masked_pos
    return predictions

  def compute_loss(
    self, predictions: NestedMap, input_batch: NestedMap
  ) -> tuple[NestedMap, NestedMap]:
    """Returns metrics with total_loss, and the per-example output.

    Metrics are those of `LanguageModel`, over masked tokens, and num_tokens and
    num_seqs, the number of packed sequences.
    """
    labels = input_batch.labels
    is_right = predictions.per_example_argmax == labels
    metrics = xent_metrics.weighted_scalars(
      predictions, is_right, predictions.augmented_pos
    )
    accuracy = metrics.pop('fraction_of_correct_next_step_preds')
    metrics.fraction_of_correct_preds = accuracy
    metrics.aux_loss = (predictions.aux_loss, predictions.total_weight)
    unit_weight = jnp.ones(())
    num_tokens = jnp.sum(1.0 - input_batch.paddings.astype(jnp.float32))
    last_segments = jnp.max(input_batch.segment_ids, axis=1)
    metrics.num_tokens = (num_tokens, unit_weight)
    metrics.num_seqs = (jnp.sum(last_segments.astype(jnp.float32)), unit_weight)
    outputs = NestedMap(
      per_sequence_xent=predictions.per_sequence_xent,
      predicted_labels=predictions.per_example_argmax.astype(labels.dtype),
      augmented_labels=predictions.augmented_labels,
    )
    if 'activations' in predictions:
      outputs.activations = predictions.activations
    return metrics, outputs
