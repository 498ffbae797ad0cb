-- The last message turn of a session (SE-48): the latest that has ended and began with a message; injections and turns
-- of plugins are no answer to anybody. A turn that began before the last end of a turn has ended itself. (The plus keeps
-- the look for it on the index that leaves chunks out.)
-- session: id
-- → turn, start_seq, end_seq, reason (JSON)
SELECT turn, start_seq, end_seq, reason FROM turn
WHERE session_id = :session AND start_seq =
  (SELECT seq FROM event
   WHERE session_id = :session AND type = 'turn/start' AND type <> 'assistant/chunk'
     AND data ->> '$.trigger.kind' = 'message' AND +seq <
       (SELECT max(seq) FROM event
        WHERE session_id = :session AND type = 'turn/end' AND type <> 'assistant/chunk')
   ORDER BY seq DESC LIMIT 1)
