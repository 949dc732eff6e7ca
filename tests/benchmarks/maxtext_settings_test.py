# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The table by which experiments of c4_multislice are run in MaxText."""

from __future__ import annotations

import pytest

from benchmarks import maxtext_settings
from pax.tasks.lm.params import c4, c4_multislice, huggingface

_22B, _25B = (48, 6144, 24, 256, 1024, 16), (24, 9216, 24, 384, 1024, 10)
_1B, _32B = (16, 2048, 8, 256, 1024, 16), (40, 8192, 32, 256, 2048, 2)
# Layers, width, heads, dimensions per head, length, rows per device; then what
# splits weights and the batch within a slice, and the slices.
_TABLE = {
  'C4Spmd22BAdam1xv4_128': (_22B, 64, 1),
  'C4Spmd22BAdam2xv4_128': (_22B, 64, 2),
  'C4Spmd22BAdam4xv4_128': (_22B, 64, 4),
  'C4Spmd22BAdam1xv4_128LimitSteps': (_22B, 64, 1),
  'C4Spmd22BAdam2xv4_128LimitSteps': (_22B, 64, 2),
  'C4Spmd22BAdam4xv4_128LimitSteps': (_22B, 64, 4),
  'C4Spmd22BAdam1xv4_384': (_25B, 192, 1),
  'C4Spmd22BAdam2xv4_384': (_25B, 192, 2),
  'C4Spmd22BAdam1xv4_8': (_1B, 4, 1),
  'C4Spmd22BAdam2xv4_8': (_1B, 4, 2),
  'C4Spmd22BAdam4xv4_8': (_1B, 4, 4),
  'C4Spmd22BAdam1xv4_8LimitSteps': (_1B, 4, 1),
  'C4Spmd22BAdam2xv4_8LimitSteps': (_1B, 4, 2),
  'C4Spmd22BAdam4xv4_8LimitSteps': (_1B, 4, 4),
  'C4Spmd32BAdam1xv5_256': (_32B, 128, 1),
  'C4Spmd32BAdam2xv5_256': (_32B, 128, 2),
}


@pytest.mark.parametrize('name', _TABLE)
def test_table(name):
  (layers, dims, heads, per_head, length, rows), fsdp, slices = _TABLE[name]
  assert maxtext_settings.settings(getattr(c4_multislice, name)()) == {
    'base_emb_dim': dims,
    'base_num_decoder_layers': layers,
    'base_mlp_dim': 4 * dims,
    'base_num_query_heads': heads,
    'base_num_kv_heads': heads,
    'head_dim': per_head,
    'mlp_activations': ['gelu'],
    'vocab_size': 32768,
    'logits_via_embedding': True,
    'max_target_length': length,
    'per_device_batch_size': rows,
    'dtype': 'bfloat16',
    'scan_layers': True,
    'remat_policy': 'full',
    'num_slices': slices,
    'ici_data_parallelism': 1,
    'ici_fsdp_parallelism': fsdp,
    'ici_tensor_parallelism': 1,
    'dcn_data_parallelism': slices,
    'dcn_fsdp_parallelism': 1,
    'dcn_tensor_parallelism': 1,
  }


def test_the_base_has_a_tensor_axis():
  found = maxtext_settings.settings(c4_multislice.C4Spmd22BAdamMaxText())
  assert found['ici_fsdp_parallelism'] == 4
  assert found['ici_tensor_parallelism'] == 2


def test_what_max_text_has_no_word_for():
  with pytest.raises(ValueError, match=r'ICI_MESH_SHAPE .* \[2, 1, 2, 2\]'):
    maxtext_settings.settings(c4.C4SpmdPipelineAdam())
  with pytest.raises(ValueError, match='got SAVE_DOT_FOR_MLPERF_200B'):
    maxtext_settings.settings(c4.C4SpmdAdam())


def test_mixtures_of_experts():
  class Sharded(huggingface.Qwen3Moe):
    ICI_MESH_SHAPE = [1, 4, 8, 1]
    USE_EXPERT_PARALLEL = True
    BATCH_SIZE = 64

  settings = maxtext_settings.mixture_settings(Sharded())
  assert settings['model_name'] == 'qwen3-30b-a3b'
  assert settings['per_device_batch_size'] == 2
  assert settings['ici_fsdp_parallelism'] == 4
  assert settings['ici_expert_parallelism'] == 8
  assert settings['load_balance_loss_weight'] == 0.001
  with pytest.raises(ValueError, match='--exp .* got a qwen3$'):
    maxtext_settings.mixture_settings(huggingface.Qwen3())
  with pytest.raises(ValueError, match='axes .*data_expert.* got'):
    Sharded.ICI_MESH_SHAPE = [1, 4, 8]
    maxtext_settings.mixture_settings(Sharded())


def test_no_slices_are_one():
  class OneSlice(c4_multislice.C4Spmd22BAdamMaxText):
    DCN_MESH_SHAPE = None

  assert maxtext_settings.settings(OneSlice())['num_slices'] == 1
