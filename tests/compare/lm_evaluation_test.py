# SPDX-License-Identifier: Apache-2.0
"""Tasks of lm-evaluation-harness, answered by Pax and by transformers."""

from __future__ import annotations

import json
import pathlib
import random

import lm_eval
import numpy as np
import pytest
from lm_eval import tasks

from tests.compare import chat_models
from tests.integration import binary

# What its packages warn of is theirs.
pytestmark = pytest.mark.filterwarnings('ignore')

OUTPUT_TYPES = {
  'choice': """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
  # Without a context.
  'text': """
output_type: loglikelihood
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: acc}, {metric: perplexity}]
""",
  # Of up to five rows.
  'document': """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{document}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
  'generation': """
output_type: generate_until
doc_to_text: "{{document}}"
doc_to_target: "x"
generation_kwargs: {until: ["="], max_gen_toks: 16}
metric_list: [{metric: exact_match}]
""",
}


def write_tasks(folder: pathlib.Path) -> list[str]:
  """Writes a task of each output type; returns their names."""
  generator = random.Random(0)
  documents = [
    {
      'question': ' '.join(generator.choices(chat_models.WORDS, k=1 + i)),
      'choices': [f' {word} {word}' for word in chat_models.WORDS[:3]],
      'answer': i % 3,
      'document': ' '.join(generator.choices(chat_models.WORDS, k=5 + 12 * i)),
    }
    for i in range(9)
  ]
  data = folder / 'data.jsonl'
  data.write_text('\n'.join(json.dumps(x) for x in documents))
  names = []
  for kind, settings in OUTPUT_TYPES.items():
    names.append(f'pax_{kind}')
    (folder / f'{kind}.yaml').write_text(
      f'task: pax_{kind}\ndataset_path: json\ntest_split: test\n'
      f'dataset_kwargs: {{data_files: {{test: {data}}}}}\n{settings}'
    )
  return names


@pytest.mark.parametrize('is_chat', [False, True])
def test_answers_are_those_of_transformers(is_chat, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setenv('HF_HOME', str(tmp_path / 'hf'))
  names = write_tasks(tmp_path)
  chat_models.write_model(tmp_path / 'model')
  expected = lm_eval.simple_evaluate(
    'hf',
    model_args=f'pretrained={tmp_path}/model,dtype=float32',
    device='cpu',
    tasks=names,
    apply_chat_template=is_chat,
    task_manager=tasks.TaskManager(include_path=str(tmp_path)),
  )
  completed = binary.run(
    chat_models.EXP,
    tmp_path / 'job',
    '--mode=decode_once',
    f'--set=MODEL_DIR={tmp_path}/model',
    f'--init_from=hf:{tmp_path}/model',
    '--set=FPROP_DTYPE=float32',
    f'--set=LM_EVAL_TASKS={names}',
    f'--set=LM_EVAL_APPLY_CHAT_TEMPLATE={is_chat}',
    f'--set=LM_EVAL_INCLUDE_PATH={tmp_path}',
    f'--set=LM_EVAL_SEQ_LEN={chat_models.MAX_LENGTH}',
    '--set=LM_EVAL_BATCH_SIZE=4',
  )
  assert completed.returncode == 0, completed.stderr
  [lines] = tmp_path.glob('job/decoder_out/lm_eval/*.jsonl')
  examples = [json.loads(line) for line in lines.read_text().splitlines()]
  for name in names:
    got = [x['filtered_resps'] for x in examples if x['task'] == name]
    wanted = [x['filtered_resps'] for x in expected['samples'][name]]
    assert len(got) == len(wanted) == 9
    for ours, theirs in zip(got, wanted, strict=True):
      assert_equal_responses(ours, theirs)
  [metrics] = [
    record
    for record in binary.records(tmp_path / 'job')
    if record['split'] == 'decode_test_lm_eval'
  ]
  for name, values in expected['results'].items():
    for key, value in values.items():
      metric, _, filter_name = key.partition(',')
      if filter_name == 'none' and isinstance(value, float):
        got = metrics[f'lm_eval/{name}/{metric}']
        np.testing.assert_allclose(got, value, rtol=1e-4)


def assert_equal_responses(got: list, wanted: list) -> None:
  for ours, theirs in zip(got, wanted, strict=True):
    if isinstance(theirs, str):
      assert ours == theirs
    elif isinstance(theirs, float):
      np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    else:
      np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4)
      assert bool(ours[1]) == theirs[1]
