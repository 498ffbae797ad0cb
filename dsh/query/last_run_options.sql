-- What the last run of a session was told about its system text and tools. Messages from other processes say nothing.
-- session: id
-- → options (JSON object, or NULL if nothing was said)
SELECT data -> '$.meta.run' FROM event
WHERE session_id = :session AND type = 'user/message' AND type <> 'assistant/chunk' AND data ->> '$.source.kind' = 'user'
  AND data ->> '$.meta.via' IS NULL
ORDER BY part DESC, seq DESC LIMIT 1
