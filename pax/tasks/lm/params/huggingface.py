# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face, trained or fine-tuned on text files.

pax --exp=tasks.lm.params.huggingface.Llama3 --set MODEL_DIR=/models/llama \
  --init_from=hf:/models/llama --job_log_dir=/tmp/pax/llama

Without MODEL_DIR a model has the sizes of the published one that its docstring
names, and a tokenizer of bytes.
"""

from __future__ import annotations

from pax import experiment_registry
from pax.huggingface import families
from pax.tasks.lm.params import (
  choice_bias,
  fine_tuning,
  published_configs,
  published_moe_configs,
  sequence_fine_tuning,
)


@experiment_registry.register
class Llama2(fine_tuning.HuggingFaceLm):
  """Llama 2 7B."""

  CONFIG = published_configs.LLAMA2


@experiment_registry.register
class Llama3(fine_tuning.HuggingFaceLm):
  """Llama 3.2 1B."""

  CONFIG = published_configs.LLAMA3


@experiment_registry.register
class Llama4(fine_tuning.HuggingFaceLm):
  """Llama 4 Scout, 108B with 17B for a token, which reads text only."""

  USE_REPEATED_LAYER = True
  CONFIG = published_moe_configs.LLAMA4


@experiment_registry.register
class Mistral(fine_tuning.HuggingFaceLm):
  """Mistral 7B v0.1."""

  CONFIG = published_configs.MISTRAL


@experiment_registry.register
class Ministral3(fine_tuning.HuggingFaceLm):
  """The language model of Ministral 3 8B."""

  CONFIG = published_configs.MINISTRAL_3


@experiment_registry.register
class Mixtral(fine_tuning.HuggingFaceLm):
  """Mixtral 8x7B v0.1."""

  USE_REPEATED_LAYER = True
  CONFIG = published_moe_configs.MIXTRAL


@experiment_registry.register
class Qwen2(fine_tuning.HuggingFaceLm):
  """Qwen2.5 0.5B."""

  CONFIG = published_configs.QWEN2


@experiment_registry.register
class Qwen3(fine_tuning.HuggingFaceLm):
  """Qwen3 0.6B."""

  CONFIG = published_configs.QWEN3


@experiment_registry.register
class Qwen3Moe(fine_tuning.HuggingFaceLm):
  """Qwen3 30B-A3B."""

  USE_REPEATED_LAYER = True
  CONFIG = published_moe_configs.QWEN3_MOE


@experiment_registry.register
class Qwen3Next(fine_tuning.HuggingFaceLm):
  """Qwen3-Next, 80B with 3B for a token."""

  USE_REPEATED_LAYER = True
  CONFIG = published_moe_configs.QWEN3_NEXT


@experiment_registry.register
class Qwen3_5(fine_tuning.HuggingFaceLm):  # noqa: N801
  """The language model of Qwen3.5 9B."""

  USE_REPEATED_LAYER = True
  CONFIG = published_configs.QWEN3_5


@experiment_registry.register
class Qwen3_5Moe(fine_tuning.HuggingFaceLm):  # noqa: N801
  """The language model of Qwen3.5, 35B with 3B for a token."""

  USE_REPEATED_LAYER = True
  CONFIG = published_moe_configs.QWEN3_5_MOE


@experiment_registry.register
class DeepSeekV2(fine_tuning.HuggingFaceLm):
  """DeepSeek-V2-Lite, 16B with 2.4B for a token."""

  USE_REPEATED_LAYER = True
  CONFIG = published_moe_configs.DEEPSEEK_V2


@experiment_registry.register
class DeepSeekV3(choice_bias.ChoiceBiasLm):
  """DeepSeek-V3, 671B with 37B for a token."""

  CONFIG = published_moe_configs.DEEPSEEK_V3


@experiment_registry.register
class KimiK2(choice_bias.ChoiceBiasLm):
  """Kimi K2, 1026B with 32B for a token."""

  CONFIG = published_moe_configs.KIMI_K2


@experiment_registry.register
class Gemma(fine_tuning.HuggingFaceLm):
  """Gemma 2B."""

  CONFIG = published_configs.GEMMA


@experiment_registry.register
class Gemma2(fine_tuning.HuggingFaceLm):
  """Gemma 2 2B."""

  CONFIG = published_configs.GEMMA2


@experiment_registry.register
class Gemma3(fine_tuning.HuggingFaceLm):
  """Gemma 3 1B, which reads text only."""

  CONFIG = published_configs.GEMMA3


@experiment_registry.register
class Gemma4(fine_tuning.HuggingFaceLm):
  """The language model of Gemma 4 12B."""

  USE_REPEATED_LAYER = True
  CONFIG = published_configs.GEMMA4


@experiment_registry.register
class Gemma4E2B(fine_tuning.HuggingFaceLm):
  """The language model of Gemma 4 E2B."""

  CONFIG = published_configs.GEMMA4_E2B


@experiment_registry.register
class Gemma4E4B(fine_tuning.HuggingFaceLm):
  """The language model of Gemma 4 E4B."""

  CONFIG = published_configs.GEMMA4_E4B


@experiment_registry.register
class Gemma4Moe(fine_tuning.HuggingFaceLm):
  """The language model of Gemma 4, 26B with 4B for a token."""

  USE_REPEATED_LAYER = True
  CONFIG = published_moe_configs.GEMMA4_MOE


@experiment_registry.register
class GptOss(fine_tuning.HuggingFaceLm):
  """gpt-oss 20B."""

  USE_REPEATED_LAYER = True
  CONFIG = published_moe_configs.GPT_OSS


@experiment_registry.register
class Olmo2(fine_tuning.HuggingFaceLm):
  """OLMo 2 1B."""

  CONFIG = published_configs.OLMO2


@experiment_registry.register
class Olmo3(fine_tuning.HuggingFaceLm):
  """OLMo 3 7B."""

  CONFIG = published_configs.OLMO3


@experiment_registry.register
class Phi3(fine_tuning.HuggingFaceLm):
  """Phi-3 mini for 4k tokens, 3.8B."""

  CONFIG = published_configs.PHI3


@experiment_registry.register
class Phi4(fine_tuning.HuggingFaceLm):
  """Phi-4, 14.7B."""

  CONFIG = published_configs.PHI4


@experiment_registry.register
class SmolLM3(fine_tuning.HuggingFaceLm):
  """SmolLM3 3B."""

  CONFIG = published_configs.SMOLLM3


@experiment_registry.register
class Glm4(fine_tuning.HuggingFaceLm):
  """GLM-4 9B of the releases 0414."""

  CONFIG = published_configs.GLM4


@experiment_registry.register
class Glm4MoeLite(choice_bias.ChoiceBiasLm):
  """GLM-4.7-Flash, 30B with 3B for a token."""

  CONFIG = published_moe_configs.GLM4_MOE_LITE


@experiment_registry.register
class Glm4Moe(choice_bias.ChoiceBiasLm):
  """GLM-4.5-Air, 106B with 12B for a token."""

  CONFIG = published_moe_configs.GLM4_MOE


@experiment_registry.register
class MiniMaxM2(choice_bias.ChoiceBiasLm):
  """MiniMax-M2, 229B with 10B for a token."""

  CONFIG = published_moe_configs.MINIMAX_M2


@experiment_registry.register
class Nemotron3(choice_bias.ChoiceBiasLm):
  """Nemotron 3 Nano, 31B with 3B for a token, with Mamba-2 in most layers."""

  # The order of its layers has no period.
  USE_REPEATED_LAYER = False
  CONFIG = published_moe_configs.NEMOTRON_3


@experiment_registry.register
class SeedOss(fine_tuning.HuggingFaceLm):
  """Seed-OSS 36B."""

  CONFIG = published_configs.SEED_OSS


@experiment_registry.register
class Exaone4(fine_tuning.HuggingFaceLm):
  """EXAONE 4 32B."""

  CONFIG = published_configs.EXAONE_4


@experiment_registry.register
class Granite(fine_tuning.HuggingFaceLm):
  """Granite 3.1 2B."""

  CONFIG = published_configs.GRANITE


@experiment_registry.register
class Granite4(fine_tuning.HuggingFaceLm):
  """Granite 4.0 H Micro, 3.2B, with Mamba-2 in most layers."""

  USE_REPEATED_LAYER = True
  CONFIG = published_configs.GRANITE_4


@experiment_registry.register
class Granite4Moe(fine_tuning.HuggingFaceLm):
  """Granite 4.0 H Tiny, 7B with 1B for a token, with Mamba-2 in most layers."""

  USE_REPEATED_LAYER = True
  CONFIG = published_moe_configs.GRANITE_4_MOE


@experiment_registry.register
class Gpt2(fine_tuning.HuggingFaceLm):
  """GPT-2 with 124M parameters."""

  CONFIG = published_configs.GPT2

  def validate(self) -> None:
    """Checks the constants.

    Raises:
      ValueError: As for other models, or texts are longer than the table of
        position embeddings.
    """
    super().validate()
    config = self.model_config()
    families.read_model(config)
    for name in ('MAX_SEQ_LEN', 'DECODE_SEQ_LEN'):
      length = getattr(self, name)
      if length > config['n_positions']:
        raise ValueError(
          f'{name} must be at most {config["n_positions"]}, the n_positions of'
          f' config.json, got {length}; the model has no embedding of later'
          ' positions'
        )


@experiment_registry.register
class T5(sequence_fine_tuning.HuggingFaceSequenceModel):
  """T5 small."""

  CONFIG = published_configs.T5


@experiment_registry.register
class T5V1_1(sequence_fine_tuning.HuggingFaceSequenceModel):
  """T5 1.1 small."""

  CONFIG = published_configs.T5_1_1
