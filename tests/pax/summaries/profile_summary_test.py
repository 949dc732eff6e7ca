# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Summaries of traces: by hand for accelerators, and of a real trace."""

from __future__ import annotations

import re
import types

import jax
import jax.numpy as jnp
import pytest

from pax.summaries import profile_summary


def _event(name, start, end, **stats):
  return types.SimpleNamespace(
    name=name, start_ns=start, duration_ns=end - start, stats=stats.items()
  )


def _profile(**events):
  """A trace with a plane, a line and events for each argument."""
  planes = []
  for name, line_events in events.items():
    plane, _, line = name.partition('__')
    lines = [types.SimpleNamespace(name=line, events=line_events)]
    planes.append(
      types.SimpleNamespace(name=plane.replace('_', ':'), lines=lines)
    )
  return types.SimpleNamespace(planes=planes)


_LOOP = [
  _event('input wait', 90, 100),
  _event('train', 100, 120, step_num=1),
  _event('input wait', 120, 160),
  _event('train', 160, 190, step_num=2),
  # The host's record of what it launches.
  _event('launch', 0, 1000, hlo_op='while.1'),
]


def test_streams_of_a_gpu_overlap():
  streams = [
    _event('kernel', 110, 140, hlo_op='gemm.1', hlo_module='jit_step'),
    _event('nccl', 130, 150, hlo_op='all-reduce.2', hlo_module='jit_step'),
    _event('graph_kernel', 180, 200),
  ]
  summary = profile_summary.summarize(
    _profile(host=_LOOP, **{'/device_GPU_0__Stream #1': streams})
  )
  assert (summary.num_steps, summary.num_devices) == (2, 1)
  # 100 to 200: busy 110-150 and 180-200, waiting for a batch 150-160.
  assert summary.seconds == pytest.approx(100e-9)
  assert summary.busy == pytest.approx(0.6)
  assert summary.input_wait == pytest.approx(0.1)
  assert summary.idle == pytest.approx(0.3)
  seconds = {o.name: o.seconds for o in summary.operations}
  assert seconds == pytest.approx(
    {'gemm.1': 30e-9, 'all-reduce.2': 20e-9, 'graph_kernel': 20e-9}
  )


def test_evaluation_between_steps_is_left_out():
  operations = [
    _event('kernel', 110, 140, hlo_op='gemm.1', hlo_module='jit_step'),
    _event('kernel', 150, 1100, hlo_op='gemm.1', hlo_module='jit_eval'),
    _event('kernel', 1160, 1190, hlo_op='gemm.1', hlo_module='jit_step'),
  ]
  loop = [
    _event('train', 100, 120, step_num=1),
    _event('pause', 145, 1145),
    _event('input wait', 1145, 1155),
    _event('train', 1155, 1160, step_num=2),
  ]
  summary = profile_summary.summarize(
    _profile(host=loop, **{'/device_GPU_0__Stream #1': operations})
  )
  # 100 to 145 and 1145 to 1190.
  assert summary.seconds == pytest.approx(90e-9)
  assert summary.busy == pytest.approx(60 / 90)
  assert summary.input_wait == pytest.approx(10 / 90)
  (gemm,) = summary.operations
  assert (gemm.module, gemm.count) == ('jit_step', 2)
  assert gemm.seconds == pytest.approx(60e-9)


def test_operations_of_other_programs_have_no_path_in_the_model():
  hlo = """HloModule jit_step, is_scheduled=true
ENTRY %main (x: f32[]) -> f32[] {
  ROOT %add.1 = f32[] add(%x, %x), metadata={op_name="jit(step)/layer/add"}
}
"""
  operations = [
    _event('', 110, 140, hlo_op='add.1', hlo_module='jit_step'),
    _event('', 150, 160, hlo_op='add.1', hlo_module='jit_put'),
  ]
  summary = profile_summary.summarize(
    _profile(host__python=_LOOP, host__threads=operations)
  )
  page = profile_summary.to_markdown(
    summary, None, profile_summary.op_names(hlo)
  )
  assert '| add.1 | jit_step | jit(step)/layer/add |' in page
  assert '| add.1 | jit_put |  |' in page


