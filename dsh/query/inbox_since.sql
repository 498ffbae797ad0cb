-- What waits for a session, in order.
-- session: id; after: the position below which everything is known
-- → position, message_id, route, content (JSON), source (JSON), contexts (JSON), meta (JSON or NULL), sent_at (epoch ms)
SELECT position, message_id, route, content, source, contexts, meta, sent_at
FROM inbox WHERE session_id = :session AND position > :after ORDER BY position
