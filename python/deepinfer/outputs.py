"""What comes back. Plain data: everything here can be pickled, compared and printed, also without the library."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional, Union

__all__ = [
    "CompletionOutput",
    "DraftRecord",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "ScoreOutput",
    "StreamOutput",
    "Usage",
]


@dataclasses.dataclass
class Logprob:
    """Log-probability of one token, from the raw logits."""

    logprob: float
    rank: Optional[int] = None
    """1 = the best; None for a chosen token that is not among the best that were asked for."""
    decoded_token: Optional[str] = None
    """Its text; None if the model has no tokenizer."""


@dataclasses.dataclass
class Usage:
    """Tokens of a request. How many drafts there were depends on time, not on the request, so == leaves them out."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's tokens, those whose state came out of the cache."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    draft_tokens: int = dataclasses.field(default=0, compare=False)
    accepted_draft_tokens: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass
class RequestMetrics:
    """Times of a request in milliseconds."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    first_token_ms: float = 0.0
    total_ms: float = 0.0


@dataclasses.dataclass
class DraftRecord:
    """What became of the drafts of one step."""

    position: int
    """Of the first draft, in prompt and answer together."""
    drafted: List[int]
    """Ids that were guessed and went through the model."""
    accepted: int
    """So many of them, from the first on, were what the sampler chose."""
    confidence: List[float]
    """Chance of each to be right if those before it are; empty when drafts come from prompt look-up."""


@dataclasses.dataclass
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    """Without the end-of-sequence token and the stop string; after chat without the reasoning."""
    token_ids: List[int]
    """Every id produced, the end of sequence included."""
    cumulative_logprob: Optional[float] = None
    logprobs: Optional[List[Dict[int, Logprob]]] = None
    """For each token: the chosen id and the best ones."""
    finish_reason: Optional[str] = None
    """"stop", "length", "cancelled" or "error"; None while it is being written."""
    stop_reason: Optional[Union[int, str]] = None
    """The stop string or stop id that ended it; None for the end of sequence."""
    reasoning: Optional[str] = None
    """After chat: the reasoning before the answer, if there was any."""
    logits_hash: Optional[str] = None
    """16 hexadecimal digits, if it was asked for."""
    drafts: Optional[List[DraftRecord]] = None
    """One for each step that had drafts, if they were asked for."""

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclasses.dataclass
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: Optional[str]
    """The prompt as text; after chat with its control tokens; None if it was given as token ids."""
    prompt_token_ids: List[int]
    outputs: List[CompletionOutput]
    finished: bool = True
    prompt_logprobs: Optional[List[Optional[Dict[int, Logprob]]]] = None
    """For each token of the prompt; None for the first, which nothing comes before."""
    metrics: Optional[RequestMetrics] = None
    usage: Usage = dataclasses.field(default_factory=Usage)
    seed: Optional[int] = None
    """The seed that was used: with it as seq_seed the same answer comes again."""
    fingerprint: Optional[str] = None
    """Weights, numeric profile and build."""
    error: Optional[Exception] = None
    """Why the request failed; only with on_error="return"."""

    @property
    def num_cached_tokens(self) -> int:
        return self.usage.cached_tokens

    @property
    def logits_hash(self) -> Optional[str]:
        """Hash of the first answer."""
        return self.outputs[0].logits_hash if self.outputs else None


@dataclasses.dataclass
class StreamOutput:
    """What is new in a stream: text that became certain and the tokens behind it."""

    request_id: str
    index: int
    text: str
    token_ids: List[int]
    logprobs: Optional[List[Dict[int, Logprob]]] = None
    reasoning: str = ""
    finish_reason: Optional[str] = None
    stop_reason: Optional[Union[int, str]] = None
    drafts: Optional[DraftRecord] = None
    """Of the step whose first token this is."""


@dataclasses.dataclass
class ScoreOutput:
    """Teacher-forced evaluation of one text."""

    prompt: Optional[str]
    prompt_token_ids: List[int]
    token_logprobs: List[Optional[float]]
    """Of each token given those before it; None for the first."""
    argmax: List[int]
    """The best next token after each token."""
    nll: float
    """Negative log-likelihood, in nats."""
    perplexity: float
    """exp of the mean of nll; NaN for a single token."""
    logits_hash: str
    """16 hexadecimal digits over the logits of all rows."""
    fingerprint: Optional[str] = None
