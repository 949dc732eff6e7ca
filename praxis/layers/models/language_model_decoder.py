# SPDX-License-Identifier: Apache-2.0
"""Decoding of a decoder-only network by sampling and beam searches."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from praxis import base_layer
from praxis.decoding import (
  beam_search,
  flat_beam_search,
  model_fns,
  sampling,
  sampling_options,
  streaming,
)
from praxis.decoding.hparams import (
  BeamSearchHParams,
  DecoderHParams,
  FlatBeamSearchHParams,
  SampleDecoderHParams,
  to_sampling,
)
from praxis.nested_map import NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelDecoder:
  """Decodes prepared prompts with a bound network."""

  # Bound, with a mutable DECODE_CACHE.
  lm: base_layer.BaseLayer
  hparams: DecoderHParams
  # The prompts; see `decode_prompts.prepare_decode_data`.
  data: NestedMap

  def prefill(self) -> NestedMap:
    """Runs the network on the prompts, which fills its decode states."""
    return _prefill(self.lm, self.data)

  def decode(
    self,
    batch: NestedMap,
    result_callback: streaming.StreamingResultCallback | None = None,
    return_result_for_suffix_score: bool = False,
  ) -> NestedMap:
    """Returns the result of the algorithm that the class of hparams selects.

    Args:
      batch: may have per-example options; see `LanguageModel.decode`.
      result_callback: streams sampled tokens to the host.
      return_result_for_suffix_score: whether the result of sampling is the
        final state of the decode loop.
    """
    if isinstance(self.hparams, FlatBeamSearchHParams):
      return self._flat_beam_search(self.hparams, batch)
    if isinstance(self.hparams, BeamSearchHParams):
      return self._beam_search(self.hparams)
    return self._sample(batch, result_callback, return_result_for_suffix_score)

  def _sample(
    self,
    batch: NestedMap,
    result_callback: streaming.StreamingResultCallback | None,
    return_result_for_suffix_score: bool,
  ) -> NestedMap:
    hparams, data = to_sampling(self.hparams), self.data
    if hparams.vanilla_sample_decode and hparams.num_samples != 1:
      raise ValueError(
        'num_samples must be 1 with vanilla_sample_decode=True, got '
        f'{hparams.num_samples}'
      )
    result = sampling.decode(
      self.lm,
      self._model_fns(),
      sampling_options.build_next_token_sampler(hparams, batch),
      sampling.Prefix(
        ids=self._prefix_ids(hparams),
        lengths=data.prefix_lengths,
        original_lengths=data.original_lengths,
        num_columns=data.input_ids.shape[1],
      ),
      (hparams.num_samples, data.seqlen),
      sampling_options.from_batch(
        hparams,
        batch,
        result_callback=result_callback,
        return_result_for_suffix_score=return_result_for_suffix_score,
        model_var_pspecs=self._weight_pspecs(),
      ),
    )
    if hparams.vanilla_sample_decode:
      return jax.tree.map(lambda x: x[:, 0], result)
    return result

  def _prefix_ids(self, hparams: SampleDecoderHParams) -> Int[Array, 'B P']:
    """Returns the prompts; prefilled ones with room for the first steps."""
    ids = self.data.input_ids
    if not hparams.fprop_for_prefix or hparams.vanilla_sample_decode:
      return ids
    return jnp.pad(ids, [(0, 0), (0, hparams.decode_steps()[0])])

  def _beam_search(self, hparams: BeamSearchHParams) -> NestedMap:
    if not hparams.fprop_for_prefix:
      raise ValueError(
        'a beam search of a language model needs fprop_for_prefix=True, got '
        'False'
      )
    return self._run_search(
      beam_search.BeamSearch(
        fns=self._model_fns(),
        hparams=hparams,
        prefix_ids=self.data.input_ids,
        prefix_lengths=self.data.prefix_lengths,
      )
    )

  def _flat_beam_search(
    self, hparams: FlatBeamSearchHParams, batch: NestedMap
  ) -> NestedMap:
    if hparams.lazy_prefix_broadcast:
      raise ValueError(
        'flat beam search shares the cache of the prompt already; set '
        'lazy_prefix_broadcast=False'
      )
    fns = dataclasses.replace(
      self._model_fns(), extend_step=self._extend_flat_step
    )
    if not hparams.fprop_for_prefix:
      return self._run_search(
        flat_beam_search.FlatBeamSearchFromLastToken.create(
          fns, hparams, batch.ids, self.data.seqlen
        )
      )
    return self._run_search(
      flat_beam_search.FlatBeamSearch(
        fns=fns,
        hparams=hparams,
        prefix_ids=self.data.input_ids,
        prefix_lengths=self.data.prefix_lengths,
      )
    )

  def _extend_flat_step(
    self,
    lm: base_layer.BaseLayer,
    ids: Array,
    pos: Array | None,
    state: NestedMap,
  ) -> Array:
    """Returns the logits of the hypotheses, each under its attention mask."""
    if 'atten_mask' in inspect.signature(lm.extend_step).parameters:
      mask = state.atten_mask
      return lm.extend_step(ids, segment_pos=pos, atten_mask=mask).logits
    # A network of the user without attention has neither masks nor positions.
    return lm.extend_step(ids, segment_pos=None).logits

  def _run_search(self, search: beam_search.SearchAlgorithm) -> NestedMap:
    result = beam_search.run_search(
      self.lm,
      search,
      decode_loop_mesh_axes_transpose=(
        self.hparams.decode_loop_mesh_axes_transpose
      ),
      model_var_pspecs=self._weight_pspecs(),
    )
    if 'prefix_lengths' in result:
      result.original_lengths = jnp.broadcast_to(
        self.data.original_lengths[:, jnp.newaxis], result.prefix_lengths.shape
      )
    return result

  def _model_fns(self) -> model_fns.ModelFns:
    lazy_broadcast_prefix = None
    if self.hparams.lazy_prefix_broadcast:
      lazy_broadcast_prefix = lambda lm, num_samples, length: (
        lm.lazy_broadcast_prefix(num_samples, length)
      )
    return model_fns.ModelFns(
      extend_step=lambda lm, ids, pos, state: (
        lm.extend_step(ids, segment_pos=pos).logits
      ),
      transform_state=lambda lm, fn: lm.transform_decode_state(fn),
      lazy_broadcast_prefix=lazy_broadcast_prefix,
      fprop=lambda lm, ids, paddings: _prefill(lm, self.data),
    )

  def _weight_pspecs(self) -> Any:
    """Returns the weights' PartitionSpecs, if the decode loop reshards them."""
    if self.hparams.decode_loop_mesh_axes_transpose is None:
      return None
    data = self.data
    abstract_variables = self.lm.abstract_init_with_metadata(
      data.fprop_input_ids,
      data.fprop_input_paddings,
      segment_ids=data.fprop_segment_ids,
      segment_pos=data.fprop_segment_pos,
      causal_attention_mask=data.causal_attention_mask,
      **data.extra_input_kwargs,
    )
    return base_layer.var_partition_specs(
      abstract_variables, self.lm.mesh_shape, self.lm.mesh_axis_names
    )


def _prefill(lm: base_layer.BaseLayer, data: NestedMap) -> NestedMap:
  return lm(
    data.fprop_input_ids,
    data.fprop_input_paddings,
    segment_ids=data.fprop_segment_ids,
    segment_pos=data.fprop_segment_pos,
    start_time_step=data.start_time_step,
    causal_attention_mask=data.causal_attention_mask,
    **data.extra_input_kwargs,
  )
