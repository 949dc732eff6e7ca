# SPDX-License-Identifier: Apache-2.0
"""Decoding of an encoder-decoder network by sampling and beam search."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array

from praxis import base_layer, py_utils
from praxis.decoding import (
  beam_search,
  model_fns,
  sampling,
  sampling_options,
)
from praxis.decoding.hparams import (
  BeamSearchHParams,
  DecoderHParams,
  FlatBeamSearchHParams,
  to_sampling,
)
from praxis.layers import decode_states
from praxis.nested_map import NestedMap


def prepare_decode_data(batch: NestedMap) -> NestedMap:
  """Returns the sources, and the targets whose prefix is the prompt.

  Returns:
    input_ids and input_paddings [B, S], target_ids and target_paddings [B, T],
    prefix_lengths [B] (0 unless in the batch).
  """
  prefix_lengths = batch.get('prefix_lengths')
  if prefix_lengths is None:
    prefix_lengths = jnp.zeros(batch.tgt.ids.shape[0], jnp.int32)
  return NestedMap(
    input_ids=batch.src.ids,
    input_paddings=batch.src.paddings,
    target_ids=batch.tgt.ids,
    target_paddings=batch.tgt.paddings,
    prefix_lengths=prefix_lengths,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceModelDecoder:
  """Decodes targets token by token from column 0 with a bound network."""

  # The bound SequenceModel, with a mutable DECODE_CACHE: samples are drawn with
  # its keys, not with those of its network.
  model: base_layer.BaseLayer
  hparams: DecoderHParams
  # See `prepare_decode_data`; encoder_output replaces a run of the encoder.
  data: NestedMap

  def __post_init__(self) -> None:
    if isinstance(self.hparams, FlatBeamSearchHParams):
      raise NotImplementedError(
        'a flat beam search is for models without an encoder; use '
        'BeamSearchHParams'
      )
    if self.hparams.seqlen <= 0:
      raise ValueError(
        f'Must set p.decoder_tpl.seqlen > 0, got {self.hparams.seqlen}; it '
        'is the length of targets'
      )
    if self.hparams.fprop_for_prefix or self.hparams.lazy_prefix_broadcast:
      raise ValueError(
        'a sequence model reads its targets token by token; set '
        'fprop_for_prefix=False and lazy_prefix_broadcast=False'
      )
    decode_states.check_decoding(
      self.model.model, prefill=False, sequential=True
    )

  def decode(self, batch: NestedMap) -> NestedMap:
    """Returns the result of the algorithm that the class of hparams selects.

    Args:
      batch: may have per-example options; see `LanguageModel.decode`.
    """
    if isinstance(self.hparams, BeamSearchHParams):
      return self._beam_search(self.hparams)
    hparams, data = to_sampling(self.hparams), self.data
    return sampling.decode(
      self.model,
      self._model_fns(),
      sampling_options.build_next_token_sampler(hparams, batch),
      sampling.Prefix(
        ids=data.target_ids,
        lengths=data.prefix_lengths,
        original_lengths=py_utils.sequence_lengths(data.target_paddings),
        num_columns=data.target_ids.shape[1],
      ),
      (hparams.num_samples, hparams.seqlen),
      sampling_options.from_batch(hparams, batch),
    )

  def _beam_search(self, hparams: BeamSearchHParams) -> NestedMap:
    # The decode loop reads the first token, but the result does not include it.
    search = beam_search.BeamSearch(
      fns=self._model_fns(),
      hparams=hparams,
      prefix_ids=self.data.target_ids[:, :1],
      prefix_lengths=jnp.zeros(self.data.target_ids.shape[0], jnp.int32),
    )
    return beam_search.run_search(self.model, search)

  def _model_fns(self) -> model_fns.ModelFns:
    return model_fns.ModelFns(
      extend_step=lambda model, ids, pos, state: (
        model.model.extend_step(ids).logits
      ),
      transform_state=lambda model, fn: model.model.transform_decode_state(fn),
      fprop=self._prefill,
    )

  def _prefill(
    self, model: base_layer.BaseLayer, ids: Array, paddings: Array
  ) -> None:
    """Encodes the sources, and creates the decoder's states."""
    del ids, paddings
    data, network = self.data, model.model
    first_ids = data.target_ids[:, :1]
    targets = {
      'targets': first_ids,
      'target_paddings': jnp.zeros(first_ids.shape),
    }
    if 'encoder_output' in data:
      network.fprop_with_encoder_output(
        data.encoder_output, data.input_paddings, **targets
      )
    else:
      network(data.input_ids, data.input_paddings, **targets)
