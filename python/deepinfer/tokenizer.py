"""Text to ids and back, as the engine does it."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Union

from . import _inputs
from ._engine import Engine
from .sampling_params import token_ids as _token_ids

__all__ = ["Tokenizer"]


class Tokenizer:
    """The tokenizer of an open model. Plain text never yields a control token unless that is asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def vocab_size(self) -> int:
        return self._engine.info.vocabulary

    @property
    def bos_token_id(self) -> Optional[int]:
        return self._engine.info.bos_token_id

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, add_special_tokens: bool = True, control: bool = False) -> List[int]:
        """Ids of a text with BOS before it, as `generate` puts it; control=True recognises tokens like <｜User｜>."""
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, not {type(text).__name__}")
        bos = self.bos_token_id
        ids = [bos] if add_special_tokens and bos is not None else []
        return ids + self._engine.tokenize(text, control).tolist()

    def decode(self, token_ids: Union[int, Sequence[int]]) -> str:
        """Text of ids, control tokens included. Bytes that are no text become U+FFFD."""
        given: Any = [token_ids] if hasattr(token_ids, "__index__") else token_ids
        return self._engine.detokenize(_token_ids("token_ids", given)).decode("utf-8", "replace")

    def apply_chat_template(
        self,
        messages: Sequence[_inputs.Message],
        tokenize: bool = True,
        *,
        thinking: Optional[bool] = None,
        reasoning_effort: Union[str, int, None] = None,
        continue_final_message: bool = False,
    ) -> Union[str, List[int]]:
        """The prompt of a conversation, as ids or, with tokenize=False, as text. Without `thinking` the model's own
        default holds."""
        options = {"thinking": thinking, "reasoning_effort": reasoning_effort}
        ids = _inputs.render(self._engine, messages, options, continue_final_message, "").token_ids
        return ids.tolist() if tokenize else self.decode(ids)
