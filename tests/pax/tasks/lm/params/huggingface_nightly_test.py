# SPDX-License-Identifier: Apache-2.0
"""Repeated layers of models of Hugging Face, in all modes of training."""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: size=large
# bazel: tags=nightly
from __future__ import annotations

import pytest

from tests.pax.huggingface import job_runs

_EXPERTS = [
  '--set=USE_EXPERT_PARALLEL=True',
  '--set=ICI_MESH_SHAPE=[1,1,2,2]',
  '--set=BATCH_SIZE=4',
]


@pytest.mark.parametrize(
  'exp, words',
  [
    # Two layers of different attention windows are one block; fsdp and tensor
    # parallelism.
    ('Gemma2', ['--set=ICI_MESH_SHAPE=[1,2,2]', '--set=BATCH_SIZE=4']),
    # A single head of keys, and values that are keys.
    ('Gemma4', ['--set=ICI_MESH_SHAPE=[1,2,2]', '--set=BATCH_SIZE=4']),
    ('Gemma4Moe', _EXPERTS),
    ('Llama3', ['--set=ICI_MESH_SHAPE=[1,4,2]', '--set=BATCH_SIZE=4']),
    ('Mixtral', _EXPERTS),
    ('GptOss', _EXPERTS),
    # Layers and experts are axes of one variable; the first layer has its own.
    ('DeepSeekV3', [*_EXPERTS, '--set=CHOICE_BIAS_UPDATE_RATE=0.0']),
    # Blocks of a Gated DeltaNet and attention.
    ('Qwen3Next', _EXPERTS),
    ('Qwen3Next', ['--set=ICI_MESH_SHAPE=[1,2,2]', '--set=BATCH_SIZE=4']),
    ('Qwen3_5', ['--set=ICI_MESH_SHAPE=[1,2,2]', '--set=BATCH_SIZE=4']),
    ('Qwen3_5Moe', _EXPERTS),
    # Blocks of chunks without experts, and experts without positions.
    ('Llama4', _EXPERTS),
    # Norms of all heads, which the mesh shards.
    ('Olmo2', ['--set=ICI_MESH_SHAPE=[1,2,2]', '--set=BATCH_SIZE=4']),
    ('Phi3', ['--set=ICI_MESH_SHAPE=[1,2,2]', '--set=BATCH_SIZE=4']),
    ('SmolLM3', ['--set=ICI_MESH_SHAPE=[1,4,2]', '--set=BATCH_SIZE=4']),
    ('Glm4', ['--set=ICI_MESH_SHAPE=[1,4,2]', '--set=BATCH_SIZE=4']),
    # Blocks of Mamba-2 and attention.
    ('Granite4', ['--set=ICI_MESH_SHAPE=[1,2,2]', '--set=BATCH_SIZE=4']),
    ('Granite4Moe', _EXPERTS),
    ('Gpt2', ['--set=ICI_MESH_SHAPE=None', '--set=BATCH_SIZE=8']),
    (
      'Qwen3',
      [
        '--set=ICI_MESH_SHAPE=None',
        '--set=BATCH_SIZE=8',
        '--pmap_use_tensorstore',
      ],
    ),
  ],
)
def test_repeated_layers_have_the_loss_of_the_model_and_export_it(
  exp, words, tmp_path, capfd
):
  references = {
    'DeepSeekV3': 'deepseek_v3',
    'Gemma4Moe': 'gemma4_moe',
    'GptOss': 'gpt_oss',
    'Granite4': 'granite_hybrid',
    'Granite4Moe': 'granite_hybrid_moe',
    'Qwen3Next': 'qwen3_next',
    'Qwen3_5Moe': 'qwen3_5_moe',
  }
  reference = references.get(exp, exp.lower())
  job_runs.check_repeated_layers(exp, reference, tmp_path, words, capfd)
