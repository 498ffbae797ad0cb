-- What people have asked in a session, in order, as they are shown it (SE-26); replaced messages too.
-- session: id; after, last: seqs, the first left out; limit: rows
-- → seq, content (JSON)
-- The unary plus keeps the bounds from choosing the index that has the chunks, too.
SELECT seq, coalesce(data -> '$.envelope.displayContent', data -> '$.content') FROM event
WHERE session_id = :session AND type = 'user/message' AND type <> 'assistant/chunk' AND data ->> '$.source.kind' = 'user'
  AND +seq > :after AND +seq <= :last
ORDER BY part, seq LIMIT :limit
