"""deepinfer: inference for DeepSeek-V4.1-Flash - fast, and the same bits every time.

from deepinfer import LLM, SamplingParams

with LLM() as llm:
    for output in llm.generate(["Hello", "I would like"], SamplingParams(max_tokens=20)):
        print(output.outputs[0].text)
"""

from ._engine import ModelInfo
from ._library import library_version
from ._version import __version__
from .async_llm import AsyncLLM
from .errors import EngineError, ParameterError
from .llm import LLM, Stream
from .outputs import (
    CompletionOutput,
    DraftRecord,
    Logprob,
    RequestMetrics,
    RequestOutput,
    ScoreOutput,
    StreamOutput,
    Usage,
)
from .sampling_params import SamplingParams
from .structured_outputs import StructuredOutputsParams
from .tokenizer import Tokenizer

__all__ = [
    "AsyncLLM",
    "CompletionOutput",
    "DraftRecord",
    "EngineError",
    "LLM",
    "Logprob",
    "ModelInfo",
    "ParameterError",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "ScoreOutput",
    "Stream",
    "StreamOutput",
    "StructuredOutputsParams",
    "Tokenizer",
    "Usage",
    "__version__",
    "library_version",
]
