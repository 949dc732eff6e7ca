# SPDX-License-Identifier: Apache-2.0
"""Training and decoding of models of Hugging Face by the command line."""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: size=large
from __future__ import annotations

import functools
import importlib.util
import json
import math
import re
import shutil

import numpy as np
import pytest

from pax import experiment_registry, io_utils, main
from pax.huggingface import families, model_folder, safetensors
from pax.inputs.tokens import tokenizers
from pax.runner import overrides
from pax.tasks.lm.params import huggingface, huggingface_model
from tests.integration import binary
from tests.pax.huggingface import job_runs, loaded_models, reference_models

# Family, and number of parameters in millions as the docstring has it.
_PUBLISHED = {
  'Llama2': ('llama', 6738),
  'Llama3': ('llama', 1235),
  'Llama4': ('llama4_text', 107769),
  'Mistral': ('mistral', 7241),
  'Ministral3': ('ministral3', 8489),
  'Mixtral': ('mixtral', 46702),
  'Qwen2': ('qwen2', 494),
  'Qwen3': ('qwen3', 596),
  'Qwen3Moe': ('qwen3_moe', 30532),
  'Qwen3Next': ('qwen3_next', 79674),
  'Qwen3_5': ('qwen3_5_text', 8953),
  'Qwen3_5Moe': ('qwen3_5_moe_text', 34660),
  'DeepSeekV2': ('deepseek_v2', 15706),
  'DeepSeekV3': ('deepseek_v3', 671026),
  'KimiK2': ('kimi_k2', 1026408),
  'Gemma': ('gemma', 2506),
  'Gemma2': ('gemma2', 2614),
  'Gemma3': ('gemma3_text', 999),
  'Gemma4': ('gemma4_unified_text', 11907),
  'Gemma4E2B': ('gemma4_text', 4628),
  'Gemma4E4B': ('gemma4_text', 7463),
  'Gemma4Moe': ('gemma4_text', 25233),
  'GptOss': ('gpt_oss', 20914),
  'Olmo2': ('olmo2', 1484),
  'Olmo3': ('olmo3', 7298),
  'Phi3': ('phi3', 3821),
  'Phi4': ('phi3', 14659),
  'SmolLM3': ('smollm3', 3075),
  'Glm4': ('glm4', 9400),
  'Glm4Moe': ('glm4_moe', 106852),
  'Glm4MoeLite': ('glm4_moe_lite', 29943),
  'MiniMaxM2': ('minimax_m2', 228689),
  'Nemotron3': ('nemotron_h', 31577),
  'SeedOss': ('seed_oss', 36151),
  'Exaone4': ('exaone4', 32003),
  'Granite': ('granite', 2533),
  'Granite4': ('granitemoehybrid', 3191),
  'Granite4Moe': ('granitemoehybrid', 6939),
  'Gpt2': ('gpt2', 124),
  'T5': ('t5', 60),
  'T5V1_1': ('t5', 76),
}


def _weights(config):
  return families.read_model(config).weights()


@pytest.mark.parametrize('name', _PUBLISHED)
def test_experiments_have_published_sizes(name):
  family, num_millions = _PUBLISHED[name]
  experiment = experiment_registry.get(f'tasks.lm.params.huggingface.{name}')
  config = experiment.CONFIG
  assert config['model_type'] == family
  assert config['eos_token_id'] < config['vocab_size']
  experiment().validate()
  shapes = {x.tensor: x.tensor_shape for x in _weights(config)}
  num_parameters = sum(map(math.prod, shapes.values()))
  assert num_parameters // 10**6 == num_millions


