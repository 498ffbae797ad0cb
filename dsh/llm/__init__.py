"""Model calls: the adapter contract, routing, the chunk protocol, providers and retry
(docs/spec/llm-streaming.md)."""
