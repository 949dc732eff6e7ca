# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Conversion of models of Hugging Face to checkpoints, and back."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import uuid

import jax
import numpy as np
import pytest

from pax.checkpoints import leaf_writer, reading
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.files import storage
from pax.huggingface import (
  checkpoint_tensors,
  conversion,
  families,
  model_folder,
  safetensors,
  side_folder,
  stacked_variables,
  warm_start,
  weight_layouts,
)
from pax.huggingface.layers import rotary_embeddings
from tests.pax.huggingface import convert_command, reference_models


@pytest.mark.parametrize(
  'name, options',
  [
    ('llama3', {'dtype': 'BF16', 'num_files': 3}),
    ('llama4', {'dtype': 'BF16', 'num_files': 2}),
    ('gemma2', {'dtype': 'F16'}),
    ('qwen3_moe', {'num_files': 4}),
    ('deepseek_v3', {'num_files': 4}),
    ('gpt_oss', {'num_files': 2}),
    ('qwen3_next', {'dtype': 'BF16'}),
    ('phi3', {'num_files': 2}),
    ('glm4', {'dtype': 'BF16'}),
    ('glm4_moe', {'num_files': 3}),
    ('gemma4_moe', {'dtype': 'BF16'}),
    ('gemma4_e2b', {'num_files': 2}),
    ('gpt2', {}),
    ('t5', {'num_files': 2}),
  ],
)
def test_round_trip_gives_the_same_files(name, options, tmp_path, capsys):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_reference(source, name, **options)
  assert 'tensors' in convert_command.run(capsys, 'hf-to-pax', source, job)
  convert_command.run(capsys, 'pax-to-hf', job, output)
  found, want = (
    convert_command.contents(output),
    convert_command.contents(source),
  )
  index = 'model.safetensors.index.json'
  if index in want:
    # The reference's size is wrong on purpose: it is not copied.
    index_found, index_want = (json.loads(x.pop(index)) for x in (found, want))
    assert index_found['weight_map'] == index_want['weight_map']
    assert index_found['metadata']['total_size'] > 0
  assert found == want
  assert 'tokenizer.json' in found


def test_a_module_of_qwen3_next_is_kept(tmp_path, capsys):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference = reference_models.load()['qwen3_next']
  # Published names; the module is not trained.
  tensors = {
    **reference['tensors'],
    'mtp.fc.weight': (32, 64),
    'mtp.layers.0.self_attn.q_norm.weight': (16,),
  }
  reference_models.write(source, reference['config'], tensors)
  convert_command.run(capsys, 'hf-to-pax', source, job)
  convert_command.run(capsys, 'pax-to-hf', job, output)
  assert convert_command.contents(output) == convert_command.contents(source)
  error = convert_command.fail(capsys, 'hf-to-pax', source, job, '--mtp')
  assert 'num_nextn_predict_layers in config.json must be at least 1' in error


def test_keys_of_layers_that_share_others_are_kept(tmp_path, capsys):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference = reference_models.load()['gemma4_e2b']
  # Published files have them; the last layers do not use them.
  unused = {
    f'model.layers.3.self_attn.{name}.weight': shape
    for name, shape in (('k_proj', (32, 32)), ('k_norm', (16,)))
  }
  assert not unused.keys() & reference['tensors'].keys()
  reference_models.write(
    source, reference['config'], reference['tensors'] | unused
  )
  convert_command.run(capsys, 'hf-to-pax', source, job)
  convert_command.run(capsys, 'pax-to-hf', job, output)
  assert convert_command.contents(output) == convert_command.contents(source)


