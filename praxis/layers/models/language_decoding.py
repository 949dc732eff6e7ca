# SPDX-License-Identifier: Apache-2.0
"""How a language model reads the prompts of a batch and continues them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from praxis import base_layer, base_model
from praxis.decoding import (
  alignment,
  beams,
  flat_beams,
  loop,
  meshes,
  requests,
  sampling,
  streaming,
)
from praxis.decoding.hparams import (
  BeamSearchHParams,
  DecoderHParams,
  FlatBeamSearchHParams,
  SampleDecoderHParams,
)
from praxis.layers import decode_states
from praxis.layers.models import decode_output, prompts
from praxis.layers.transformer_models import LanguageModelType
from praxis.nested_map import NestedMap


class LanguageDecoding(base_model.BaseModel):
  """The decoding of models whose network, `lm`, is like a TransformerLm."""

  def decode(
    self,
    input_batch: NestedMap,
    result_callback: streaming.StreamingResultCallback | None = None,
    return_result_for_suffix_score: bool = False,
  ) -> base_model.DecodeOut:
    """Continues the texts of a batch, as `decoder_tpl` says.

    Call it where DECODE_CACHE is mutable. A text is the batch's first
    prefix_lengths ids, if it has them, else those that are no padding; of a
    prefix model, those of inputs_indicator. These fields of a batch decide for
    each example when samples are drawn: temperature, per_example_top_k,
    per_example_top_p, per_example_max_decode_steps, eos_id (stop sequences),
    gumbel_prng_key, cf_guidance_scale, num_per_token_logprobs,
    return_entropy_score and enforce_sample_constraints; see sampling.Options.

    Args:
      input_batch: the texts.
      result_callback: gets tokens while they are drawn.
      return_result_for_suffix_score: whether the result is the state of the
        loop, which scores of suffixes start from.

    Returns:
      ({'num_decoded'}, what the algorithm returns and the batch, {}).
    """
    return self.decode_with_params(
      self.decoder_tpl,
      input_batch,
      result_callback=result_callback,
      return_result_for_suffix_score=return_result_for_suffix_score,
    )

  def decode_with_params(
    self,
    decoder_params: DecoderHParams,
    input_batch: NestedMap,
    result_callback: streaming.StreamingResultCallback | None = None,
    return_result_for_suffix_score: bool = False,
  ) -> base_model.DecodeOut:
    """As `decode`, by parameters other than the model's."""
    decoder_params = requests.checked(decoder_params)
    data = self._prepare_decode_data(input_batch, decoder_params)
    pspecs = self._pspecs(data, decoder_params)
    if isinstance(decoder_params, FlatBeamSearchHParams):
      result = self._search_flat(decoder_params, data, pspecs)
    elif isinstance(decoder_params, BeamSearchHParams):
      result = self._search(decoder_params, data, pspecs)
    else:
      hparams = requests.as_sampling(decoder_params)
      options = requests.sampling_options(
        hparams,
        input_batch,
        result_callback=result_callback,
        return_result_for_suffix_score=return_result_for_suffix_score,
        model_var_pspecs=pspecs,
      )
      result = self._sample(hparams, data, options, input_batch)
    metrics = requests.num_decoded(input_batch, input_batch.ids.shape[0])
    return metrics, NestedMap(**{**input_batch, **result}), NestedMap()

  def process_decode_out(
    self, input_obj: Any, decode_out: NestedMap
  ) -> base_model.ProcessDecodeOut:
    """Returns the texts that `input_obj` makes of decoded ids, by prompt."""
    return decode_output.process(input_obj, decode_out)

  def _prepare_guidance_decode_data(self, decode_data: NestedMap) -> NestedMap:
    """Returns data of twice as many texts: each, and then without condition.

    Subclasses say what the latter is.
    """
    raise NotImplementedError(
      f'{type(self).__name__} does not support guidance; define '
      '_prepare_guidance_decode_data, or set cf_guidance_scale=None'
    )

  def _prepare_decode_data(
    self, input_batch: NestedMap, decoder_params: DecoderHParams
  ) -> NestedMap:
    """Returns the prompts, as the network reads them and as the loop does.

    seqlen is the number of columns of the result, input_ids [B, P] and
    prefix_lengths [B] are the prompts. The network reads fprop_input_ids,
    fprop_input_paddings, fprop_segment_ids, fprop_segment_pos and
    causal_attention_mask, and steps start at start_time_step.
    """
    if self.model_type == LanguageModelType.BIDIRECTIONAL:
      raise NotImplementedError('a bidirectional model cannot generate')
    decode_states.check_decoding(
      self.lm,
      prefill=decoder_params.fprop_for_prefix,
      sequential=not isinstance(decoder_params, FlatBeamSearchHParams),
    )
    lengths, causal = self._prompts(input_batch)
    columns = input_batch.ids.shape[1]
    data = NestedMap(
      seqlen=prompts.result_length(decoder_params, columns),
      prefix_lengths=lengths,
      original_lengths=alignment.lengths_of(self._paddings(input_batch)),
      extra_input_kwargs={},
    )
    if decoder_params.use_extra_input_kwargs:
      data.extra_input_kwargs = input_batch.get('extra_input_kwargs', {})
    if decoder_params.fprop_for_prefix:
      data.update(
        prompts.at_once(input_batch.ids, lengths, causal, self.fprop_dtype)
      )
    else:
      data.update(prompts.token_by_token(input_batch.ids, lengths, causal))
    if getattr(decoder_params, 'cf_guidance_scale', None) is not None:
      data = self._prepare_guidance_decode_data(data)
    return data

  def _prompts(self, batch: NestedMap) -> tuple[Int[Array, 'B'], Array | None]:
    """Returns lengths, and for a prefix model what only later tokens see."""
    indicator = None
    if self.model_type == LanguageModelType.PREFIX:
      indicator = batch.get('inputs_indicator')
      if indicator is None and 'prefix_lengths' not in batch:
        raise ValueError(
          "the batch of a prefix model needs 'inputs_indicator' or "
          f"'prefix_lengths', got {sorted(batch)}"
        )
    if 'prefix_lengths' in batch:
      lengths = batch.prefix_lengths
    elif indicator is not None:
      lengths = jnp.sum(indicator.astype(jnp.int32), axis=1)
    else:
      lengths = alignment.lengths_of(self._paddings(batch))
    # An empty text is read as one token.
    lengths = jnp.maximum(lengths.astype(jnp.int32), 1)
    if self.model_type != LanguageModelType.PREFIX:
      return lengths, None
    if indicator is None:
      indicator = jnp.arange(batch.ids.shape[1]) < lengths[:, jnp.newaxis]
    return lengths, 1 - indicator.astype(jnp.int32)

  def _read(self, lm: Any, data: NestedMap) -> Any:
    """Runs the network on the prompts, which leaves its decode states."""
    return lm(
      data.fprop_input_ids,
      data.fprop_input_paddings,
      segment_ids=data.fprop_segment_ids,
      segment_pos=data.fprop_segment_pos,
      start_time_step=data.start_time_step,
      causal_attention_mask=data.causal_attention_mask,
      **data.extra_input_kwargs,
    )

  def _steps(
    self, data: NestedMap, decoder_params: DecoderHParams
  ) -> loop.Steps:
    def broadcast(lm: Any, num_suffix_samples: int, length: int) -> None:
      lm.lazy_broadcast_prefix(num_suffix_samples, length)

    return loop.Steps(
      extend_step=lambda lm, ids, pos: (
        lm.extend_step(ids, segment_pos=pos).logits
      ),
      transform_state=lambda lm, fn: lm.transform_decode_state(fn),
      lazy_broadcast_prefix=(
        broadcast if decoder_params.lazy_prefix_broadcast else None
      ),
      fprop=lambda lm, ids, paddings: self._read(lm, data),
    )

  def _sample(
    self,
    hparams: SampleDecoderHParams,
    data: NestedMap,
    options: sampling.Options,
    batch: NestedMap,
  ) -> NestedMap:
    result = sampling.decode(
      self.lm,
      self._steps(data, hparams),
      requests.next_token_sampler(hparams, batch),
      sampling.Prefix(
        ids=data.input_ids,
        lengths=data.prefix_lengths,
        original_lengths=data.original_lengths,
      ),
      (hparams.num_samples, data.seqlen),
      options,
    )
    if not hparams.vanilla_sample_decode:
      return result
    if hparams.num_samples != 1:
      raise ValueError(
        'num_samples must be 1 with vanilla_sample_decode=True, got '
        f'{hparams.num_samples}'
      )
    return jax.tree.map(lambda x: x[:, 0], result)

  def _search(
    self, hparams: BeamSearchHParams, data: NestedMap, pspecs: Any
  ) -> NestedMap:
    _require_at_once(hparams)
    search = beams.Search(
      steps=self._steps(data, hparams),
      hparams=hparams,
      prefix_ids=data.input_ids,
      prefix_lengths=data.prefix_lengths,
    )
    result = beams.search(
      self.lm,
      search,
      decode_loop_mesh_axes_transpose=hparams.decode_loop_mesh_axes_transpose,
      model_var_pspecs=pspecs,
    )
    return _with_original_lengths(result, data)

  def _search_flat(
    self, hparams: FlatBeamSearchHParams, data: NestedMap, pspecs: Any
  ) -> NestedMap:
    _require_at_once(hparams)
    if hparams.lazy_prefix_broadcast:
      raise ValueError(
        'a flat beam search shares the prompt by itself; set '
        'lazy_prefix_broadcast=False'
      )
    steps = loop.Steps(
      extend_step=lambda lm, ids, pos, state: (
        lm.extend_step(ids, segment_pos=pos, atten_mask=state.atten_mask).logits
      ),
      transform_state=lambda lm, fn: lm.transform_decode_state(fn),
    )
    search = flat_beams.FlatSearch(
      steps=steps,
      hparams=hparams,
      prefix_ids=data.input_ids,
      prefix_lengths=data.prefix_lengths,
    )
    self._read(self.lm, data)
    axes = hparams.decode_loop_mesh_axes_transpose
    lm = meshes.maybe_reshard_mdl_for_decode(
      self.lm, axes, pspecs, steps.transform
    )
    with meshes.maybe_decode_mesh_transpose(lm, axes):
      search.prepare_states(lm)
      result = search.result(flat_beams.run(lm, search))
      if hparams.process_result_fn is not None:
        result = hparams.process_result_fn(lm, result)
    return _with_original_lengths(result, data)

  def _pspecs(self, data: NestedMap, decoder_params: DecoderHParams) -> Any:
    """Returns how weights are sharded, if the loop shards them otherwise."""
    if decoder_params.decode_loop_mesh_axes_transpose is None:
      return None
    declared = self.lm.abstract_init_with_metadata(
      data.fprop_input_ids,
      data.fprop_input_paddings,
      segment_ids=data.fprop_segment_ids,
      segment_pos=data.fprop_segment_pos,
      causal_attention_mask=data.causal_attention_mask,
      **data.extra_input_kwargs,
    )
    return base_layer.var_partition_specs(
      declared, self.lm.mesh_shape, self.lm.mesh_axis_names
    )


def _require_at_once(hparams: BeamSearchHParams) -> None:
  if not hparams.fprop_for_prefix:
    raise ValueError(
      'a beam search of a language model reads its prompts at once, got '
      'fprop_for_prefix=False; set it to True'
    )


def _with_original_lengths(result: NestedMap, data: NestedMap) -> NestedMap:
  shape = result.prefix_lengths.shape
  result.original_lengths = jnp.broadcast_to(
    data.original_lengths[:, jnp.newaxis], shape
  )
  return result
