"""A Llama-family decoder, checkpoint loading, and `tiny`, the checkpoint that comes with the course."""

from minipaged.model.config import CheckpointError, ModelConfig
from minipaged.model.corpus import QUESTION_ADDRESS, QUESTION_RETURN, SYSTEM_PROMPT
from minipaged.model.decoder import LlamaModel
from minipaged.model.loader import TINY_FOLDER, load_model
from minipaged.model.tokenizer import IncrementalDetokenizer, Tokenizer

__all__ = [
    "QUESTION_ADDRESS",
    "QUESTION_RETURN",
    "SYSTEM_PROMPT",
    "TINY_FOLDER",
    "CheckpointError",
    "IncrementalDetokenizer",
    "LlamaModel",
    "ModelConfig",
    "Tokenizer",
    "load_model",
]
