-- Every message that waits for a driver.
-- → session_id, message_id, content, source, contexts (JSON), meta (JSON or NULL)
SELECT session_id, message_id, content, source, contexts, meta FROM inbox ORDER BY position