def test_trains_from_imported_weights_and_exports(tmp_path, capfd):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_byte_model(source, 'llama3', num_layers=1)
  (source / 'notes.txt').write_text('a file of the model')
  words = ['--set=NUM_TRAIN_STEPS=2', '--set=EVAL_ON_TEST=False']
  assert job_runs.run('Llama3', source, job, *words) == 0, (
    capfd.readouterr().err
  )
  assert (job / 'huggingface/notes.txt').exists()
  convert = ['pax', 'convert', 'pax-to-hf', str(job), str(output)]
  assert main.main(convert) == 0
  assert (output / 'notes.txt').exists()
  before, after = map(safetensors.read_folder, (source, output))
  assert list(before) == list(after)
  changes = [
    np.abs(after[name].read() - before[name].read()).max() for name in before
  ]
  # Two steps of Adam with a learning rate of at most 1e-5.
  assert 0 < max(changes) < 1e-4
  # A restart keeps the files.
  words[0] = '--set=NUM_TRAIN_STEPS=3'
  assert job_runs.run('Llama3', source, job, *words) == 0
  copied = job / 'huggingface/config.json'
  assert copied.read_bytes() == (source / 'config.json').read_bytes()
  assert (job / 'huggingface/notes.txt').exists()


def test_held_out_text_must_exist_before_the_first_step(tmp_path, capfd):
  source = reference_models.write_byte_model(
    tmp_path / 'source', 'qwen3', num_layers=1
  )
  line = json.dumps({'prompt': 'a', 'completion': 'b'})
  (tmp_path / 'pairs.jsonl').write_text(line)
  settings = [
    f'--set=TRAIN_FILES={tmp_path}/pairs.jsonl',
    '--set=OBJECTIVE=responses',
    '--set=HELD_OUT_PERCENT=0',
  ]
  assert job_runs.run('Qwen3', source, tmp_path / 'job', *settings) == 1
  error = capfd.readouterr().err
  assert "input 'held_out' must have held-out text, got none in" in error
  assert 'set EVAL_ON_TEST=False' in error
  assert not (tmp_path / 'job' / 'checkpoints').exists()


def test_preferences_are_learned_by_the_policy_only(tmp_path, capfd):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_byte_model(source, 'qwen3')
  lines = [
    {'prompt': f'{i}', 'chosen': 'yes', 'rejected': 'no'} for i in range(8)
  ]
  (tmp_path / 'pairs.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  words = [
    '--set=OBJECTIVE=preferences',
    f'--set=TRAIN_FILES={tmp_path}/pairs.jsonl',
    '--set=NUM_TRAIN_STEPS=40',
    '--set=LEARNING_RATE=0.01',
    '--set=WARMUP_STEPS=1',
    '--set=EVAL_ON_TEST=False',
    '--set=USE_REPEATED_LAYER=True',
    '--set=task.train.summary_interval_steps=1',
  ]
  assert job_runs.run('Qwen3', source, job, *words) == 0, capfd.readouterr().err
  losses = list(binary.losses(job).values())
  # Policy and reference are equal at the start.
  assert losses[0] == pytest.approx(math.log(2), abs=1e-6)
  assert losses[-1] < 0.1
  convert = ['pax', 'convert', 'pax-to-hf', str(job), str(output)]
  assert main.main(convert) == 0
  before, after = map(safetensors.read_folder, (source, output))
  assert list(before) == list(after)
  embedding = 'model.embed_tokens.weight'
  original = before[embedding].read()
  assert np.abs(after[embedding].read() - original).max() > 0.01
  leaves = job_runs.read_leaves(job)
  references = {x: v for x, v in leaves.items() if '.params.ref_mdl.' in x}
  # Besides, the optimizer has two moments of the variables of the policy.
  assert len(references) * 3 + 1 < len(leaves)
  assert not any('ref_mdl' in x for x in leaves.keys() - references.keys())
  [table] = [v for x, v in references.items() if x.endswith('emb_var')]
  np.testing.assert_array_equal(table, original)


def share_of_vowels(examples, responses):
  """A reward function, whose examples are the objects of a file."""
  assert all(x['prompt'] for x in examples)
  return [sum(c in 'aeiou' for c in x) / max(len(x), 1) for x in responses]