def test_files_have_at_most_the_given_size(tmp_path, capsys):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_reference(source, 'llama3')
  convert_command.run(capsys, 'hf-to-pax', source, job)
  convert_command.run(capsys, 'pax-to-hf', job, output, '--max_shard_size=20KB')
  files = sorted(output.glob('*.safetensors'))
  sizes = [
    sum(e.num_bytes for e in safetensors.read_entries(f).values())
    for f in files
  ]
  assert len(files) > 1 and max(sizes) <= 20_000
  index = json.loads((output / 'model.safetensors.index.json').read_text())
  want, found = map(safetensors.read_folder, (source, output))
  assert index['metadata']['total_size'] == sum(sizes)
  assert index['weight_map'].keys() == want.keys() == found.keys()
  for name, entry in want.items():
    assert found[name].file.name == index['weight_map'][name]
    np.testing.assert_array_equal(found[name].read(), entry.read())
  error = convert_command.fail(
    capsys, 'pax-to-hf', job, output, '--max_shard_size=huge'
  )
  assert 'e.g. --max_shard_size=5GB' in error


def test_variables_have_the_values_of_the_tensors(tmp_path):
  source = tmp_path / 'source'
  reference_models.write_reference(source, 'llama3', dtype='BF16')
  summary = conversion.to_pax(source, tmp_path / 'job')
  checkpoint = CheckpointReader(summary.path)
  assert len(checkpoint.shapes) == summary.num_tensors + 1
  name = 'mdl_vars.params.lm.transformer.x_layers_1.self_attention.key.w'
  # D = 32, two heads of 12.
  assert checkpoint.shapes[name] == ((32, 2, 12), 'bfloat16')
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  abstract = jax.ShapeDtypeStruct(
    (32, 2, 12), jax.numpy.bfloat16, sharding=sharding
  )
  found = checkpoint.read({name: abstract})[name]
  tensor = 'model.layers.1.self_attn.k_proj.weight'
  want = reference_models.weight(tensor, (24, 32)).astype(jax.numpy.bfloat16)
  np.testing.assert_array_equal(found[3, 1], want[12:, 3])


def test_dtype_of_the_export(tmp_path, capsys):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_reference(source, 'qwen2', num_files=2)
  convert_command.run(capsys, 'hf-to-pax', source, job)
  convert_command.run(capsys, 'pax-to-hf', job, output, '--dtype=bfloat16')
  found = safetensors.read_folder(output)
  assert {str(entry.dtype) for entry in found.values()} == {'bfloat16'}
  assert json.loads((output / 'config.json').read_text())['dtype'] == 'bfloat16'
  for name, entry in safetensors.read_folder(source).items():
    want = entry.read().astype(jax.numpy.bfloat16)
    np.testing.assert_array_equal(found[name].read(), want)


def test_tables_and_copies_are_no_variables_and_come_back(tmp_path, capsys):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference = reference_models.load()['gpt2']
  shapes = {
    # As in the first files of GPT-2: without prefix, and with causal masks.
    name.removeprefix('transformer.'): shape
    for name, shape in reference['tensors'].items()
  }
  shapes['h.0.attn.bias'] = (1, 1, 64, 64)
  reference_models.write(source, reference['config'], shapes)
  convert_command.run(capsys, 'hf-to-pax', source, job)
  names = CheckpointReader(reading.find_checkpoint(job)[1]).shapes
  assert len(names) == len(reference['tensors']) + 1
  convert_command.run(capsys, 'pax-to-hf', job, output)
  assert convert_command.contents(output) == convert_command.contents(source)


