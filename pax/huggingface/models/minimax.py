# SPDX-License-Identifier: Apache-2.0
"""MiniMax-M2."""

from __future__ import annotations

from pax.huggingface.layers.mixture_of_experts import ExpertTensors
from pax.huggingface.layers.rotary_decoder import RotaryDecoder
from pax.huggingface.models import config_settings
from pax.huggingface.models.config_settings import Json


def read_minimax_m2(config: Json) -> RotaryDecoder:
  """Returns the settings of a MiniMax-M2.

  Raises:
    ValueError: A setting is not supported.
  """
  _check_settings(config)
  config = {
    'head_dim': 128,
    'num_key_value_heads': 8,
    'rope_theta': 5_000_000.0,
    'num_local_experts': 256,
    'num_experts_per_tok': 8,
    **config,
  }
  rotary_dim = config.get('rotary_dim')
  if rotary_dim is not None:
    share = rotary_dim / config['head_dim']
    config.setdefault('partial_rotary_factor', share)
  attention = config_settings.rotary_attention(
    config, has_partial_rotary=True, has_projection_norms=True
  )
  num_layers = config_settings.size(config, 'num_hidden_layers')
  return config_settings.rotary_decoder(
    config,
    config_settings.of_all_layers(config, attention),
    experts=config_settings.experts(
      # The biases of the choice balance experts.
      {**config, 'router_aux_loss_coef': 0.0},
      hidden_dims=config_settings.size(config, 'intermediate_size'),
      layers=tuple(range(num_layers)),
      normalize_gates=True,
      routing={'gate_function': 'sigmoid'},
      tensors=ExpertTensors(
        mixture='block_sparse_moe',
        gate='w1',
        up='w3',
        down='w2',
        choice_bias='e_score_correction_bias',
      ),
    ),
  )


def _check_settings(config: Json) -> None:
  """Checks settings that no released model has."""
  for name, value in (
    ('scoring_func', 'sigmoid'),
    ('use_qk_norm', True),
    ('use_routing_bias', True),
    ('shared_intermediate_size', 0),
    ('router_jitter_noise', 0.0),
  ):
    if config.get(name, value) != value:
      raise ValueError(
        f'{name} in config.json of a minimax_m2 must be {value!r}, got'
        f' {config[name]!r}; only the architecture of the released models has'
        ' layers in praxis'
      )
  kinds = config.get('attn_type_list') or ()
  if not all(kind == 1 for kind in kinds):
    raise ValueError(
      'attn_type_list in config.json of a minimax_m2 must have only 1, for'
      f' softmax attention, got {kinds}; the layers of MiniMax-01 with linear'
      ' attention are not supported'
    )