def mean_code(examples, responses):
  """A reward that differs for almost all responses."""
  del examples
  return [sum(map(ord, x)) / 256 / max(len(x), 1) for x in responses]


def test_rewards_are_learned_and_a_job_resumes_to_the_bit(tmp_path, capfd):
  source, job, cut, output = (
    tmp_path / x for x in ('source', 'job', 'cut', 'output')
  )
  reference_models.write_byte_model(source, 'qwen3', num_layers=1)
  lines = [{'prompt': f'{i}'} for i in range(16)]
  (tmp_path / 'prompts.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  words = [
    '--set=OBJECTIVE=rewards',
    f'--set=REWARDS={__name__}:share_of_vowels',
    f'--set=TRAIN_FILES={tmp_path}/prompts.jsonl',
    '--set=BATCH_SIZE=16',
    '--set=MAX_PROMPT_LEN=8',
    '--set=NUM_TRAIN_STEPS=40',
    '--set=LEARNING_RATE=0.02',
    '--set=WARMUP_STEPS=1',
    '--set=GRPO_BETA=0.001',
    '--set=HELD_OUT_PERCENT=20',
    '--set=EVAL_INTERVAL_STEPS=40',
    '--set=task.train.save_interval_steps=20',
    '--set=task.train.summary_interval_steps=1',
  ]
  run = functools.partial(job_runs.run, 'Qwen3', source)
  assert run(job, *words, '--decode_during_train') == 0, capfd.readouterr().err
  rewards = [x.get('Metrics/reward') for x in binary.records(job)]
  rewards = [x for x in rewards if x is not None]
  assert np.mean(rewards[:3]) < 0.1
  assert np.mean(rewards[-3:]) > 0.7
  assert 'held_out reward' in capfd.readouterr().err
  decoded = io_utils.load_outputs(job, 'held_out', 'decoder', 40)
  for prompt, result in decoded:
    assert prompt in {x['prompt'] for x in lines}
    text = result['decoded_substr']
    assert result['rewards'] == {
      'reward': pytest.approx(share_of_vowels([], [text])[0])
    }
    assert len(result['decoded_ids']) <= 16 - 8
  assert decoded
  # As if the job had been stopped after its half.
  shutil.copytree(job, cut)
  shutil.rmtree(cut / 'checkpoints/checkpoint_00000040')
  assert run(cut, *words) == 0
  whole, resumed = map(job_runs.read_leaves, (job, cut))
  for name, value in whole.items():
    np.testing.assert_array_equal(resumed[name], value, err_msg=name)
  references = {x: v for x, v in whole.items() if '.params.ref_lm.' in x}
  [table] = [v for x, v in references.items() if x.endswith('emb_var')]
  before = safetensors.read_folder(source)
  embedding = 'model.embed_tokens.weight'
  np.testing.assert_array_equal(table, before[embedding].read())
  convert = ['pax', 'convert', 'pax-to-hf', str(job), str(output)]
  assert main.main(convert) == 0
  after = safetensors.read_folder(output)
  assert list(before) == list(after)
  np.testing.assert_array_equal(
    after[embedding].read(),
    whole['mdl_vars.params.lm.embedding_lookup.emb_var'],
  )


