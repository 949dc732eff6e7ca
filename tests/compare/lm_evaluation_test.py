# SPDX-License-Identifier: Apache-2.0
"""Tasks of lm-evaluation-harness, answered by Pax and by transformers."""

from __future__ import annotations

import json
import pathlib
import random

import lm_eval
import numpy as np
import pytest
import tokenizers
import transformers
from lm_eval import tasks
from tokenizers import models, pre_tokenizers, processors, trainers

from tests.integration import binary

# What its packages warn of is theirs.
pytestmark = pytest.mark.filterwarnings('ignore')

EXP = 'pax.tasks.lm.params.huggingface.Llama3'
WORDS = ('def', 'return', 'class', 'while', 'x', '=', 'y', '+', '1', ':')
MAX_LENGTH = 48
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
      'question': ' '.join(generator.choices(WORDS, k=1 + i)),
      'choices': [f' {word} {word}' for word in WORDS[:3]],
      'answer': i % 3,
      'document': ' '.join(generator.choices(WORDS, k=5 + 12 * i)),
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


def write_model(folder: pathlib.Path) -> None:
  """Writes a random Llama with a tokenizer that adds bos."""
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=300,
    special_tokens=['<s>', '</s>'],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator([' '.join(WORDS)], trainer)
  tokenizer.post_processor = processors.TemplateProcessing(
    single='<s> $A', special_tokens=[('<s>', 0)]
  )
  transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    bos_token='<s>',
    eos_token='</s>',
    chat_template=(
      '{{ bos_token }}{% for message in messages %}'
      '[{{ message.role }}] {{ message.content }} {% endfor %}'
      '{% if add_generation_prompt %}[assistant] {% endif %}'
    ),
  ).save_pretrained(folder)
  config = transformers.LlamaConfig(
    vocab_size=tokenizer.get_vocab_size(),
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=MAX_LENGTH,
    bos_token_id=0,
    eos_token_id=1,
    # No two ids are about as probable.
    initializer_range=0.4,
  )
  transformers.set_seed(0)
  transformers.LlamaForCausalLM(config).save_pretrained(folder)


@pytest.mark.parametrize('is_chat', [False, True])
def test_answers_are_those_of_transformers(is_chat, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setenv('HF_HOME', str(tmp_path / 'hf'))
  names = write_tasks(tmp_path)
  write_model(tmp_path / 'model')
  expected = lm_eval.simple_evaluate(
    'hf',
    model_args=f'pretrained={tmp_path}/model,dtype=float32',
    device='cpu',
    tasks=names,
    apply_chat_template=is_chat,
    task_manager=tasks.TaskManager(include_path=str(tmp_path)),
  )
  completed = binary.run(
    EXP,
    tmp_path / 'job',
    '--mode=decode_once',
    f'--set=MODEL_DIR={tmp_path}/model',
    f'--init_from=hf:{tmp_path}/model',
    '--set=FPROP_DTYPE=float32',
    f'--set=LM_EVAL_TASKS={names}',
    f'--set=LM_EVAL_APPLY_CHAT_TEMPLATE={is_chat}',
    f'--set=LM_EVAL_INCLUDE_PATH={tmp_path}',
    f'--set=LM_EVAL_SEQ_LEN={MAX_LENGTH}',
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