@pytest.mark.parametrize(
  'name, copy, tensor',
  [
    ('llama3', 'lm_head.weight', 'model.embed_tokens.weight'),
    ('gpt2', 'lm_head.weight', 'transformer.wte.weight'),
    ('t5', 'encoder.embed_tokens.weight', 'shared.weight'),
  ],
)
def test_copies_of_tied_weights_follow_them(
  name, copy, tensor, tmp_path, capsys
):
  """Transformers does not tie tensors with different values."""
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_reference(source, name)
  tensors = {k: v.read() for k, v in safetensors.read_folder(source).items()}

  def write(offset, **copies):
    values = {k: v + np.float32(offset) for k, v in tensors.items()} | copies
    file = source / safetensors.SINGLE_FILE
    reference_models.write_safetensors(file, values, 'F32')

  write(0, **{copy: tensors[tensor]})
  convert_command.run(capsys, 'hf-to-pax', source, job)
  convert_command.run(capsys, 'pax-to-hf', job, output)
  assert convert_command.contents(output) == convert_command.contents(source)
  shutil.rmtree(output)
  # The same model after training.
  write(1)
  convert_command.run(capsys, 'hf-to-pax', source, tmp_path / 'trained')
  shutil.rmtree(job / 'checkpoints')
  shutil.copytree(tmp_path / 'trained' / 'checkpoints', job / 'checkpoints')
  convert_command.run(capsys, 'pax-to-hf', job, output)
  found = safetensors.read_folder(output)
  for exported in (copy, tensor):
    want = tensors[tensor] + np.float32(1)
    np.testing.assert_array_equal(found[exported].read(), want)
  write(0, **{copy: tensors[tensor] + np.float32(1)})
  error = convert_command.fail(capsys, 'hf-to-pax', source, tmp_path / 'other')
  assert re.search(
    rf'{copy} in .* must be equal to {tensor}, .* set tie', error
  )
  assert not (tmp_path / 'other').exists()


def test_files_that_transformers_does_not_read_are_left_out(tmp_path, capsys):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_reference(source, 'mistral', num_files=2)
  want = {file.name for file in source.iterdir()}
  # Releases of Mistral have all tensors again, under other names.
  for name in ('consolidated', 'adapter_model'):
    reference_models.write_safetensors(
      source / f'{name}.safetensors', {'wq': np.zeros((2, 2), 'float32')}, 'F32'
    )
  convert_command.run(capsys, 'hf-to-pax', source, job)
  convert_command.run(capsys, 'pax-to-hf', job, output)
  assert {file.name for file in output.iterdir()} == want
  (source / 'model-00002-of-00002.safetensors').unlink()
  error = convert_command.fail(capsys, 'hf-to-pax', source, tmp_path / 'other')
  assert 'all 2 files of model.safetensors.index.json, 1 are missing' in error
  (source / 'model.safetensors.index.json').write_text('[]')
  error = convert_command.fail(capsys, 'hf-to-pax', source, tmp_path / 'other')
  assert 'must have a file by tensor in weight_map' in error


def test_one_file_has_no_index(tmp_path, capsys):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_reference(source, 'mistral', num_files=3)
  convert_command.run(capsys, 'hf-to-pax', source, job)
  convert_command.run(capsys, 'pax-to-hf', job, output, '--max_shard_size=5GB')
  assert [file.name for file in output.glob('model*')] == ['model.safetensors']


@pytest.mark.parametrize('dtype', ['float64', 'float8_e4m3fn', 'int8'])
def test_dtypes_that_are_not_those_of_weights_are_refused(
  dtype, tmp_path, capsys
):
  source, job = tmp_path / 'source', tmp_path / 'job'
  reference = reference_models.load()['mistral']
  reference_models.write(source, reference['config'], reference['tensors'])
  shapes = {
    name: (tuple(shape), jax.numpy.dtype(dtype))
    for name, shape in reference['tensors'].items()
  }
  safetensors.write(
    source / 'model.safetensors',
    safetensors.make_header(shapes),
    (np.zeros(shape, of_tensor) for shape, of_tensor in shapes.values()),
  )
  error = convert_command.fail(capsys, 'hf-to-pax', source, job)
  assert f"'float32'], got {dtype}; use a model that is not" in error
  assert not job.exists()


@pytest.mark.parametrize('folder', ['', 's3://bucket/model'])
def test_folder_of_init_from(folder, monkeypatch):
  monkeypatch.setenv('HOME', '/home/me')
  assert warm_start.folder_of('hf:~/x') == '/home/me/x'
  assert warm_start.folder_of('hf:/models/x') == '/models/x'
  assert warm_start.folder_of('/jobs/x@3') is None
  with pytest.raises(ValueError, match=f"a local folder .* got 'hf:{folder}'"):
    warm_start.folder_of(f'hf:{folder}')