@pytest.mark.nightly
def test_preferences_and_rewards_continue_from_checkpoints(tmp_path, capfd):
  source = reference_models.write_byte_model(tmp_path / 'source', 'qwen3')
  lines = [{'prompt': f'{i}', 'chosen': 'y', 'rejected': 'n'} for i in range(8)]
  (tmp_path / 'lines.jsonl').write_text('\n'.join(map(json.dumps, lines)))

  def train(job, start, objective, *words):
    return main.main([
      'pax',
      '--exp=tasks.lm.params.huggingface.Qwen3',
      f'--job_log_dir={tmp_path}/{job}',
      f'--set=MODEL_DIR={source}',
      f'--init_from={start}',
      f'--set=OBJECTIVE={objective}',
      f'--set=TRAIN_FILES={tmp_path}/lines.jsonl',
      f'--set=REWARDS={__name__}:mean_code',
      '--set=BATCH_SIZE=8',
      '--set=MAX_SEQ_LEN=16',
      '--set=MAX_PROMPT_LEN=8',
      '--set=HELD_OUT_PERCENT=0',
      '--set=EVAL_ON_TEST=False',
      '--set=NUM_TRAIN_STEPS=3',
      '--set=WARMUP_STEPS=0',
      '--set=LEARNING_RATE=0.01',
      '--set=FPROP_DTYPE=float32',
      '--set=GRPO_BETA=0.1',
      *words,
    ])  # fmt: skip

  def network(job, name):
    table = f'mdl_vars.params.{name}.embedding_lookup.emb_var'
    return job_runs.read_leaves(tmp_path / job)[table]

  assert train('first', f'hf:{source}', 'preferences') == 0
  assert train('second', tmp_path / 'first', 'rewards') == 0
  assert train('third', tmp_path / 'second', 'preferences') == 0
  assert train('last', tmp_path / 'third', 'preferences') == 0
  policies = [
    network('first', 'mdl'),
    network('second', 'lm'),
    network('third', 'mdl'),
    network('last', 'mdl'),
  ]
  references = [
    network('second', 'ref_lm'),
    network('third', 'ref_mdl'),
    network('last', 'ref_mdl'),
  ]
  for before, reference, after in zip(
    policies, references, policies[1:], strict=False
  ):
    np.testing.assert_array_equal(reference, before)
    assert np.abs(after - before).max() > 1e-4
  # An evaluation compares with the reference of the checkpoint.
  words = [
    '--mode=eval',
    '--set=EVAL_ON_TEST=True',
    '--set=HELD_OUT_PERCENT=50',
  ]
  assert train('evaluated', tmp_path / 'first', 'preferences', *words) == 0
  [record] = binary.records(tmp_path / 'evaluated')
  assert record['loss'] < math.log(2) - 0.01


@pytest.mark.parametrize('objective', ['preferences', 'rewards'])
def test_a_reference_has_the_layers_of_the_policy(objective):
  settings = [
    f'OBJECTIVE={objective}',
    'TRAIN_FILES=a.jsonl',
    'REWARDS=a:b',
    'GRPO_BETA=0.1',
    'CHOICE_BIAS_UPDATE_RATE=0.5',
  ]
  constants = overrides.parse(settings)
  experiment = overrides.set_constants(huggingface.DeepSeekV3, constants)()
  model_p = experiment.task().model
  network_p = model_p.mdl if objective == 'preferences' else model_p.lm_tpl
  block_p = network_p.stacked_transformer_tpl.block
  assert block_p.moe_layer_tpl.choice_bias_update_rate == 0.5


@pytest.mark.nightly
def test_layers_with_shared_keys_have_the_same_loss_on_a_mesh(tmp_path, capfd):
  source = reference_models.write_byte_model(tmp_path / 'source', 'gemma4_e2b')
  words = ['--set=NUM_TRAIN_STEPS=1', '--set=LEARNING_RATE=0.0']
  words += ['--set=BATCH_SIZE=4', '--set=EVAL_ON_TEST=False']
  losses = {}
  for shape in ('[1,1,1]', '[1,2,2]'):
    job, output = tmp_path / f'job{shape}', tmp_path / f'output{shape}'
    words_of_mesh = [*words, f'--set=ICI_MESH_SHAPE={shape}']
    code = job_runs.run('Gemma4E2B', source, job, *words_of_mesh)
    assert code == 0, capfd.readouterr().err
    losses[shape] = job_runs.first_loss(job)
    convert = ['pax', 'convert', 'pax-to-hf', str(job), str(output)]
    assert main.main(convert) == 0
    before, after = (x / 'model.safetensors' for x in (source, output))
    assert before.read_bytes() == after.read_bytes()
  on_one, on_four = losses.values()
  assert on_four == pytest.approx(on_one, abs=1e-5)


