"""The agent loop: handle, inbox, driver, turn, step and tool batch (docs/spec/agent-loop.md)."""