def test_export_without_the_original_files(tmp_path, capsys):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_reference(source, 'mistral')
  convert_command.run(capsys, 'hf-to-pax', source, job)
  (job / 'huggingface').rename(tmp_path / 'gone')
  error = convert_command.fail(capsys, 'pax-to-hf', job, output)
  assert 'must have config.json' in error and '--config' in error
  convert_command.run(capsys, 'pax-to-hf', job, output, f'--config={source}')
  want = safetensors.read_folder(source)
  found = safetensors.read_folder(output)
  assert found.keys() == want.keys()
  for name, entry in want.items():
    np.testing.assert_array_equal(found[name].read(), entry.read())


def test_files_are_copied_to_buckets_too(tmp_path):
  source, job = tmp_path / 'source', tmp_path / 'job'
  reference_models.write_reference(source, 'mistral')
  (source / 'tokenizer.json').write_text('{}')
  folder = model_folder.ModelFolder.open(source)
  url = f'memory://{uuid.uuid4().hex}/job'
  side_folder.write(folder, url)
  side_folder.write(folder, job)
  side = storage.to_path(url) / 'huggingface'
  want = convert_command.contents(job / 'huggingface')
  assert {'config.json', 'tokenizer.json'} < want.keys()
  assert {name: (side / name).read_bytes() for name in side.files()} == want


def test_a_job_takes_along_the_files_of_another(tmp_path):
  source, job = tmp_path / 'source', tmp_path / 'job'
  reference_models.write_reference(source, 'mistral')
  side_folder.write(model_folder.ModelFolder.open(source), job)
  url = f'memory://{uuid.uuid4().hex}/job'
  # From a directory of checkpoints, to a bucket and back.
  side_folder.copy_of_job(job / 'checkpoints', url)
  side_folder.copy_of_job(url, tmp_path / 'last')
  want, got = (x / side_folder.FOLDER for x in (job, tmp_path / 'last'))
  assert storage.files(got) == storage.files(want) != []
  for name in storage.files(want):
    assert (got / name).read_bytes() == (want / name).read_bytes()
  # Files that a job has stay.
  (got / 'config.json').write_text('{}')
  side_folder.copy_of_job(job, tmp_path / 'last')
  assert (got / 'config.json').read_text() == '{}'
  side_folder.copy_of_job(tmp_path / 'none', tmp_path / 'other')
  assert not (tmp_path / 'other').exists()


def test_errors_name_the_next_step(tmp_path, capsys):
  source = tmp_path / 'source'
  reference = reference_models.load()['qwen3']
  assert 'config.json' in convert_command.fail(
    capsys, 'hf-to-pax', tmp_path, tmp_path / 'job'
  )
  assert 'the arguments must be' in convert_command.fail(
    capsys, 'hf-to-pax', source
  )
  config, shapes = reference['config'], dict(reference['tensors'])
  name = 'model.layers.1.mlp.up_proj.weight'
  shapes.pop(name)
  reference_models.write(source, config, shapes)
  assert name in convert_command.fail(
    capsys, 'hf-to-pax', source, tmp_path / 'job'
  )
  other = reference_models.write(
    tmp_path / 'other', {**config, 'model_type': 'mamba'}, shapes
  )
  error = convert_command.fail(capsys, 'hf-to-pax', other, tmp_path / 'job')
  assert 'mamba' in error and 'qwen3' in error
  extra = {**reference['tensors'], 'model.layers.9.bias': (3,)}
  wrong = reference_models.write(tmp_path / 'wrong', config, extra)
  error = convert_command.fail(capsys, 'hf-to-pax', wrong, tmp_path / 'job')
  assert 'model.layers.9.bias' in error
  file = wrong / 'model.safetensors'
  file.write_bytes(file.read_bytes()[:20])
  assert 'complete header' in convert_command.fail(
    capsys, 'hf-to-pax', wrong, tmp_path / 'j'
  )


