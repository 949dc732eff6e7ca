# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Models refuse to decode where their layers would do it wrongly."""

from __future__ import annotations

import jax
import pytest

from praxis import decoder_hparams
from praxis.layers import (
  activations,
  attentions,
  decode_states,
  multi_query_attention,
  ngrammer,
  transformers,
)
from tests.praxis.layers.models import decoding

AT_ONCE = {'max_decode_steps': 2, 'fprop_for_prefix': True}
FLAT = decoder_hparams.FlatBeamSearchHParams(**AT_ONCE, beam_size=2)
BEAMS = decoder_hparams.BeamSearchHParams(**AT_ONCE, beam_size=2)
GREEDY = decoder_hparams.GreedyDecoderHParams(**AT_ONCE)
TOKEN_BY_TOKEN = decoder_hparams.GreedyDecoderHParams(seqlen=8)


def trace(cfg, hparams):
  """Traces a model's decoding, without numbers."""
  layer = cfg.clone().set(decoder_tpl=hparams).Instantiate()
  batch = decoding.batch()

  def decode(key):
    return layer.apply(
      layer.init(key, batch),
      batch,
      method='decode',
      rngs=key,
      mutable=decoding.STATES,
    )

  jax.eval_shape(decode, jax.random.key(0))


def with_attention(cls=attentions.DotProductAttention, **fields):
  cfg = decoding.config()
  layer = cfg.lm_tpl.stacked_transformer_tpl.transformer_layer_params_tpl
  layer.tr_atten_tpl = cls.config(**fields)
  return cfg


def with_ngrams():
  cfg = decoding.config()
  cfg.lm_tpl.ngrammer_tpl = ngrammer.NgrammerStub.config(
    num_heads=2, dim_per_head=4
  )
  return cfg


def scanned():
  cfg = with_attention(dconv_qkv=True)
  block = cfg.lm_tpl.stacked_transformer_tpl.set(num_layers=1)
  cfg.lm_tpl.stacked_transformer_tpl = (
    transformers.StackedTransformerRepeated.config(block=block, x_times=2)
  )
  return cfg


@pytest.mark.parametrize(
  'cfg, message',
  [
    (
      with_attention(relative_bias_tpl=attentions.RelativeBias.config()),
      "'self_attention' must not depend .* got relative_bias_tpl",
    ),
    (scanned(), 'got dconv_qkv; use BeamSearchHParams'),
    (
      with_attention(attentions.DotProductAttentionXL, rel_pos_emb_dim=4),
      'got its distance of query and key',
    ),
    (
      with_attention(
        multi_query_attention.MultiQueryDotProductAttention,
        local_window_size=(2, 0),
      ),
      'got its window',
    ),
    (with_ngrams(), 'ngrammer_tpl must be None .* got NgrammerStub'),
  ],
  ids=['relative_bias', 'scanned dconv', 'xl', 'window', 'ngrams'],
)
def test_flat_beam_search_needs_positions_alone(cfg, message):
  with pytest.raises(ValueError, match=message):
    trace(cfg, FLAT)


def test_other_searches_do_not():
  trace(with_attention(dconv_qkv=True), BEAMS)
  trace(with_attention(use_rotary_position_emb=True), FLAT)


def test_state_spaces_read_prompts_token_by_token():
  cfg = decoding.config('ssm')
  with pytest.raises(ValueError, match='fprop_for_prefix must be False .* SSM'):
    trace(cfg, GREEDY)
  trace(cfg, TOKEN_BY_TOKEN)
  layer = cfg.lm_tpl.stacked_transformer_tpl.transformer_layer_params_tpl
  layer.ssm_tpl.continues_from_forward = True
  with pytest.raises(ValueError, match="continues_from_forward of 'ssm' must"):
    trace(cfg, TOKEN_BY_TOKEN)


def test_layers_that_say_nothing_may_decode():
  layer = activations.ReLU.config(name='relu').Instantiate()
  decode_states.check_decoding(layer, prefill=True, sequential=False)