@pytest.mark.nightly
def test_modules_of_multi_token_prediction_are_trained_and_exported(
  tmp_path, capfd
):
  source = reference_models.write_mtp_model(tmp_path / 'source')
  job, output = tmp_path / 'job', tmp_path / 'output'
  words = ['--set=MTP_LOSS_WEIGHT=0.25', '--set=NUM_TRAIN_STEPS=3']
  words += ['--set=BATCH_SIZE=4', '--set=ICI_MESH_SHAPE=[1,2,2]']
  words += ['--set=LEARNING_RATE=0.01', '--set=EVAL_ON_TEST=False']
  code = job_runs.run('DeepSeekV3', source, job, *words)
  assert code == 0, capfd.readouterr().err
  first, *_ = (job / 'metrics.jsonl').read_text().splitlines()
  metric = lambda name: json.loads(first)[f'Metrics/{name}']
  total = metric('avg_xent') + 0.25 * metric('mtp_loss') + metric('aux_loss')
  assert metric('total_loss') == pytest.approx(total, rel=1e-5)
  assert metric('mtp_loss') > 1
  # The last position of each of four rows has no second token.
  assert metric('num_predictions') - metric('mtp_loss-weight') == 4
  assert main.main(['pax', 'convert', 'pax-to-hf', str(job), str(output)]) == 0
  before, after = map(safetensors.read_folder, (source, output))
  assert list(before) == list(after)
  for name in before:
    # Not all experts get a token.
    if '.layers.4.' in name and '.experts.' not in name:
      assert (before[name].read() != after[name].read()).any(), name
  np.testing.assert_array_equal(
    after['model.layers.4.embed_tokens.weight'].read(),
    after['model.embed_tokens.weight'].read(),
  )


@pytest.mark.nightly
def test_a_t5_trains_evaluates_and_decodes_pairs(tmp_path, capfd):
  source, job, output = (tmp_path / x for x in ('source', 'job', 'output'))
  reference_models.write_byte_model(source, 't5')
  file = tmp_path / 'pairs.jsonl'
  texts = [f'text {i}' for i in range(12)]
  lines = [{'input': text, 'target': text[::-1]} for text in texts]
  file.write_text('\n'.join(map(json.dumps, lines)))
  words = [
    '--set=OBJECTIVE=pairs',
    f'--set=TRAIN_FILES={file}',
    '--set=BATCH_SIZE=4',
    '--set=EVAL_BATCH_SIZE=4',
    '--set=HELD_OUT_PERCENT=50',
    '--set=SOURCE_LEN=12',
    '--set=TARGET_LEN=8',
    # Collectives of several axes and of independent operations.
    '--set=ICI_MESH_SHAPE=[1,2,2]',
  ]
  run = functools.partial(job_runs.run_encoder_decoder, 'T5', source)
  code = run(job, *words, '--set=NUM_TRAIN_STEPS=2', '--eval_on_test')
  assert code == 0, capfd.readouterr().err
  assert np.isfinite(job_runs.first_loss(job))
  assert 'eval_test_held_out' in (job / 'metrics.jsonl').read_text()
  convert = ['pax', 'convert', 'pax-to-hf', str(job), str(output)]
  assert main.main(convert) == 0
  names = (set(safetensors.read_folder(x)) for x in (source, output))
  assert next(names) == next(names)
  prompts = tmp_path / 'prompts.jsonl'
  prompts.write_text('{"input": "text 3"}\n')
  other = tmp_path / 'other'
  words += ['--mode=infer', f'--set=PROMPTS_FILE={prompts}']
  code = run(other, *words, '--set=DECODE_BATCH_SIZE=4')
  assert code == 0, capfd.readouterr().err
  ids, text = job_runs.decoded(other, 'infer')['text 3']
  model = loaded_models.LoadedModel(model_folder.ModelFolder.open(source), 7)
  eos = tokenizers.ByteTokenizer.eos_id
  tokens = np.array([[*b'text 3', eos]], np.int32)
  np.testing.assert_array_equal(ids, model.greedy(tokens)[0][: len(ids)])
  assert len(ids) == 8 or ids[-1] == eos
  assert text == tokenizers.ByteTokenizer().decode(ids)