@pytest.mark.parametrize(
  'change, message',
  [
    ({'model_type': ['qwen3']}, r"must be one of .*, got \['qwen3'\]"),
    ({'hidden_size': None}, 'hidden_size in config.json must be an integer'),
    ({'hidden_size': '32'}, "at least 1, got '32'; use"),
    ({'num_attention_heads': 0}, 'at least 1, got 0; use'),
    ({'vocab_size': 7}, r'must have shape \[7, 32\] .* of one model'),
    ({'rope_scaling': 'yarn'}, "must be an object, got 'yarn'; use"),
    ({'rope_scaling': {'rope_type': 'longrope'}}, "got 'longrope'; only these"),
    ({'rope_scaling': {'partial_rotary_factor': 0.5}}, 'must be 1, got 0.5'),
    ({'partial_rotary_factor': 0.5}, 'must be 1, got 0.5'),
    (None, 'config.json must be a JSON object, got a list; copy'),
  ],
)
def test_a_wrong_config_is_named_and_writes_nothing(
  change, message, tmp_path, capsys
):
  source, job = tmp_path / 'source', tmp_path / 'job'
  reference_models.write_reference(source, 'qwen3')
  file = source / 'config.json'
  config = {**json.loads(file.read_text()), **change} if change else []
  file.write_text(json.dumps(config))
  error = convert_command.fail(capsys, 'hf-to-pax', source, job)
  assert re.search(message, error) and error.count('\n') == 1
  assert not job.exists()


def test_the_base_of_rotary_positions_may_be_a_fraction():
  rope = {'rope_theta': 26214.4, 'rope_type': 'default'}
  assert rotary_embeddings.rotary_embedding(rope).max_timescale == 26214.4


@pytest.mark.parametrize('rope_type', ['linear', 'llama3', 'yarn'])
def test_a_scaling_of_positions_without_its_factor_is_named(
  rope_type, tmp_path
):
  rope = {'rope_theta': 1e4, 'rope_type': rope_type}
  with pytest.raises(ValueError, match='^factor .* must be a number, got None'):
    rotary_embeddings.rotary_embedding(rope)


@pytest.mark.parametrize(
  'settings, want',
  [
    ({}, 1 + 0.1 * math.log(4)),
    ({'attention_factor': 1.5, 'mscale': 2.0, 'mscale_all_dim': 1.0}, 1.5),
    ({'mscale': 0.5}, 1 + 0.1 * math.log(4)),
    (
      {'mscale': 0.5, 'mscale_all_dim': 0.25},
      (1 + 0.05 * math.log(4)) / (1 + 0.025 * math.log(4)),
    ),
  ],
)
def test_the_attention_factor_of_yarn(settings, want):
  rope = {
    'rope_theta': 1e4,
    'rope_type': 'yarn',
    'factor': 4.0,
    'original_max_position_embeddings': 32,
  }
  rotary = rotary_embeddings.rotary_embedding(rope | settings)
  scaling = rotary.scaling_tpl.clone().set(name='scaling').Instantiate()
  assert scaling.amplitude() == pytest.approx(want, rel=1e-12)


def test_a_damaged_generation_config_is_named(tmp_path):
  (tmp_path / 'generation_config.json').write_text('{')
  message = 'generation_config.json must be JSON, got: .*; copy'
  with pytest.raises(ValueError, match=message):
    model_folder.read_eos_ids(tmp_path, {})


def test_an_export_that_cannot_be_made_writes_nothing(tmp_path, capsys):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_reference(source, 'mistral')
  convert_command.run(capsys, 'hf-to-pax', source, job)
  other, _ = reference_models.write_reference(tmp_path / 'other', 'gpt2')
  error = convert_command.fail(
    capsys, 'pax-to-hf', job, output, f'--config={other}'
  )
  assert 'use the config.json of the model' in error
  assert not output.exists()


