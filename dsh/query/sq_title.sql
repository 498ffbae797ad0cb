-- The newest title of a session, which is logged as an event.
-- session: id
-- → title (NULL if it is no text)
SELECT iif(json_type(data, '$.title') = 'text', data ->> '$.title', NULL) FROM event
WHERE session_id = :session AND type = 'session/title' AND type <> 'assistant/chunk' ORDER BY part DESC, seq DESC LIMIT 1
