-- Where the last turns of a session begin, found from the end of its log; no row if it has fewer. A turn that only gives
-- the session a title does not count.
-- session: id; turns: how many
-- → seq (of a turn/start)
SELECT seq FROM event WHERE session_id = :session AND type = 'turn/start' AND type <> 'assistant/chunk'
  AND data ->> '$.trigger.kind' IS NOT 'session-title'
ORDER BY part DESC, seq DESC LIMIT 1 OFFSET :turns - 1
