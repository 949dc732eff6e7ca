# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: data=//:all_files
# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: deps=//tests/integration:experiments
"""The commands of README.md and of the pages run.

Each is a process of its own, forked from one that has imported their modules.
All share a cache of compiled programs.
"""

from __future__ import annotations

import json
import pathlib
import re
import shlex

import pytest

from tests.docs import pages
from tests.integration import binary
from tests.pax.huggingface import reference_models
from tests.testing import programs

# Where documented commands write.
JOBS = '/tmp/pax'
# What makes a documented run short; it goes last, so it wins.
SHORT = ['--set=task.train.num_train_steps=2']
ONE_TRIAL = ['--num_trials=1']
# The first line of a file that commands name.
IS_FILE = re.compile(r'# (\w+\.(?:py|yaml))\n')
TIMEOUT_SECS = 240
# What their commands do has tests of its own by day.
_NIGHTLY_PAGES = (
  'aot.md',
  'huggingface.md',
  'images.md',
  'inputs.md',
  'launching.md',
  'layers.md',
  'modes.md',
  'performance.md',
  'profiling.md',
  'quantization.md',
  'summaries.md',
  'tuning.md',
)
PRELOADED = (
  *binary.PRELOADED,
  'pax.tasks.lm.params.huggingface',
  'pax.tasks.lm.params.lm_cloud',
  'pax.tasks.lm.params.quickstart',
)
_SMALL_QUICKSTART = [
  '--set=NUM_LAYERS=1',
  '--set=MODEL_DIMS=32',
  '--set=HIDDEN_DIMS=64',
  '--set=MAX_SEQ_LEN=32',
  '--set=NUM_PIECES=512',
  '--set=HELD_OUT_PERCENT=10',
  '--set=SAMPLE_PROMPT=',
  '--set=EVAL_ON_TEST=False',
  f'--set=TRAIN_FILES={pages.ROOT}/pax/inputs/*/*.py',
]
# {experiments: what makes them small}; the others are small already.
SMALL = {
  'quickstart.': _SMALL_QUICKSTART,
  'my_experiments.TunedLm': _SMALL_QUICKSTART,
  'huggingface.Qwen3': [
    '--set=MAX_SEQ_LEN=64',
    '--set=SAMPLE_PROMPT=',
    '--set=EVAL_ON_TEST=False',
  ],
  'huggingface.T5': ['--set=SOURCE_LEN=32', '--set=TARGET_LEN=16'],
  'lm_cloud.LmCloudSpmdTest': ['--set=MAX_SEQ_LEN=64', '--set=VOCAB_SIZE=512'],
}


@pytest.fixture(scope='module')
def jobs(tmp_path_factory):
  """Where documented jobs write; those of one directory share it here too.

  Files that pages show are there, and models of Hugging Face.
  """
  folder = tmp_path_factory.mktemp('jobs')
  texts = [f'Text {i} of {i * i} about models.' for i in range(200)]
  reference_models.write_text_model(folder / 'qwen3', 'qwen3', texts)
  reference_models.write_text_model(folder / 'teacher', 'llama3', texts)
  reference_models.write_text_model(folder / 't5', 't5', texts)
  lines = {
    'text': [{'text': text} for text in texts],
    'pairs': [{'input': text, 'target': text[:8]} for text in texts],
    'prompts': [{'prompt': text[:8]} for text in texts[:3]],
    'chats': [
      {
        'messages': [
          {'role': 'user', 'content': text[:8]},
          {'role': 'assistant', 'content': text},
        ]
      }
      for text in texts
    ],
    'preferences': [
      {'prompt': text[:8], 'chosen': text, 'rejected': 'no'} for text in texts
    ],
  }
  (folder / 'qwen3' / 'chat_template.jinja').write_text(
    '{% for message in messages %}<{{ message.role }}>{{ message.content }}'
    '{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}'
  )
  for name, objects in lines.items():
    content = '\n'.join(map(json.dumps, objects))
    (folder / f'{name}.jsonl').write_text(content)
  for block in [*pages.blocks('python'), *pages.blocks('yaml')]:
    if match := IS_FILE.match(block.text):
      (folder / match[1]).write_text(block.text)
  return folder


@pytest.mark.parametrize(
  'words',
  [
    pytest.param(words, marks=[pytest.mark.nightly] * (page in _NIGHTLY_PAGES))
    for words, page in pages.pax_words().items()
  ],
)
def test_commands_run(words, jobs):
  arguments = [
    argument.replace(JOBS, f'{jobs}') for argument in shlex.split(words)
  ]
  # A tool's name comes first, and has no steps to save.
  is_ahead = '--mode=aot' in arguments
  trains = arguments[0].startswith('--') and not is_ahead
  short = SHORT if trains or '--aot_save' in words else []
  is_study = any(argument.startswith('--study') for argument in arguments)
  if short or is_ahead:
    small = [sets for name, sets in SMALL.items() if name in words]
    short = short + sum(small, []) + ONE_TRIAL * is_study
  environment = programs.environment() | {'HOME': str(jobs)}
  command = ['pax.main', *arguments, *short]
  program = programs.Program(command, environment, PRELOADED, folder=jobs)
  completed = program.wait(TIMEOUT_SECS)
  assert completed.returncode == 0, completed.stderr[-3000:]
  for argument in arguments:
    if argument.startswith('--job_log_dir='):
      job = pathlib.Path(argument.partition('=')[2])
      output = 'study.txt' if is_study else 'metrics.jsonl'
      output = 'aot' if is_ahead else output
      output = 'output' if '--mode=infer' in arguments else output
      output = 'checkpoints' if '--mode=quantize' in arguments else output
      assert (job / output).exists()