def test_an_export_leaves_no_variable_out(tmp_path, capsys):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_reference(source, 'mistral')
  convert_command.run(capsys, 'hf-to-pax', source, job)
  shutil.rmtree(job / 'huggingface')
  config = json.loads((source / 'config.json').read_text())
  layers = config['num_hidden_layers']
  for folder in ('fewer', 'same'):
    (tmp_path / folder).mkdir()
    settings = {'num_hidden_layers': layers - (folder == 'fewer')}
    (tmp_path / folder / 'config.json').write_text(
      json.dumps(config | settings)
    )
  error = convert_command.fail(
    capsys, 'pax-to-hf', job, output, f'--config={tmp_path / "fewer"}'
  )
  assert re.search(
    r'9 have none, such as mdl_vars.params.lm.tr.*_layers_1', error
  )
  assert not output.exists()
  convert_command.run(
    capsys, 'pax-to-hf', job, output, f'--config={tmp_path / "same"}'
  )


def _write_job(job, config, name, dtype):
  """Writes a checkpoint of a model with one more variable."""
  leaves = {
    checkpoint_tensors.leaf_name(variable): np.zeros(variable.shape, dtype)
    for variable in stacked_variables.of_layouts(
      weight_layouts.by_tensor(families.read_model(config).weights()), None
    )
  }
  path = job / 'checkpoints' / 'checkpoint_00000000'
  leaves |= {f'mdl_vars.params.lm.softmax.{name}': np.zeros(1, np.float32)}
  leaf_writer.write_leaves(path, leaves.items(), step=0)


@pytest.mark.parametrize(
  'name, dtype, message',
  [
    ('w_lora_left', 'float32', '1 have none, such as .*w_lora_left; '),
    ('kernel_scale', 'int8', 'float32.*, got int8; export the checkpoint'),
    ('kernel_scale', 'bfloat16', None),
    ('input_amax_history', 'float32', None),
  ],
)
def test_variables_that_are_no_weights(name, dtype, message, tmp_path, capsys):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  _, reference = reference_models.write_reference(source, 'mistral')
  _write_job(job, reference['config'], name, jax.numpy.dtype(dtype))
  words = ('pax-to-hf', job, output, f'--config={source}')
  if message:
    assert re.search(message, convert_command.fail(capsys, *words))
  else:
    convert_command.run(capsys, *words)


@pytest.mark.parametrize('key', ['dtype', 'torch_dtype'])
def test_config_has_the_dtype_of_trained_weights(key, tmp_path, capsys):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference = reference_models.load()['mistral']
  config = {**reference['config'], key: 'bfloat16'}
  config.pop({'dtype': 'torch_dtype'}.get(key, 'dtype'), None)
  reference_models.write(source, config, reference['tensors'], dtype='BF16')
  side_folder.write(model_folder.ModelFolder.open(source), job)
  _write_job(job, config, 'kernel_scale', np.float32)
  convert_command.run(capsys, 'pax-to-hf', job, output)
  exported = json.loads((output / 'config.json').read_text())
  assert exported == config | {key: 'float32'}


_PEAK = """
import resource, sys
from pax.huggingface import conversion
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
conversion.to_pax(sys.argv[1], sys.argv[2])
conversion.to_huggingface(sys.argv[2], sys.argv[3])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(after - before)
"""


def test_memory_does_not_grow_with_the_model(tmp_path):
  config = {
    'model_type': 'llama',
    'vocab_size': 4096,
    'hidden_size': 512,
    'intermediate_size': 4096,
    'num_hidden_layers': 18,
    'num_attention_heads': 8,
  }
  shapes = {
    weight.tensor: (weight.tensor_shape, np.dtype(np.float16))
    for weight in families.read_model(config).weights()
  }
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  source.mkdir()
  (source / 'config.json').write_text(json.dumps(config))
  safetensors.write(
    source / 'model.safetensors',
    safetensors.make_header(shapes),
    (np.ones(shape, dtype) for shape, dtype in shapes.values()),
  )
  size = (source / 'model.safetensors').stat().st_size
  assert size > 250 * 2**20
  out = subprocess.run(
    [sys.executable, '-c', _PEAK, source, job, output],
    check=True,
    capture_output=True,
    text=True,
  ).stdout
  # The import of TensorStore and buffers; a tensor has 4 MiB.
  assert int(out) * 1024 < size / 2