def test_span_corruption_needs_ids_for_sentinels(tmp_path, capfd):
  source = reference_models.write_byte_model(tmp_path / 'source', 't5')
  job = tmp_path / 'job'
  assert job_runs.run_encoder_decoder('T5', source, job) != 0
  assert 'needs the id 358 for the first sentinel' in capfd.readouterr().err


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    (['OBJECTIVE=pairs'], "'rewards'], got 'pairs'"),
    (['OBJECTIVE=rewards', 'TRAIN_FILES=a.jsonl'], 'needs REWARDS'),
    (
      [
        *('OBJECTIVE=rewards', 'TRAIN_FILES=a.jsonl', 'REWARDS=a:b'),
        *('ROLLOUT_EPOCHS=3', 'NUM_TRAIN_STEPS=10'),
      ],
      'NUM_TRAIN_STEPS must be a multiple of 3',
    ),
    (
      [
        *('OBJECTIVE=rewards', 'TRAIN_FILES=a.jsonl', 'REWARDS=a:b'),
        *('MAX_SEQ_LEN=64', 'MAX_PROMPT_LEN=64'),
      ],
      'room for a response, got 64 and 64',
    ),
    (
      ['OBJECTIVE=preferences', 'TRAIN_FILES=a.jsonl', 'MTP_LOSS_WEIGHT=0.3'],
      'OBJECTIVE=preferences has none of, got 0.3',
    ),
    (['OBJECTIVE=responses'], 'needs TRAIN_FILES'),
    (
      ['OBJECTIVE=responses', 'TRAIN_FILES=a.jsonl', 'TRAIN_DATA=b.jsonl'],
      "reads TRAIN_FILES, got TRAIN_DATA='b.jsonl'",
    ),
    (['TRAIN_FILES=a.txt', 'TRAIN_DATA=b.jsonl'], 'set one of them'),
  ],
)
def test_responses_need_files(settings, message):
  constants = overrides.parse(settings)
  experiment = overrides.set_constants(huggingface.Qwen3, constants)()
  with pytest.raises(ValueError, match=re.escape(message)):
    experiment.validate()


def test_gathered_axes_are_those_of_the_mesh():
  settings = ['OBJECTIVE=rewards', 'TRAIN_FILES=a.jsonl', 'REWARDS=a:b']
  constants = overrides.parse([*settings, "DECODE_GATHERED_AXES=['model']"])
  experiment = overrides.set_constants(huggingface.Qwen3, constants)()
  with pytest.raises(ValueError, match=r"of \['replica', 'data', 'mdl'\], got"):
    experiment.task()
  experiment.ICI_MESH_SHAPE = None
  experiment.task()


def test_a_named_tokenizer_replaces_that_of_the_folder(tmp_path):
  (tmp_path / 'config.json').write_text(json.dumps(huggingface.Qwen3.CONFIG))
  settings = [f'MODEL_DIR={tmp_path}', 'TOKENIZER=/models/words.model']
  constants = overrides.parse([*settings, 'TRAIN_DATA=a.jsonl'])
  experiment = overrides.set_constants(huggingface.Qwen3, constants)()
  inputs = [*experiment.datasets(), *experiment.decode_datasets()]
  for tokenizer_p in (inputs[0].tokenizer_tpl, inputs[-1].tokenizer):
    assert tokenizer_p.model_file == '/models/words.model'