def test_mosaic_kernels_have_metadata_of_several_lines():
  hlo = """HloModule jit_step
ENTRY %main (x: f32[]) -> f32[] {
  %splash.1 = f32[] custom-call(%x), frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 512}"
}}, metadata={op_name="jit(step)/attend/pallas_call"}
  %copy.2 = f32[] copy(%splash.1)
  ROOT %add.3 = f32[] add(%copy.2, %copy.2), metadata={op_name="jit(step)/add"}
}
"""
  assert profile_summary.op_names(hlo) == {
    (module, name): path
    for module in ('', 'jit_step')
    for name, path in (
      ('splash.1', 'jit(step)/attend/pallas_call'),
      ('add.3', 'jit(step)/add'),
    )
  }


def test_a_tpu_has_a_line_of_operations():
  operations = [
    _event('%while.1 = (s32[]) while(...)', 100, 200),
    _event('%fusion.2 = bf16[8] fusion(...)', 100, 150),
    _event('%fusion.2 = bf16[8] fusion(...)', 160, 190),
  ]
  modules = [_event('jit_step', 100, 200)]
  summary = profile_summary.summarize(
    _profile(
      host=_LOOP,
      **{
        '/device_TPU_0__XLA Ops': operations,
        '/device_TPU_0__XLA Modules': modules,
      },
    )
  )
  (fusion,) = summary.operations
  assert (fusion.name, fusion.count) == ('fusion.2', 2)
  assert fusion.seconds == pytest.approx(80e-9)
  assert summary.busy + summary.input_wait + summary.idle == 1.0


def test_no_summary_without_steps():
  assert profile_summary.summarize(_profile(host=[])) is None
  assert profile_summary.summarize(_profile(host=_LOOP[:4])) is None


def test_a_large_product_is_the_top_of_a_real_trace(tmp_path):
  @jax.jit
  def step(x, y):
    with jax.named_scope('large'):
      x = x @ x / 1024.0
    return x, jnp.sort(y) + jnp.sin(y)

  args = jnp.ones([1024, 1024]), jnp.ones([64])
  compiled = step.lower(*args).compile()
  jax.block_until_ready(compiled(*args))
  with jax.profiler.trace(str(tmp_path)):
    for i in range(3):
      with jax.profiler.StepTraceAnnotation('train', step_num=i):
        args = jax.block_until_ready(compiled(*args))
  (file,) = tmp_path.glob('plugins/profile/*/*.xplane.pb')
  summary = profile_summary.summarize(
    jax.profiler.ProfileData.from_file(str(file))
  )
  assert (summary.num_steps, summary.num_devices) == (3, 1)
  assert summary.operations[0].count == 3
  assert len(summary.operations) > 1
  sources = profile_summary.op_names(compiled.as_text())
  largest = summary.operations[0]
  assert 'large/' in sources[largest.module, largest.name]

  page = profile_summary.to_markdown(summary, 0.5, sources)
  assert page.startswith('# profile of 3 steps: ') and 'MFU 50.0%' in page
  times = re.findall(r'^\| [a-z, ]+ \| ([\d.]+) % \|$', page, re.MULTILINE)
  assert len(times) == 3
  assert sum(map(float, times)) == pytest.approx(100.0, abs=0.05)
  shares = re.findall(r'^\| ([\d.]+) % \|', page, re.MULTILINE)
  assert sum(map(float, shares)) == pytest.approx(100.0, abs=0.2)
  assert float(shares[0]) == max(map(float, shares))


def test_the_page_sums_up_the_rest():
  operations = [
    _event('', 100 + i, 101 + i, hlo_op=f'add.{i}', device_ordinal=i % 2)
    for i in range(50)
  ]
  summary = profile_summary.summarize(
    _profile(host__python=_LOOP, host__threads=operations)
  )
  assert summary.num_devices == 2
  page = profile_summary.to_markdown(summary, None, {})
  assert '| 30 others |' in page and 'MFU' not in page
  assert '(2)' in page
