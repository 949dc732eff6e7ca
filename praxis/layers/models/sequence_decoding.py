# SPDX-License-Identifier: Apache-2.0
"""How a sequence model generates targets, token by token from column 0."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from praxis import base_model
from praxis.decoding import alignment, beams, loop, requests, sampling
from praxis.decoding.hparams import (
  BeamSearchHParams,
  DecoderHParams,
  FlatBeamSearchHParams,
)
from praxis.layers import decode_states
from praxis.layers.models import decode_output
from praxis.nested_map import NestedMap


class SequenceDecoding(base_model.BaseModel):
  """The decoding of models whose network is like TransformerEncoderDecoder."""

  def decode(self, input_batch: NestedMap) -> base_model.DecodeOut:
    """Generates targets of the batch's sources, as `decoder_tpl` says.

    Call it where DECODE_CACHE is mutable. Sources are src.ids and src.paddings.
    A target begins with the first prefix_lengths of tgt.ids, if the batch has
    them, else with the first.

    Returns:
      ({'num_decoded'}, what the algorithm returns and the batch, {}).
    """
    return self.decode_with_params(input_batch, self.decoder_tpl)

  def decode_with_params(
    self, input_batch: NestedMap, decoder_params: DecoderHParams
  ) -> base_model.DecodeOut:
    """As `decode`, by parameters other than the model's."""
    self._check(requests.checked(decoder_params))
    if isinstance(decoder_params, BeamSearchHParams):
      result = self._search(decoder_params, input_batch)
    else:
      result = self._sample(decoder_params, input_batch)
    metrics = requests.num_decoded(input_batch, input_batch.tgt.ids.shape[0])
    return metrics, NestedMap(**{**input_batch, **result}), NestedMap()

  def process_decode_out(
    self, input_obj: Any, decode_out: NestedMap
  ) -> base_model.ProcessDecodeOut:
    """Returns ({'decode_length'}, a (source, result) pair by example, {}).

    A result has source, decoded, target, ids, logprobs [N, T], decode_length,
    prefix (the source) and decoded_substr (what was decoded), and with several
    samples sampled, all their texts.
    """
    out = NestedMap(decode_out)
    for name in ('output_ids', 'decode_lengths', 'logprobs'):
      out[name] = np.asarray(out[name])
    sampled = None
    if out.output_ids.shape[1] > 1:
      sampled = decode_output.all_samples(input_obj, out, key='tgt')
    ids, lengths = out.output_ids[:, 0], out.decode_lengths[:, 0]
    decoded = input_obj.ids_to_strings(ids, lengths, key='tgt')
    sources, targets = (
      input_obj.ids_to_strings(
        np.asarray(out[side].ids),
        np.sum(1 - np.asarray(out[side].paddings, np.int32), axis=1),
        key=side,
      )
      for side in ('src', 'tgt')
    )
    pairs = []
    for row in decode_output.counting_rows(out):
      result = NestedMap(
        source=sources[row],
        decoded=decoded[row],
        target=targets[row],
        ids=ids[row],
        logprobs=out.logprobs[row],
        decode_length=lengths[row],
        prefix=sources[row],
        decoded_substr=decoded[row],
      )
      if sampled is not None:
        result.sampled = list(sampled[row])
      pairs.append((sources[row], result))
    length = np.average(lengths).astype(np.float32)
    metrics = NestedMap(decode_length=(length, np.float32(1.0)))
    return metrics, pairs, NestedMap()

  def _prepare_guidance_decode_data(self, decode_data: NestedMap) -> NestedMap:
    """Returns data of twice as many pairs: each, and then without condition.

    It has input_ids, input_paddings, target_ids, target_paddings and
    prefix_lengths; subclasses may add encoder_output.
    """
    raise NotImplementedError(
      f'{type(self).__name__} does not support guidance; define '
      '_prepare_guidance_decode_data, or set cf_guidance_scale=None'
    )

  def _check(self, decoder_params: DecoderHParams) -> None:
    if isinstance(decoder_params, FlatBeamSearchHParams):
      raise NotImplementedError(
        'a flat beam search is for models without an encoder; use '
        'BeamSearchHParams'
      )
    if decoder_params.seqlen <= 0:
      raise ValueError(
        f'Must set p.decoder_tpl.seqlen > 0, got {decoder_params.seqlen}; it '
        'is the length of targets'
      )
    if decoder_params.fprop_for_prefix or decoder_params.lazy_prefix_broadcast:
      raise ValueError(
        'a sequence model reads its targets token by token; set '
        'fprop_for_prefix=False and lazy_prefix_broadcast=False'
      )
    decode_states.check_decoding(self.model, prefill=False, sequential=True)

  def _sample(
    self, decoder_params: DecoderHParams, batch: NestedMap
  ) -> NestedMap:
    hparams = requests.as_sampling(decoder_params)
    lengths = batch.get('prefix_lengths')
    if lengths is None:
      lengths = jnp.zeros(batch.tgt.ids.shape[0], jnp.int32)
    data = NestedMap(
      input_ids=batch.src.ids,
      input_paddings=batch.src.paddings,
      target_ids=batch.tgt.ids,
      target_paddings=batch.tgt.paddings,
      prefix_lengths=lengths,
    )
    if hparams.cf_guidance_scale is not None:
      data = self._prepare_guidance_decode_data(data)
    return sampling.decode(
      self.model,
      _steps(data),
      requests.next_token_sampler(hparams, batch),
      sampling.Prefix(
        ids=data.target_ids,
        lengths=data.prefix_lengths,
        original_lengths=alignment.lengths_of(data.target_paddings),
      ),
      (hparams.num_samples, hparams.seqlen),
      requests.sampling_options(hparams, batch),
    )

  def _search(self, hparams: BeamSearchHParams, batch: NestedMap) -> NestedMap:
    data = NestedMap(
      input_ids=batch.src.ids,
      input_paddings=batch.src.paddings,
      target_ids=batch.tgt.ids,
    )
    # The first token is read, but is no part of the result.
    search = beams.Search(
      steps=_steps(data),
      hparams=hparams,
      prefix_ids=batch.tgt.ids[:, :1],
      prefix_lengths=jnp.zeros(batch.tgt.ids.shape[0], jnp.int32),
    )
    return beams.search(self.model, search)


def _steps(data: NestedMap) -> loop.Steps:
  """Returns the steps of a network that reads the data's sources."""

  def read(network: Any, ids: Array, paddings: Array) -> None:
    del ids, paddings
    first = data.target_ids[:, :1]
    target = {'targets': first, 'target_paddings': jnp.zeros(first.shape)}
    if 'encoder_output' in data:
      network.fprop_with_encoder_output(
        data.encoder_output, data.input_paddings, **target
      )
    else:
      network(data.input_ids, data.input_paddings, **target)

  return loop.Steps(
    extend_step=lambda network, ids, pos: network.extend_step(ids).logits,
    transform_state=lambda network, fn: network.transform_decode_state(fn),
    fprop=read,
  )