def test_tokens_of_files_are_in_the_vocabulary(tmp_path):
  tokens = np.arange(9)
  tokens[-1] = huggingface.Qwen3.CONFIG['vocab_size']
  np.save(tmp_path / 'x.npy', tokens)
  constants = overrides.parse([f'TRAIN_DATA={tmp_path}/x.npy', 'MAX_SEQ_LEN=4'])
  experiment = overrides.set_constants(huggingface.Qwen3, constants)()
  made = experiment.datasets()[0].Instantiate()
  with pytest.raises(ValueError, match='151936'):
    for _ in range(2):
      made.get_next()


def test_pairs_need_files():
  experiment = type('Mine', (huggingface.T5,), {'OBJECTIVE': 'pairs'})()
  with pytest.raises(ValueError, match='OBJECTIVE=pairs needs TRAIN_FILES'):
    experiment.validate()


def test_a_folder_without_a_tokenizer_is_reported(tmp_path, caplog):
  (tmp_path / 'config.json').write_text(json.dumps(huggingface.Qwen3.CONFIG))
  named = {'MODEL_DIR': str(tmp_path), 'TOKENIZER': 'bytes'}
  type('Named', (huggingface.Qwen3,), named)().validate()
  assert not caplog.text
  type('Mine', (huggingface.Qwen3,), {'MODEL_DIR': str(tmp_path)})().validate()
  assert 'has no tokenizer: tokens are bytes' in caplog.text


def test_layers_of_a_t5_are_not_repeated(tmp_path, capfd):
  source = reference_models.write_byte_model(tmp_path / 'source', 't5')
  job = tmp_path / 'job'
  setting = '--set=USE_REPEATED_LAYER=True'
  assert job_runs.run_encoder_decoder('T5', source, job, setting) != 0
  assert 'USE_REPEATED_LAYER must be False' in capfd.readouterr().err
  convert = ['pax', 'convert', 'hf-to-pax', str(source), str(job)]
  assert main.main([*convert, '--repeated_layers']) != 0
  assert 'only the layers of decoders can be repeated' in (
    capfd.readouterr().err
  )
  assert not (job / 'checkpoints').exists()


def test_another_family_or_size_is_refused(tmp_path, capfd):
  source = reference_models.write_byte_model(tmp_path / 'source', 'qwen3')
  assert job_runs.run('Mistral', source, tmp_path / 'job') != 0
  assert 'must have a mistral, got a qwen3' in capfd.readouterr().err
  other = tmp_path / 'other'
  config = json.loads((source / 'config.json').read_text())
  config['num_hidden_layers'] = 1
  shapes = {weight.tensor: weight.tensor_shape for weight in _weights(config)}
  reference_models.write(other, config, shapes)
  (other / 'tokenizer.json').unlink()
  code = job_runs.run(
    'Qwen3', other, tmp_path / 'job', f'--init_from=hf:{source}'
  )
  error = capfd.readouterr().err
  assert code != 0 and 'x_layers_1' in error and 'MODEL_DIR' in error


@pytest.mark.parametrize('name', ['MAX_SEQ_LEN', 'DECODE_SEQ_LEN'])
def test_texts_are_at_most_as_long_as_the_table_of_positions(name):
  huggingface.Gpt2().validate()
  experiment = type('Longer', (huggingface.Gpt2,), {name: 1025})()
  with pytest.raises(ValueError, match=f'{name} must be at most 1024, .*1025'):
    experiment.validate()


def test_tokenizers_of_folders(tmp_path, monkeypatch):
  folder = str(tmp_path)
  name = lambda: huggingface_model.tokenizer_of(folder).cls.__name__
  assert name() == 'ByteTokenizer'
  (tmp_path / 'tokenizer.json').write_text('{}')
  assert name() == 'HuggingFaceTokenizer'
  (tmp_path / 'tokenizer.model').write_text('')
  # The reader of the former is an optional package.
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  assert name() == 'SentencePieceTokenizer'
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: True)
  assert name() == 'HuggingFaceTokenizer'
