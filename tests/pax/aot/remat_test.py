# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: deps=//pax/tasks:experiments
# bazel: deps=//tests/integration:experiments
"""Remat policies of a small model, compared by their traces."""

from __future__ import annotations

import jax
import pytest

from pax.aot import cli, remat
from pax.aot.report import text
from pax.runner.options import RunOptions
from pax.tools import abstract_experiment
from praxis.layers import checkpoint_policy

# A vocabulary that is small beside the layers.
SMALL = (
  'NUM_LAYERS=2', 'MODEL_DIMS=32', 'HIDDEN_DIMS=128', 'NUM_HEADS=4',
  'VOCAB_SIZE=16', 'MAX_SEQ_LEN=16',
)  # fmt: skip


def test_policies_trade_memory_for_flops(monkeypatch):
  # By night all are compared.
  few = [
    checkpoint_policy.AutodiffCheckpointType[name]
    for name in ('SAVE_NOTHING', 'SAVE_OUT_PROJ', 'SAVE_DOT_WITH_NO_BATCH_DIM')
  ]
  monkeypatch.setattr(remat, '_POLICIES', few)
  options = abstract_experiment.ExperimentOptions(
    exp='lm_cloud.LmCloudSpmdTest', set=SMALL
  )
  policies = remat.compare(options, 'cpu:1')
  by_name = {policy.name: policy for policy in policies}
  # Nothing recomputed is 3 of 4 parts of everything recomputed, or more: the
  # last matmul of a layer is not needed again.
  dots, nothing = by_name['SAVE_DOT_WITH_NO_BATCH_DIM'], by_name['SAVE_NOTHING']
  assert 3 / 4 < dots.flops / nothing.flops < 0.95
  assert dots.num_bytes > nothing.num_bytes
  assert policies[0].flops == min(policy.flops for policy in policies)
  # The memory of a CPU is unknown.
  assert policies[0].fits is None


@pytest.mark.nightly
def test_a_kernel_that_runs_again_counts():
  # Shapes that the attention kernel of TPUs takes without padding.
  num_layers, num_heads, length, head_dim = 2, 2, 128, 128
  options = abstract_experiment.ExperimentOptions(
    exp='lm_cloud.LmCloudSpmdTest',
    set=(
      *SMALL, f'NUM_LAYERS={num_layers}', f'NUM_HEADS={num_heads}',
      f'DIMS_PER_HEAD={head_dim}', f'MODEL_DIMS={num_heads * head_dim}',
      f'MAX_SEQ_LEN={length}', 'PERCORE_BATCH_SIZE=1',
    ),
  )  # fmt: skip
  policies = {p.name: p for p in remat.compare(options, 'v4-8')}
  saved = policies['SAVE_DOT_EXCEPT_LOGITS']
  # It saves the products with weights, not the results of the kernel.
  again = policies['SAVE_DOT_WITH_NO_BATCH_DIM']
  num_rows = jax.local_device_count()
  logits = attended = 2 * length * length * head_dim
  kernel = num_layers * num_rows * num_heads * (logits + attended)
  assert again.flops - saved.flops == kernel
  assert saved.fits


def test_the_fitting_policy_with_the_fewest_flops_is_recommended():
  def policy(name, flops, fits):
    return remat.RematPolicy(name=name, num_bytes=1.0, flops=flops, fits=fits)

  policies = [policy('A', 1.0, False), policy('B', 2.0, True)]
  assert text.remat_recommendation(policies) == (
    'recommended: --set CHECKPOINT_POLICY=AutodiffCheckpointType.B'
  )


def test_no_policy_is_recommended_to_layers_that_are_not_a_scan():
  policies = [
    remat.RematPolicy(name=name, num_bytes=1.0, flops=1.0, fits=True)
    for name in 'AB'
  ]
  recommendation = text.remat_recommendation(policies)
  assert 'USE_REPEATED_LAYER=True' in recommendation
  assert 'CHECKPOINT_POLICY' not in recommendation


def test_an_experiment_without_the_constant_is_an_error():
  options = RunOptions(
    exp='tests.integration.experiments.TinySpmd',
    mode='aot',
    topology='cpu:1',
    check_level=6,
    aot_remat=True,
    set=('ICI_MESH_SHAPE=[1,1,1]',),
  )
  with pytest.raises(
    ValueError, match='needs .* constant CHECKPOINT_POLICY, got TinySpmd; leave'
  ):
    cli.run(options)
